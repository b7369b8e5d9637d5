"""Whether a drafter fits a target, by their config.json and headers alone: what would fail, or run and guess nothing.

`inspect_drafter` gives what it found as Findings; an empty list of errors means fit, not good: only a sweep tells that.
Checks that hold for any drafter stand here, those of one kind in eagle3_heads.py and draft_models.py.
Sources are files of SGLang 0.5.17 unless they say otherwise.  Not here: reading files (checkpoint.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sweeps.architectures import (
    EAGLE3_CLASSES,
    EAGLE_CLASSES,
    LLAMA_EAGLE,
    LLAMA_EAGLE3,
    QWEN2_EAGLE,
    algorithm_of,
    head_in_disguise,
    only_drafts,
    rewritten,
)
from sweeps.bounded import whole
from sweeps.capabilities import can, exists
from sweeps.checkpoint import Checkpoint
from sweeps.draft_models import (
    dflash_findings,
    dspark_findings,
    eagle_findings,
    nextn_findings,
    own_layers_findings,
    standalone_findings,
)
from sweeps.eagle3_heads import eagle3_findings
from sweeps.facts import KNOWN_VERSIONS, plain_version
from sweeps.finding import Finding, error, note, shown, warning
from sweeps.pairing import Pairing

__all__ = ["algorithm_of", "inspect_drafter", "inspect_own_layers"]

OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
MISMATCH = "algorithm"
"""`check` of the finding that the algorithm is the wrong one for this drafter."""
TENSOR_PARALLEL = "tensor_parallel"
"""`check` of the finding that the drafter cannot be split over so many GPUs."""
TARGET_SPLIT = "target_split"
"""`check` of the finding that the target cannot."""

_OF_KIND: dict[str, Callable[[Pairing], Iterator[Finding]]] = {
    "EAGLE3": eagle3_findings,
    "EAGLE": eagle_findings,
    "NEXTN": nextn_findings,
    "STANDALONE": standalone_findings,
    "DFLASH": dflash_findings,
    "DSPARK": dspark_findings,
}
_HOOKS = {
    "EAGLE3": {"eagle3", "head"},
    "EAGLE": {"head"},
    "NEXTN": {"head"},
    "DFLASH": {"dflash"},
    "DSPARK": {"dspark"},
}
"""What the target's class must be able to do (capabilities.py)."""
_SIZES = (
    "hidden_size", "target_hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "draft_vocab_size", "max_position_embeddings", "num_aux_hidden_states",
)  # fmt: skip
_EXPECTED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "hidden_act",
    "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip


def inspect_drafter(
    drafter: Checkpoint,
    target: Checkpoint,
    algorithm: str | None,
    version: str,
    context_length: int | None = None,
    tp_size: int = 1,
    *,
    context_overridden: bool = False,
    quantization: str | None = None,
) -> list[Finding]:
    """Everything known against running `drafter` for `target`, the errors first.

    Args:
        algorithm: what it is to be launched as; None: what it is for.
        version: of SGLang, e.g. 0.5.17; of one that is not known, doubts are warnings.
        context_length: longest context to serve, in tokens; None: the target's own.
        tp_size: GPUs of one server.
        context_overridden: the server is told to exceed a checkpoint's own context length.
        quantization: how the server is told to quantize the target while loading it.
    """
    plain = plain_version(version)
    pairing = Pairing(drafter, target, plain, context_length, tp_size, context_overridden, quantization)
    return _sorted([*_findings(pairing, algorithm), *_unknown_version(plain)])


def inspect_own_layers(target: Checkpoint, algorithm: str, version: str) -> list[Finding]:
    """Everything known against a target that drafts for itself with layers of its own (EAGLE or NEXTN without a drafter)."""
    if unreadable := _unreadable(target):
        return unreadable
    plain = plain_version(version)
    found = own_layers_findings(target, algorithm, plain)
    pairing = Pairing(target, target, plain, None, 1)
    return _sorted([*_target_class(pairing, "NEXTN"), *found, *_unknown_version(plain)])


def _unknown_version(version: str) -> Iterator[Finding]:
    if version not in KNOWN_VERSIONS:
        yield note(
            "version", f"SGLang {shown(version)} is not one of {', '.join(KNOWN_VERSIONS)}, whose classes are known",
            "what the target's class can do is judged by theirs, and doubts are warnings",
        )  # fmt: skip


def _sorted(findings: Iterator[Finding] | list[Finding]) -> list[Finding]:
    order = ("error", "warning", "note")
    return sorted(dict.fromkeys(findings), key=lambda finding: order.index(finding.severity))


def _unreadable(checkpoint: Checkpoint) -> list[Finding]:
    """Findings after which there is nothing to look at."""
    return [finding for finding in checkpoint.findings if finding.check in ("directory", "config")]


def _findings(pairing: Pairing, algorithm: str | None) -> Iterator[Finding]:
    yield from pairing.drafter.findings
    yield from _of_target(pairing.target)
    if _unreadable(pairing.drafter):
        return
    actual = algorithm_of(pairing.drafter)
    yield from _architecture(pairing, actual)
    if actual is None:
        return
    yield from _mismatch(pairing, algorithm, actual)
    wanted = algorithm if actual == "NEXTN" and algorithm == "STANDALONE" else actual
    yield from _sizes(pairing.drafter)
    if not _unreadable(pairing.target):
        yield from _target_class(pairing, wanted)
    yield from _OF_KIND[wanted](pairing)
    for check in (_incomplete, _activation, _tensor_parallel, _target_split, _context, _rope, _dtype, _quantized_too):
        yield from check(pairing, wanted)
    yield _TRAINING


def _of_target(target: Checkpoint) -> Iterator[Finding]:
    for finding in _unreadable(target):
        yield Finding(finding.severity, "target", f"the target: {finding.what}", finding.why, finding.remedy)
    if (algorithm := only_drafts(target)) is not None:
        yield error(
            "target", f"the target's {shown(target.architecture)} is a drafter's class, for {algorithm}",
            "it drafts for a model and is none itself",
            "Were the two exchanged? The drafter stands first; target=… names the model that it drafts for.",
        )  # fmt: skip


_TRAINING = note(
    "training", "headers cannot show how well a drafter was trained",
    "a head of another target, or of little data, looks just like a good one", "A sweep ranks them: list all you have under drafters.",
)  # fmt: skip


def _architecture(pairing: Pairing, actual: str | None) -> Iterator[Finding]:
    """models/registry.py takes the class by this name."""
    drafter, version = pairing.drafter, pairing.version
    name = drafter.architecture
    if name is None:
        yield error(
            "architecture", "the drafter's config.json names no class under architectures",
            "SGLang cannot know what to load", "Write e.g. architectures: [LlamaForCausalLMEagle3] in a copy of config.json.",
        )  # fmt: skip
    elif (head := head_in_disguise(drafter)) is not None:
        right = LLAMA_EAGLE3 if head == "EAGLE3" else QWEN2_EAGLE if "Qwen2" in name else LLAMA_EAGLE
        yield error(
            "architecture", f"the drafter is an {head} head, but its config.json names the class {shown(name)}",
            "SGLang would load it as a whole language model and drop what makes it a head",
            f"Write architectures: [{right}] in a copy of config.json.",
        )  # fmt: skip
    elif actual is None or not exists(rewritten(name, version) or name, version):
        classes = {"EAGLE3": EAGLE3_CLASSES, "EAGLE": EAGLE_CLASSES}.get(actual or "", (LLAMA_EAGLE3, LLAMA_EAGLE))
        finding = error if version in KNOWN_VERSIONS else warning
        yield finding(
            "architecture", f"SGLang {version} has no class {shown(name)} that drafts", "the drafter would not load",
            f"Classes for such drafters are {', '.join(classes)}; if the tensors are the same, name one in a copy of config.json.",
        )  # fmt: skip


def _mismatch(pairing: Pairing, asked: str | None, actual: str) -> Iterator[Finding]:
    alike = {"NEXTN": "EAGLE"}  # arg_groups/speculative_hook.py:52-60
    if asked is None or alike.get(asked, asked) == alike.get(actual, actual):
        return
    if asked == "STANDALONE" and actual == "NEXTN":
        return  # said in better words by the check of STANDALONE
    silent = asked in ("EAGLE", "NEXTN") and actual == "EAGLE3"
    why = (
        "SGLang starts and serves without a word, leaves out the head's fc, and every guess is wrong: acceptance length 1.0"
        if silent
        else "SGLang would load it as what it is, and die or guess nothing"
    )
    yield error(
        MISMATCH,
        f"{shown(pairing.drafter.architecture)} is for {actual}, not for {asked}",
        why,
        f"Write algorithm: {actual}.",
    )


def _target_class(pairing: Pairing, algorithm: str) -> Iterator[Finding]:
    """The hooks that SGLang calls on the target's class; without them it dies after loading (model_runner.py:888)."""
    name, version, needs = pairing.target.architecture, pairing.version, _HOOKS.get(algorithm)
    if name is None:
        yield error(
            "target_class", "the target's config.json names no class under architectures",
            "SGLang cannot know what to load", "Copy the checkpoint again.",
        )  # fmt: skip
        return
    if needs is None:
        return
    found = can(name, version)
    if algorithm == "DSPARK" and found is not None and "dflash" in found:
        return
    if found is not None and needs <= found:
        return
    sure = version in KNOWN_VERSIONS and (found is None or "delegates" not in found)
    what = f"SGLang {version} has no class {shown(name)}" if found is None else f"{shown(name)} of SGLang {version} has no support for {algorithm} drafters"  # fmt: skip
    why = "it would serve the target without what the drafter reads of it" if found is None else "it does not hand over what the drafter reads of it"  # fmt: skip
    remedy = "Use another algorithm (STANDALONE and NGRAM need nothing of the target), or another SGLang."
    yield (error if sure else warning)("target_class", what, why, remedy)


def _sizes(drafter: Checkpoint) -> Iterator[Finding]:
    for key in _SIZES:
        value = drafter.text.get(key)
        if value is not None and whole(value) is None:
            yield error("config_value", f"{key} is {shown(value)}", "it must be a whole number", "Correct config.json.")


def _incomplete(pairing: Pairing, algorithm: str) -> Iterator[Finding]:
    absent = [key for key in _EXPECTED if key not in pairing.drafter.text]
    if algorithm in ("EAGLE3", "EAGLE") and absent:
        yield warning(
            "incomplete_config", f"the drafter's config.json does not give {', '.join(absent)}",
            "transformers' defaults stand in, and may not be what it was trained with", "Give them in a copy of config.json.",
        )  # fmt: skip


def _activation(pairing: Pairing, algorithm: str) -> Iterator[Finding]:
    """models/llama.py, LlamaMLP."""
    given = pairing.drafter.text.get("hidden_act", "silu")
    if algorithm in ("EAGLE3", "EAGLE", "DFLASH") and given != "silu":
        yield error(
            "hidden_act", f"hidden_act is {shown(given)}", "SGLang's drafters know silu only",
            "Correct config.json if the drafter was trained with silu.",
        )  # fmt: skip


def _tensor_parallel(pairing: Pairing, _: str) -> Iterator[Finding]:
    heads, size = pairing.drafter.whole("num_attention_heads"), pairing.tp_size
    groups = pairing.drafter.whole("num_key_value_heads") or heads
    wrong = [f"{heads} attention heads"] if heads and heads % size else []
    wrong += [f"{groups} key-value heads"] if groups and groups % size and size % groups else []
    if wrong:
        yield error(
            TENSOR_PARALLEL, f"the drafter's {' and '.join(wrong)} cannot be split over {size} GPUs",
            "the drafter is split like the target, and SGLang dies", "Use a tp_size that divides them.",
        )  # fmt: skip


def _target_split(pairing: Pairing, _: str) -> Iterator[Finding]:
    """models/llama.py:160-170; with latent attention key-value heads are no matter."""
    heads, size = pairing.target.whole("num_attention_heads"), pairing.tp_size
    groups = None if pairing.target.whole("kv_lora_rank") else pairing.target.whole("num_key_value_heads")
    wrong = [f"{heads} attention heads"] if heads and heads % size else []
    wrong += [f"{groups} key-value heads"] if groups and groups % size and size % groups else []
    if wrong:
        yield error(
            TARGET_SPLIT, f"the target's {' and '.join(wrong)} cannot be split over {size} GPUs", "SGLang dies",
            "Use a tp_size that divides them.",
        )  # fmt: skip


def _context(pairing: Pairing, _: str) -> Iterator[Finding]:
    """The drafter is built with the target's context length (configs/model_config.py:767-799)."""
    mine, served = pairing.drafter.context_length, pairing.served_context_length
    if mine >= served:
        return
    what = f"the drafter's context length is {mine}, and {served} is to be served"
    if pairing.context_overridden:
        yield warning(
            "context_length", what, f"{OVERRIDE} is set, so that it is exceeded", "Rows are flagged context_overridden."
        )
    else:
        yield error(
            "context_length", what, "SGLang refuses to start",
            f"Serve target.context_length={mine}; or, to exceed it on purpose, set engine.env.{OVERRIDE}=1 (rows are then flagged context_overridden).",
        )  # fmt: skip


def _rope(pairing: Pairing, algorithm: str) -> Iterator[Finding]:
    mine, theirs = pairing.drafter.rope_theta, pairing.target.rope_theta
    if algorithm in ("EAGLE3", "EAGLE") and mine is not None and theirs is not None and mine != theirs:
        yield warning(
            "rope", f"the drafter's rope_theta is {mine:g}, the target's is {theirs:g}",
            "heads are mostly trained with the target's; with another than it was trained with a head guesses worse the longer the text",
            "Check what it was trained with.",
        )  # fmt: skip


def _dtype(pairing: Pairing, _: str) -> Iterator[Finding]:
    mine, theirs = pairing.drafter.dtype, pairing.target.dtype
    if mine is not None and theirs is not None and mine != theirs:
        yield warning(
            "dtype", f"the drafter's dtype is {shown(mine)}, the target's is {shown(theirs)}",
            "both run in one server, and one is converted", "Nothing, if that is what you want.",
        )  # fmt: skip


def _quantized_too(pairing: Pairing, _: str) -> Iterator[Finding]:
    """server_args.py:4078-4093."""
    if pairing.quantization and not pairing.drafter.quantized:
        yield warning(
            "quantization", f"the server quantizes with {shown(pairing.quantization)}, and the drafter inherits that",
            "a small head loses more by it than it gains",
            "Write server_args.speculative_draft_model_quantization: unquant to keep the drafter as it is.",
        )  # fmt: skip
