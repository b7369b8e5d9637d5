"""Writes the tiny models of these tests: a target that recites a fixed cycle of letters, and drafters that know most of it.

    python make_tiny.py OUT      writes OUT/llama6 (the target), OUT/llama2 (a small draft model), OUT/eagle3, OUT/eagle,
                                 and OUT/eagle3-misfit, whose config is right and whose weights are not

They are made, not trained, and yet behave like a pair that was: token i is the i-th unit vector, the target's head turns
it into its successor, and attention and MLPs add a little noise.  Every drafter puts a wrong letter before the right one
after one letter in four: a chain of three steps accepts about 2.5 tokens, a tree of two branches more, and an EAGLE3 head
that is launched as EAGLE next to none.  The text is fixed, and acceptance repeats.

Not here: real weights (see convert_gguf.py).  Needs torch, safetensors and tokenizers, no transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN = VOCABULARY = 320
DRAFT_VOCABULARY = 260
"""An EAGLE3 head knows the first 260 tokens only: the bytes and the special tokens, all that are ever said."""
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
CYCLE = "qpzjtlrdvceuwkhfgsxaomynbi"
"""What the target says, round and round."""
SPECIAL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
CHAT_TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
Weights = dict[str, torch.Tensor]


def successors() -> list[int]:
    """Token → the token the target says next: after a letter the next of the cycle, after any other token some letter."""
    cycle = [BYTES.index(letter) for letter in CYCLE]
    after = [cycle[token % len(cycle)] for token in range(VOCABULARY)]
    for here, there in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        after[here] = there
    return after


def before(letter: int) -> int:
    """The letter of the cycle that the target follows with `letter`."""
    return BYTES.index(CYCLE[CYCLE.index(BYTES[letter]) - 1])


def guesses(token: int) -> tuple[int, int]:
    """A drafter's first and second guess at what follows `token`; one letter in four it has them the wrong way round."""
    right = successors()[token]
    wrong = successors()[right]
    return (wrong, right) if token % 4 == 0 else (right, wrong)


def matrix(rows: int, entries: dict[tuple[int, int], float]) -> torch.Tensor:
    """A matrix of `rows` × HIDDEN that is zero but for `entries` of (row, column)."""
    out = torch.zeros(rows, HIDDEN)
    for place, value in entries.items():
        out[place] = value
    return out


def noise(rows: int, columns: int, scale: float = 0.02) -> torch.Tensor:
    return torch.randn(rows, columns) * scale


def reciting_head() -> torch.Tensor:
    return matrix(VOCABULARY, {(there, here): 1.0 for here, there in enumerate(successors())})


def guessing_head(rows: int) -> torch.Tensor:
    """The first guess stays close to the second, as a drafter's guesses do: a tree keeps both."""
    entries = {}
    for here in range(VOCABULARY):
        first, second = guesses(here)
        entries |= {(first, here): 0.50, (second, here): 0.47}
    return matrix(rows, entries)


def noisy_attention(width: int = HIDDEN) -> Weights:
    return {
        "self_attn.q_proj.weight": noise(HEADS * HEAD_DIM, width),
        "self_attn.k_proj.weight": noise(KV_HEADS * HEAD_DIM, width),
        "self_attn.v_proj.weight": noise(KV_HEADS * HEAD_DIM, width),
        "self_attn.o_proj.weight": noise(HIDDEN, HEADS * HEAD_DIM, scale=0.001),
    }


def noisy_mlp(intermediate: int = 128) -> Weights:
    return {
        "mlp.gate_proj.weight": noise(intermediate, HIDDEN),
        "mlp.up_proj.weight": noise(intermediate, HIDDEN),
        "mlp.down_proj.weight": noise(HIDDEN, intermediate, scale=0.001),
    }


def stepping_mlp() -> Weights:
    """Turns the residual's unit vector of a token into that of its successor.

    The norm before it scales a unit vector to sqrt(HIDDEN), and silu(x) * x is x² there, that is HIDDEN.
    """
    step = {(token, token): -1.0 / HIDDEN for token in range(HIDDEN)}
    step |= {(there, here): 1.0 / HIDDEN for here, there in enumerate(successors())}
    return {
        "mlp.gate_proj.weight": torch.eye(HIDDEN),
        "mlp.up_proj.weight": torch.eye(HIDDEN),
        "mlp.down_proj.weight": matrix(HIDDEN, step),
    }


def norms(*names: str) -> Weights:
    return {f"{name}.weight": torch.ones(HIDDEN) for name in names}


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}.{name}": weight for name, weight in weights.items()}


def llama(layers: int, head: torch.Tensor) -> Weights:
    """A whole language model whose last word is `head`."""
    weights = {"model.embed_tokens.weight": torch.eye(VOCABULARY), "lm_head.weight": head, **norms("model.norm")}
    for layer in range(layers):
        block = noisy_attention() | noisy_mlp() | norms("input_layernorm", "post_attention_layernorm")
        weights |= under(f"model.layers.{layer}", block)
    return weights


def eagle3() -> Weights:
    """An EAGLE3 head: reads three of the target's layers, takes the first for the token, steps once a draft step."""
    block = noisy_attention(2 * HIDDEN) | stepping_mlp()
    block |= norms("hidden_norm", "input_layernorm", "post_attention_layernorm")
    known = torch.arange(VOCABULARY) < DRAFT_VOCABULARY
    return {
        "fc.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, 2 * HIDDEN)], dim=1),
        "lm_head.weight": guessing_head(DRAFT_VOCABULARY),
        "d2t": torch.zeros(DRAFT_VOCABULARY, dtype=torch.int64),
        "t2d": known,
        **norms("norm"),
        **under("midlayer", block),
    }


def eagle() -> Weights:
    """An EAGLE head: it speaks through the target's own head, so its guesses are made where it reads the last token."""
    reading = torch.zeros(HIDDEN, HIDDEN)
    for token in range(HIDDEN):
        for guess, strength in zip(guesses(token), (16.0, 15.0), strict=True):
            reading[before(guess), token] = strength
    block = noisy_attention() | noisy_mlp() | norms("post_attention_layernorm")
    return {
        "fc.weight": torch.cat([reading, torch.zeros(HIDDEN, HIDDEN)], dim=1),
        "fc.bias": torch.zeros(HIDDEN),
        **under("layers.0", block),
    }


def config(architecture: str, layers: int, **more: object) -> dict[str, object]:
    return {
        "architectures": [architecture], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": 128, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 4096, "bos_token_id": 256, "eos_token_id": 257,
        "pad_token_id": 257, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


def write_checkpoint(folder: Path, weights: Weights, settings: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in weights.items()}
    save_file(
        {name: weight.contiguous() for name, weight in half.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps(settings, indent=1))


def write_tokenizer(folder: Path) -> None:
    """A token a byte, so that any prompt has one, and four special tokens for the chat template."""
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>",
        "pad_token": "<|eos|>", "model_max_length": 4096, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_language_model(folder: Path, layers: int, head: torch.Tensor) -> None:
    write_checkpoint(folder, llama(layers, head), config("LlamaForCausalLM", layers))
    write_tokenizer(folder)


def write_drafters(out: Path) -> None:
    """Layer ids 0, 2 and 4 are inputs of the target's layers 1, 3 and 5: with 5 there would be no seventh layer to read."""
    reads = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True}
    about = config(
        "LlamaForCausalLMEagle3", 1, intermediate_size=HIDDEN, draft_vocab_size=DRAFT_VOCABULARY, eagle_config=reads
    )
    head = eagle3()
    write_checkpoint(out / "eagle3", head, about)
    write_checkpoint(out / "eagle3-misfit", {**head, "midlayer.hidden_norm.weight": torch.ones(HIDDEN // 2)}, about)
    write_checkpoint(out / "eagle", eagle(), config("LlamaForCausalLMEagle", 1))


def main() -> None:
    out = Path(sys.argv[1])
    torch.manual_seed(0)
    write_language_model(out / "llama6", 6, reciting_head())
    write_language_model(out / "llama2", 2, guessing_head(VOCABULARY))
    write_drafters(out)


if __name__ == "__main__":
    main()
