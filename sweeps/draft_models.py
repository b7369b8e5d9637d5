"""Checks of the drafters that are no EAGLE3 heads: EAGLE heads, layers of the target's own (NEXTN), whole small models
(STANDALONE), and those that draft a block at once (DFLASH, DSPARK).

Sources are files of SGLang 0.5.17.  Not here: what holds for any drafter (drafter.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sweeps.architectures import LLAMA_EAGLE, QWEN2_EAGLE, rewritten
from sweeps.bounded import whole
from sweeps.checkpoint import Checkpoint
from sweeps.finding import Finding, error, shown, warning
from sweeps.pairing import Pairing, Shape, block, misshapen, missing, times, unexpected

MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")
MTP_NAMES = ("mtp.", "mtp_", ".eh_proj", ".enorm", ".nextn", "nextn.")
"""Parts of the names of tensors that predict further tokens (models/*_mtp.py, *_nextn.py)."""


# EAGLE


def eagle_findings(pairing: Pairing) -> Iterator[Finding]:
    """models/llama_eagle.py, qwen2_eagle.py."""
    found = [*_same_width(pairing), *_same_vocabulary(pairing)]
    yield from found
    if pairing.drafter.tensors is None or pairing.drafter.architecture not in (LLAMA_EAGLE, QWEN2_EAGLE):
        return
    tensors, wanted, hidden = dict(pairing.drafter.tensors), _eagle_tensors(pairing), pairing.hidden
    yield from missing(tensors, wanted)
    yield from unexpected(tensors, wanted, ("embed_tokens.", "lm_head.", "layers.0.input_layernorm."))
    if "fc.weight" in tensors and "fc.bias" not in tensors and pairing.drafter.architecture == LLAMA_EAGLE:
        yield warning(
            "fc_bias", "the files lack fc.bias", "SGLang's class has one and leaves it at its initial values",
            "Add a fc.bias of zeros to the checkpoint.",
        )  # fmt: skip
    if found:
        return
    if "fc.weight" in tensors and hidden and tensors["fc.weight"].shape != (hidden, 2 * hidden):
        yield error(
            "fc_width", f"fc.weight is {list(tensors['fc.weight'].shape)}, an EAGLE head of width {hidden} has {[hidden, 2 * hidden]}",
            "the head was trained as something else, or for another target",
            "Use EAGLE3 for a head that reads several layers of the target.",
        )  # fmt: skip
    yield from misshapen(pairing, tensors, {name: shape for name, shape in wanted.items() if name != "fc.weight"})


def _eagle_tensors(pairing: Pairing) -> dict[str, Shape]:
    hidden = pairing.hidden
    shapes: dict[str, Shape] = {"fc.weight": (hidden, times(hidden, 2))}
    for layer in range(pairing.layers):
        shapes |= block(pairing, layer, hidden)
        if layer > 0:
            shapes[f"layers.{layer}.input_layernorm.weight"] = (hidden,)
    return shapes


def _same_width(pairing: Pairing) -> Iterator[Finding]:
    mine, theirs = pairing.hidden, pairing.target.whole("hidden_size")
    if mine is not None and theirs is not None and mine != theirs:
        yield error(
            "hidden_size", f"the drafter's hidden_size is {mine}, the target's is {theirs}",
            "the drafter reads the target's hidden states and takes its embedding, and they do not go into it",
            "Use a drafter that was trained for this target.",
        )  # fmt: skip


def _same_vocabulary(pairing: Pairing) -> Iterator[Finding]:
    mine, theirs = pairing.drafter.whole("vocab_size"), pairing.target.whole("vocab_size")
    if mine is not None and theirs is not None and mine != theirs:
        yield error(
            "vocabulary", f"the drafter's vocab_size is {mine}, the target's is {theirs}",
            "the drafter takes the target's embedding and output head", "Use a drafter that was trained for this target.",
        )  # fmt: skip


# NEXTN


def nextn_findings(pairing: Pairing) -> Iterator[Finding]:
    drafter = pairing.drafter
    if drafter.architecture and not drafter.architecture.endswith("AssistantForCausalLM"):
        yield from [*_same_width(pairing), *_same_vocabulary(pairing)]
        yield from _mtp_layers(drafter)


def own_layers_findings(target: Checkpoint, algorithm: str, version: str) -> Iterator[Finding]:
    """Of a target that is to draft for itself."""
    if target.architecture is None or target.architecture.startswith(("MistralLarge3", "Pixtral")):
        return
    if rewritten(target.architecture, version) is None:
        yield error(
            "mtp_layers", f"{algorithm} is asked for without a drafter, and the target {shown(target.architecture)} has no layers of its own that draft",
            "SGLang would load the target a second time as its own drafter and die", "Name a drafter.",
        )  # fmt: skip
    else:
        yield from _mtp_layers(target)


def _mtp_layers(checkpoint: Checkpoint) -> Iterator[Finding]:
    counts = {key: checkpoint.whole(key) for key in MTP_LAYERS if key in checkpoint.text}
    none = [key for key, count in counts.items() if count == 0]
    if none:
        yield error(
            "mtp_layers", f"{none[0]} is 0", "the checkpoint has no layers that predict further tokens",
            "Use a checkpoint that kept them, or another algorithm.",
        )  # fmt: skip
    elif checkpoint.tensors is not None and not _has_mtp_tensors(checkpoint):
        yield error(
            "mtp_layers", "none of its tensors belongs to a layer that predicts further tokens",
            "uploads that were quantized anew often drop these layers; SGLang would start with initial values",
            "Use a checkpoint that kept them, or another algorithm.",
        )  # fmt: skip


def _has_mtp_tensors(checkpoint: Checkpoint) -> bool:
    last = f".layers.{checkpoint.whole('num_hidden_layers')}."
    return any(last in f".{name}" or any(part in f".{name}" for part in MTP_NAMES) for name in checkpoint.tensors or {})


# STANDALONE


def standalone_findings(pairing: Pairing) -> Iterator[Finding]:
    """speculative/standalone_worker_v2.py:188-218; its comparison of tokenizers is never reached."""
    drafter, name = pairing.drafter, pairing.drafter.architecture or ""
    if (other := rewritten(name, pairing.version)) is not None:
        yield error(
            "architecture", f"given as a drafter, {shown(name)} is loaded as {other}",
            "SGLang takes it for layers that predict further tokens, not for a model of its own",
            "Use a plain dense model, e.g. of LlamaForCausalLM or Qwen2ForCausalLM.",
        )  # fmt: skip
    mine, theirs = drafter.whole("vocab_size"), pairing.target.whole("vocab_size")
    if mine is not None and theirs is not None and mine != theirs:
        yield error(
            "vocabulary", f"the drafter's vocab_size is {mine}, the target's is {theirs}",
            "STANDALONE needs the very same vocabulary, padding included",
            "Use a drafter with the target's tokenizer and vocab_size.",
        )  # fmt: skip
    else:
        yield from _same_tokens(drafter.vocabulary, pairing.target.vocabulary)
    yield from _as_large(drafter, pairing.target)
    untied = drafter.text.get("tie_word_embeddings") is False
    if untied and drafter.tensors is not None and not any("lm_head" in name for name in drafter.tensors):
        yield error(
            "tie_word_embeddings", "tie_word_embeddings is false, and the files lack lm_head.weight",
            "the output head stays at its initial values", "Copy the checkpoint again.",
        )  # fmt: skip


def _as_large(drafter: Checkpoint, target: Checkpoint) -> Iterator[Finding]:
    """By their files, which for a model given as its own drafter are the same; packed weights cannot be counted."""
    mine, theirs = drafter.parameters, target.parameters
    if mine and theirs and mine >= theirs and not (drafter.quantized or target.quantized):
        same = drafter.fingerprint and drafter.fingerprint == target.fingerprint
        alike = (
            "is the target itself"
            if same
            else f"has {mine / 1e9:.2f} billion parameters, the target {theirs / 1e9:.2f}"
        )
        yield warning(
            "size", f"the drafter {alike}", "each of its steps takes as long as one of the target's, so that nothing can be gained",
            "Use a model of a tenth of the target's size or less; if the two were exchanged, the drafter stands first.",
        )  # fmt: skip


def _same_tokens(mine: Mapping[str, int] | None, theirs: Mapping[str, int] | None) -> Iterator[Finding]:
    if mine is None or theirs is None:
        whose = "drafter" if mine is None else "target"
        yield warning(
            "tokenizer", f"the {whose} has no tokenizer.json that could be compared",
            "vocabularies of the same size may number their tokens differently, and SGLang does not look",
            "Compare them yourself.",
        )  # fmt: skip
    elif mine != theirs:
        different = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
        example = different[0]
        yield error(
            "tokenizer", f"same size, different mapping: {len(different)} tokens differ, e.g. {shown(example)} is {mine.get(example)} in the drafter and {theirs.get(example)} in the target",
            "the drafter's guesses mean other words to the target, and SGLang does not look",
            "Use a drafter with the target's own tokenizer.",
        )  # fmt: skip


# Blocks


def dflash_findings(pairing: Pairing) -> Iterator[Finding]:
    """speculative/dflash_utils.py:449-530, models/dflash.py:287-343."""
    yield from _same_width(pairing)
    yield from _target_layers(pairing, _of(pairing, "dflash_config", "target_layer_ids"), "target_layer_ids")
    yield from _block_size(_of(pairing, "dflash_config", "block_size"), "block_size")
    yield from _mask_token(pairing, _inside(pairing, "dflash_config").get("mask_token_id"), needed=False)
    trained, layers = _of(pairing, "dflash_config", "num_target_layers"), pairing.target_layers
    if trained is not None and layers is not None and trained != layers:
        yield warning(
            "target_layers", f"the drafter was trained on a target of num_target_layers {shown(trained)}, this one has {layers}",
            "it reads other layers than it was trained on", "Use a drafter that was trained for this target.",
        )  # fmt: skip
    if pairing.drafter.tensors is not None:
        yield from _dflash_tensors(pairing)


def _dflash_tensors(pairing: Pairing) -> Iterator[Finding]:
    hidden, tensors = pairing.hidden, pairing.tensors()
    wanted: dict[str, Shape] = {"fc.weight": (hidden, None), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for layer in range(pairing.layers):
        wanted |= {
            f"layers.{layer}.{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")
        }
        wanted |= {f"layers.{layer}.self_attn.{name}.weight": (None, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}  # fmt: skip
    yield from missing(tensors, wanted)
    ids, fc = _of(pairing, "dflash_config", "target_layer_ids"), tensors.get("fc.weight")
    if isinstance(ids, list) and fc is not None and hidden and fc.shape != (hidden, hidden * len(ids)):
        yield error(
            "fc_width", f"fc.weight is {list(fc.shape)}, and {len(ids)} layers of {hidden} numbers need {[hidden, hidden * len(ids)]}",
            "the drafter was trained on another number of the target's layers",
            "Correct target_layer_ids in a copy of config.json, or use another drafter.",
        )  # fmt: skip


def dspark_findings(pairing: Pairing) -> Iterator[Finding]:
    """speculative/dspark_components/dspark_config.py:76-200."""
    rank = _first(pairing, "markov_rank", "dspark_markov_rank")
    if not whole(rank):
        yield error(
            "markov_rank", f"markov_rank is {shown(rank)}", "DSPARK needs one above 0",
            "Use a checkpoint that was trained for DSPARK.",
        )  # fmt: skip
    yield from _target_layers(
        pairing, _first(pairing, "target_layer_ids", "dspark_target_layer_ids"), "target_layer_ids"
    )
    yield from _block_size(_first(pairing, "block_size", "dspark_block_size"), "block_size")
    yield from _mask_token(pairing, _first(pairing, "mask_token_id", "dspark_noise_token_id"), needed=True)


def _inside(pairing: Pairing, section: str) -> dict[str, Any]:
    given = pairing.drafter.config.get(section)
    return given if isinstance(given, dict) else {}


def _of(pairing: Pairing, section: str, key: str) -> Any:
    """A key of the section, else of the top of config.json."""
    return _inside(pairing, section).get(key, pairing.drafter.config.get(key))


def _first(pairing: Pairing, key: str, prefixed: str) -> Any:
    places = (_inside(pairing, "dspark_config"), _inside(pairing, "dflash_config"), pairing.drafter.config)
    values = [place.get(key) for place in places] + [pairing.drafter.config.get(prefixed)]
    return next((value for value in values if value is not None), None)


def _target_layers(pairing: Pairing, ids: Any, key: str) -> Iterator[Finding]:
    layers = pairing.target_layers
    if ids is None:
        return
    numbers = [whole(value) for value in ids] if isinstance(ids, list) else [None]
    if not numbers or None in numbers or (layers is not None and any(n is not None and n >= layers for n in numbers)):
        yield error(
            "target_layers", f"{key} is {shown(ids)}", f"it must name layers of the target, which has {layers or 'some'}",
            "Use a drafter that was trained for this target.",
        )  # fmt: skip


def _block_size(size: Any, key: str) -> Iterator[Finding]:
    if size is not None and not whole(size):
        yield error("block_size", f"{key} is {shown(size)}", "a block has at least one token", "Correct config.json.")


def _mask_token(pairing: Pairing, token: Any, needed: bool) -> Iterator[Finding]:
    vocabulary = pairing.target.whole("vocab_size")
    if token is None and not needed:
        return
    number = whole(token)
    if number is None or (vocabulary is not None and number >= vocabulary):
        yield error(
            "mask_token", f"mask_token_id is {shown(token)}, the target's vocab_size is {vocabulary}",
            "the token that marks a place to be guessed must be one of the target's",
            "Use a drafter that was trained for this target.",
        )  # fmt: skip
