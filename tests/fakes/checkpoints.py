"""Checkpoints without weights: a config.json and a safetensors header, the data a hole in the file that takes no disk.

Configs and shapes are those of public heads, by their documented fields.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "I64": 8, "BOOL": 1, "F16": 2, "F32": 4}
Shapes = dict[str, tuple[int, ...]]
IDS = "eagle_aux_hidden_state_layer_ids"
SMOLLM2 = Path(__file__).parents[1] / "fixtures" / "eagle3-smollm2"
"""Config and header of a real EAGLE-3 head, trained for SmolLM2-135M-Instruct."""


def write_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of these tensors; d2t is int64, t2d boolean, the rest bfloat16."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        dtype = {"d2t": "I64", "t2d": "BOOL"}.get(name, "BF16")
        start, end = end, end + SIZES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    write_header(file, json.dumps(entries).encode(), end)


def write_header(file: Path, header: bytes, data_bytes: int = 0) -> None:
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.truncate(8 + len(header) + data_bytes)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shapes is not None:
        write_tensors(folder / "model.safetensors", shapes)
    return folder


def write_tokenizer(folder: Path, tokens: Mapping[str, int]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": dict(tokens)}}))


def write_real_head(folder: Path) -> Path:
    """The real head of `SMOLLM2`, its data a hole."""
    entries = json.loads((SMOLLM2 / "header.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes((SMOLLM2 / "config.json").read_bytes())
    end = max(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")
    write_header(folder / "model.safetensors", json.dumps(entries).encode(), end)
    return folder


def config(
    architecture: str, hidden: int, layers: int, heads: tuple[int, int], vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": "llama", "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": vocabulary, "max_position_embeddings": 8192,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


SMOLLM2_TARGET = config(
    "LlamaForCausalLM", 576, 30, (9, 3), 49152, head_dim=64, rope_theta=100000.0, tie_word_embeddings=True
)
LLAMA_8B = config("LlamaForCausalLM", 4096, 32, (32, 8), 128256, rope_theta=500000.0)


def head_of(
    target: Mapping[str, Any], ids: tuple[int, ...] = (1, 13, 28), draft: int = 32000, **more: Any
) -> dict[str, Any]:
    """The config of an EAGLE3 head for a target."""
    text = {**target, **target.get("text_config", {})}
    return {
        **config("LlamaForCausalLMEagle3", text["hidden_size"], 1, (32, 8), text["vocab_size"], head_dim=128),
        "rope_theta": text.get("rope_theta", 10000.0), "draft_vocab_size": draft,
        "eagle_config": {IDS: list(ids), "use_aux_hidden_state": True}, **more,
    }  # fmt: skip


def block_shapes(about: Mapping[str, Any], width: int) -> Shapes:
    hidden, inner = about["hidden_size"], about["intermediate_size"]
    size = about.get("head_dim", hidden // about["num_attention_heads"])
    queries, keys = about["num_attention_heads"] * size, about["num_key_value_heads"] * size
    return {
        "self_attn.q_proj.weight": (queries, width), "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width), "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip


def under(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def eagle3_shapes(about: Mapping[str, Any], aux: int = 3) -> Shapes:
    """The tensors of an EAGLE3 head as SpecForge writes them."""
    hidden, rows = about["hidden_size"], about.get("draft_vocab_size") or about["vocab_size"]
    shapes = {
        "fc.weight": (hidden, aux * hidden), "norm.weight": (hidden,), "lm_head.weight": (rows, hidden),
        "midlayer.hidden_norm.weight": (hidden,), "midlayer.input_layernorm.weight": (hidden,),
        **under("midlayer", block_shapes(about, 2 * hidden)),
    }  # fmt: skip
    return shapes if rows == about["vocab_size"] else {**shapes, "d2t": (rows,), "t2d": (about["vocab_size"],)}


def eagle_shapes(about: Mapping[str, Any]) -> Shapes:
    """The tensors of an EAGLE head."""
    hidden = about["hidden_size"]
    return {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,), **under("layers.0", block_shapes(about, hidden))}


def fit_pair(folder: Path) -> tuple[Path, Path]:
    """A drafter and a target that fit each other."""
    about = head_of(LLAMA_8B)
    return write_checkpoint(folder / "own", about, eagle3_shapes(about)), write_checkpoint(folder / "target", LLAMA_8B)
