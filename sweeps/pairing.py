"""Pairing: a drafter and a target that are to run together, and the little that all checks of them ask.

Not here: the checks (drafter.py, eagle3_heads.py, draft_models.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sweeps.architectures import MLA_EAGLE3
from sweeps.checkpoint import Checkpoint
from sweeps.finding import Finding, error, listed, warning
from sweeps.headers import Tensor

MOST_LAYERS = 64
"""Of a drafter; tensors of further layers are not looked for."""
Shape = tuple[int | None, ...]
"""None where the config does not say."""


@dataclass(frozen=True)
class Pairing:
    drafter: Checkpoint
    target: Checkpoint
    version: str
    """Of SGLang."""
    context_length: int | None
    """Longest context to serve, in tokens; None: the target's own."""
    tp_size: int
    context_overridden: bool = False
    """SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set for the server."""
    quantization: str | None = None
    """How SGLang is told to quantize the target while loading it."""

    @property
    def served_context_length(self) -> int:
        return self.context_length or self.target.context_length

    @property
    def target_layers(self) -> int | None:
        return self.target.whole("num_hidden_layers")

    @property
    def layers(self) -> int:
        """The drafter's layers whose tensors are looked for."""
        return min(self.drafter.whole("num_hidden_layers") or 1, MOST_LAYERS)

    @property
    def hidden(self) -> int | None:
        return self.drafter.whole("hidden_size")

    def tensors(self) -> dict[str, Tensor]:
        """The drafter's tensors under the names of SGLang's modules (models/llama_eagle3.py:333-366)."""
        return {_module_name(name): tensor for name, tensor in (self.drafter.tensors or {}).items()}


_OLD_NAMES = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}


def _module_name(name: str) -> str:
    plain = name.removeprefix("model.")
    for old, new in _OLD_NAMES.items():
        plain = plain.replace(old, new)
    return plain


def block(pairing: Pairing, layer: int, width: int | None) -> dict[str, Shape]:
    """The attention and MLP of one decoder layer whose attention reads `width` numbers a token."""
    drafter, hidden = pairing.drafter, pairing.hidden
    heads, inner = drafter.whole("num_attention_heads"), drafter.whole("intermediate_size")
    if drafter.config.get("model_type") == "llama4_text":
        inner = drafter.whole("intermediate_size_mlp")
    if drafter.architecture == MLA_EAGLE3:
        attention = _latent_attention(drafter, width, heads)
    else:
        key_heads = drafter.whole("num_key_value_heads") or heads
        size = drafter.whole("head_dim") or (hidden // heads if hidden and heads else None)
        attention = {
            "q_proj": (times(heads, size), width), "k_proj": (times(key_heads, size), width),
            "v_proj": (times(key_heads, size), width), "o_proj": (hidden, times(heads, size)),
        }  # fmt: skip
    mlp: dict[str, Shape] = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {
        **{f"layers.{layer}.self_attn.{name}.weight": shape for name, shape in attention.items()},
        **{f"layers.{layer}.mlp.{name}.weight": shape for name, shape in mlp.items()},
        f"layers.{layer}.post_attention_layernorm.weight": (hidden,),
    }


def _latent_attention(drafter: Checkpoint, width: int | None, heads: int | None) -> dict[str, Shape]:
    """Multi-head latent attention (models/deepseek_v2.py, models/kimi_k25_eagle3.py:81-131)."""
    nope, rope = drafter.whole("qk_nope_head_dim"), drafter.whole("qk_rope_head_dim")
    value, low, query = drafter.whole("v_head_dim"), drafter.whole("kv_lora_rank"), drafter.whole("q_lora_rank")
    return {
        "q_a_proj": (query, width), "q_a_layernorm": (query,), "q_b_proj": (times(heads, plus(nope, rope)), query),
        "kv_a_proj_with_mqa": (plus(low, rope), width), "kv_a_layernorm": (low,),
        "kv_b_proj": (times(heads, plus(nope, value)), low), "o_proj": (drafter.whole("hidden_size"), times(heads, value)),
    }  # fmt: skip


def times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}  # fmt: skip


def missing(tensors: Mapping[str, Tensor], wanted: Mapping[str, Shape]) -> Iterator[Finding]:
    """Modules without any tensor.  A packed (quantized) or fused one counts as there."""
    modules = {module(name) for name in tensors}
    gone = [name for name in wanted if not {module(name), _fused(module(name))} & modules]
    if gone:
        yield error(
            "missing_tensors", f"the drafter's files lack {listed(gone)}",
            "SGLang leaves them at their initial values without a word, and the drafter guesses nothing",
            "Copy the checkpoint again, or export it again.",
        )  # fmt: skip


def unexpected(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Shape], allowed: tuple[str, ...]
) -> Iterator[Finding]:
    """Modules that SGLang's class does not have.  `allowed` are beginnings of names."""
    known = {module(name) for name in wanted} | {_fused(module(name)) for name in wanted}
    extra = [name for name in tensors if module(name) not in known and not name.startswith(allowed) and "rotary_emb" not in name]  # fmt: skip
    if extra:
        yield warning(
            "unexpected_tensors", f"the drafter's files hold {listed(sorted(extra))}, which its class in SGLang does not have",
            "SGLang drops them without a word; a drafter that was trained with them guesses worse",
            "Check that config.json names the class that the drafter was trained as.",
        )  # fmt: skip


def misshapen(pairing: Pairing, tensors: Mapping[str, Tensor], wanted: Mapping[str, Shape]) -> Iterator[Finding]:
    """Tensors of other shapes than config.json implies.  Packed weights are left alone."""
    if pairing.drafter.quantized:
        return
    wrong = [
        f"{name} is {list(tensors[name].shape)}, config.json implies {_template(shape)}"
        for name, shape in wanted.items()
        if name in tensors and not _alike(tensors[name].shape, shape)
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        yield error(
            "shapes", "; ".join(wrong[:3]) + more, "the weights would not load",
            "Correct config.json (heads, head_dim, hidden and intermediate sizes), or copy the checkpoint again.",
        )  # fmt: skip


def _alike(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == s for s, w in zip(shape, wanted, strict=True))


def _template(shape: Shape) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def module(name: str) -> str:
    """The module a tensor belongs to: its name without the last part."""
    return name.rpartition(".")[0] or name


def _fused(name: str) -> str:
    stem, _, last = name.rpartition(".")
    return f"{stem}.{_FUSED.get(last, last)}"
