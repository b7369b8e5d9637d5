"""Turns a Llama in a GGUF file into a checkpoint that SGLang loads: weights in bfloat16, config, tokenizer, chat template.

    python convert_gguf.py MODEL.gguf OUT

Used for SmolLM2-135M-Instruct, which a package carries as a GGUF of quantized weights: the model is real, its numbers
are those of the quantized one.  Not here: other architectures, and tokenizers other than SmolLM2's byte-level BPE.
Needs gguf, numpy, torch, safetensors and tokenizers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_A_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3
"""GGUF's token type of special tokens."""
BEGIN, END = 1, 2
"""SmolLM2's <|im_start|> and <|im_end|>."""
Facts = dict[str, Any]


def weights(reader: gguf.GGUFReader, facts: Facts) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) as transformers would name it.

    Raises:
        KeyError: a tensor that no Llama has.
    """
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(size) for size in tensor.shape[::-1]])
        name = OUTSIDE_LAYERS.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{IN_A_LAYER[part]}.weight"
            values = unpermuted(values, heads[part]) if part in heads else values
        yield name, torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes what llama.cpp does to query and key weights, whose rotary halves it interleaves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config(facts: Facts, tied: bool) -> Facts:
    hidden, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    rope_theta = float(facts["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"], "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads, "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": hidden // heads, "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"], "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta}, "vocab_size": facts["llama.vocab_size"],
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": END,
    }  # fmt: skip


def tokenizer(facts: Facts) -> Tokenizer:
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    kinds = zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
    made.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == CONTROL_TOKEN]
    )
    return made


def tokenizer_config(facts: Facts) -> Facts:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>", "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False, "chat_template": facts["tokenizer.chat_template"],
    }  # fmt: skip


def main() -> None:
    reader = gguf.GGUFReader(sys.argv[1])
    facts = {name: field.contents() for name, field in reader.fields.items()}
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    found = dict(weights(reader, facts))
    save_file(found, out / "model.safetensors", {"format": "pt"})
    tokenizer(facts).save(str(out / "tokenizer.json"))
    about = {
        "config.json": config(facts, tied="lm_head.weight" not in found),
        "generation_config.json": {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": END, "do_sample": False},
        "tokenizer_config.json": tokenizer_config(facts),
    }
    for name, values in about.items():
        (out / name).write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
