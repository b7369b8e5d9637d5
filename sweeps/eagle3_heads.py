"""Checks of EAGLE3 heads: what they read of the target, what they say, and whether their tensors are all there.

Sources are files of SGLang 0.5.17; 0.5.23 does the same.  Not here: what holds for any drafter (drafter.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sweeps.architectures import LLAMA_EAGLE3
from sweeps.bounded import whole
from sweeps.finding import Finding, error, shown, warning
from sweeps.pairing import Pairing, Shape, block, misshapen, missing, times, unexpected

IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT_AUX = 3
"""Layers that are captured when the config names none: 2, n/2 and n-3 (models/llama.py:885-897)."""
KEEPS_IDS = ("Deepseek", "Kimi", "GlmMoeDsa", "Glm4MoeLite", "MistralLarge3", "Pixtral")
"""Classes that add 1 to the layer ids only when the first is 1 (models/deepseek_v2.py:3134-3150)."""


def eagle3_findings(pairing: Pairing) -> Iterator[Finding]:
    found = [*_width(pairing), *_aux_layers(pairing), *_vocabularies(pairing)]
    yield from found
    if pairing.drafter.tensors is not None:
        yield from _tensors(pairing, {finding.check for finding in found})


def _feature_width(pairing: Pairing) -> int | None:
    """Numbers a token that the head expects of each of the target's layers."""
    return pairing.drafter.whole("target_hidden_size") or pairing.hidden


def _width(pairing: Pairing) -> Iterator[Finding]:
    mine, theirs = _feature_width(pairing), pairing.target.whole("hidden_size")
    if mine is not None and theirs is not None and mine != theirs:
        name = "target_hidden_size" if pairing.drafter.whole("target_hidden_size") else "hidden_size"
        yield error(
            "hidden_size", f"the drafter's {name} is {mine}, the target's hidden_size is {theirs}",
            "the head reads the target's hidden states, and they do not go into it",
            "Use a drafter that was trained for this target.",
        )  # fmt: skip


def _eagle_config(pairing: Pairing) -> dict[str, Any]:
    given = pairing.drafter.config.get("eagle_config")
    return given if isinstance(given, dict) else {}


def _layer_ids(pairing: Pairing) -> Any:
    """The ids that decide: the nested ones, else (for counting alone) those at the wrong place."""
    nested = _eagle_config(pairing).get(IDS)
    return nested if nested is not None else pairing.drafter.config.get(IDS)


def _num_aux(pairing: Pairing) -> int:
    """Features that the head's fc takes (models/llama_eagle3.py:140-146)."""
    ids = _layer_ids(pairing)
    return pairing.drafter.whole("num_aux_hidden_states") or (
        len(ids) if isinstance(ids, list) and ids else DEFAULT_AUX
    )


def _aux_layers(pairing: Pairing) -> Iterator[Finding]:
    nested, outside = _eagle_config(pairing).get(IDS), pairing.drafter.config.get(IDS)
    if nested is None and outside is not None:
        yield error(
            "aux_layers_place", f"{IDS} stands at the top of config.json, as {shown(outside)}",
            "SGLang reads it inside eagle_config only, and captures its default layers instead",
            f"In a copy of config.json write eagle_config: {{{IDS}: {shown(outside)}, use_aux_hidden_state: true}}.",
        )  # fmt: skip
    elif nested is not None:
        yield from _ids(pairing, nested)
    if _eagle_config(pairing).get("use_aux_hidden_state", True) is False:
        yield error(
            "aux_hidden_state", "eagle_config.use_aux_hidden_state is false",
            "the target then hands over its last hidden state only, and the head leaves out its fc without a word",
            "Set it to true in a copy of config.json, if the head was trained on several layers.",
        )  # fmt: skip
    yield from _count(pairing, nested)


def _ids(pairing: Pairing, nested: Any) -> Iterator[Finding]:
    numbers = [whole(value) for value in nested] if isinstance(nested, list) else [None]
    ids = [number for number in numbers if number is not None]
    layers, name = pairing.target_layers, pairing.target.architecture or ""
    what = f"eagle_config.{IDS} is {shown(nested)}"
    remedy = "Use a drafter that was trained for this target, or correct the ids in a copy of config.json."
    if not ids or len(ids) < len(numbers):
        yield error("aux_layers", what, "it must be a list of layer numbers of the target", remedy)
    elif ids != sorted(set(ids)):
        yield error("aux_layers", what, "the ids must ascend, each once: layers are captured in their order", remedy)
    elif layers is not None and ids[-1] > (last := _last_id(name, ids, layers)):
        why = f"the target has {layers} layers, so that the highest id is {last}: id i is the output of layer i, read where layer i+1 begins"  # fmt: skip
        yield error("aux_layers", what, why, remedy)


def _last_id(target_class: str, ids: list[int], layers: int) -> int:
    """The highest id that is captured (models/llama.py:897, deepseek_v2.py:3146, gpt_oss.py:1340)."""
    if target_class.startswith("GptOss"):
        return layers
    return layers - 1 if target_class.startswith(KEEPS_IDS) and ids[0] != 1 else layers - 2


def _count(pairing: Pairing, nested: Any) -> Iterator[Finding]:
    asked = pairing.drafter.whole("num_aux_hidden_states")
    captured = len(nested) if isinstance(nested, list) else DEFAULT_AUX
    if asked is not None and asked != captured and captured:
        yield error(
            "aux_layers", f"num_aux_hidden_states is {asked}, and {captured} layers are captured",
            "the head's fc does not take what the target hands over",
            f"Give one id in eagle_config.{IDS} for each.",
        )  # fmt: skip
    elif _num_aux(pairing) == 1 and _feature_width(pairing) == pairing.hidden:
        yield error(
            "aux_layers", "the head reads one layer of the target",
            "SGLang leaves out fc where its input is as wide as its output, without a word",
            "Use a head of several layers.",
        )  # fmt: skip


def _vocabularies(pairing: Pairing) -> Iterator[Finding]:
    drafter, mine, theirs = pairing.drafter, pairing.drafter.whole("vocab_size"), pairing.target.whole("vocab_size")
    if mine is not None and theirs is not None and mine != theirs:
        yield error(
            "vocabulary", f"the drafter's vocab_size is {mine}, the target's is {theirs}",
            "the head takes the target's embedding", "Use a drafter that was trained for this target.",
        )  # fmt: skip
    tied, draft = drafter.flag("tie_word_embeddings"), drafter.whole("draft_vocab_size")
    if tied and draft is not None and mine is not None and draft != mine:
        yield error(
            "tie_word_embeddings", f"tie_word_embeddings is true, though draft_vocab_size {draft} is not vocab_size {mine}",
            "SGLang then uses the embedding as output head and never loads the trained one",
            "Set tie_word_embeddings to false in a copy of config.json.",
        )  # fmt: skip
    elif tied and "lm_head.weight" in (drafter.tensors or {}):
        yield error(
            "tie_word_embeddings", "tie_word_embeddings is true, though the files hold lm_head.weight",
            "SGLang then uses the embedding as output head and never loads the trained one",
            "Set tie_word_embeddings to false in a copy of config.json.",
        )  # fmt: skip
    if not tied and "draft_vocab_size" not in drafter.config and drafter.architecture == LLAMA_EAGLE3:
        yield error(
            "draft_vocabulary", "config.json has no draft_vocab_size", "SGLang's class reads it and dies without it",
            "Give the rows of lm_head.weight, or null when the head shares the target's output head.",
        )  # fmt: skip
    if draft is not None and mine is not None and draft > mine:
        yield error(
            "draft_vocabulary", f"draft_vocab_size {draft} is above vocab_size {mine}",
            "a head cannot say more tokens than the target knows", "Correct config.json.",
        )  # fmt: skip


def _tensors(pairing: Pairing, wrong: set[str]) -> Iterator[Finding]:
    """`wrong`: checks that the config failed; what follows from them is not said again."""
    tensors, wanted = pairing.tensors(), _wanted(pairing)
    head = _head_shapes(pairing)
    yield from missing(tensors, {**wanted, **{name: shape for name, shape in head.items() if name != "d2t"}})
    yield from _dropped_norms(pairing, tensors)
    yield from unexpected(tensors, wanted, ("embed_tokens.", "lm_head.", "d2t", "t2d", "fc_norm.", "input_norm."))
    yield from _dropped_biases(pairing)
    if not wrong & {"hidden_size", "aux_layers"}:
        yield from _fc(pairing, tensors)
    if "hidden_size" not in wrong:
        yield from misshapen(pairing, tensors, {name: shape for name, shape in wanted.items() if name != "fc.weight"})
    if not wrong & {"hidden_size", "vocabulary", "draft_vocabulary", "tie_word_embeddings"}:
        yield from _output(pairing, tensors, head)


def _wanted(pairing: Pairing) -> dict[str, Shape]:
    """Every tensor but those of the output, with its shape."""
    drafter, hidden, aux = pairing.drafter, pairing.hidden, _num_aux(pairing)
    shapes: dict[str, Shape] = {"fc.weight": (hidden, times(_feature_width(pairing), aux)), "norm.weight": (hidden,)}
    for layer in range(pairing.layers):
        shapes |= block(pairing, layer, times(hidden, 2) if layer == 0 else hidden)
        shapes[f"layers.{layer}.hidden_norm.weight"] = (hidden,)
    shapes["layers.0.input_layernorm.weight"] = (hidden,)
    if _normed_before_fc(pairing):
        shapes["input_norm.weight"] = (times(_feature_width(pairing), aux),)
    if _normed_each(pairing):
        shapes |= {f"fc_norm.{index}.weight": (_feature_width(pairing),) for index in range(min(aux, 64))}
    own_embedding = drafter.whole("target_hidden_size") not in (None, hidden)
    return {**shapes, "embed_tokens.weight": (drafter.whole("vocab_size"), hidden)} if own_embedding else shapes


def _normed_before_fc(pairing: Pairing) -> bool:
    return bool(_eagle_config(pairing).get("norm_before_fc", pairing.drafter.config.get("norm_before_fc")))


def _normed_each(pairing: Pairing) -> bool:
    return bool(pairing.drafter.config.get("fc_norm") or pairing.drafter.config.get("use_aux_norm"))


def _dropped_norms(pairing: Pairing, tensors: Any) -> Iterator[Finding]:
    switches = (
        ("fc_norm.", _normed_each(pairing), "fc_norm"),
        ("input_norm.", _normed_before_fc(pairing), "norm_before_fc"),
    )
    for beginning, on, switch in switches:
        if not on and (names := [name for name in tensors if name.startswith(beginning)]):
            yield error(
                "norm_switch", f"the files hold {names[0]}, and config.json does not switch {switch} on",
                "SGLang drops the norm without a word, though the head was trained with it",
                f"Set {switch}: true in a copy of config.json.",
            )  # fmt: skip


def _dropped_biases(pairing: Pairing) -> Iterator[Finding]:
    """SGLang makes q, k and v of the head without a bias (models/llama_eagle3.py:60-69)."""
    names = [n for n in pairing.drafter.tensors or {} if n.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))]
    if names:
        yield warning(
            "unexpected_tensors", f"the drafter's files hold {names[0]}, and SGLang's class has no bias there",
            "SGLang drops it without a word; a drafter that was trained with it guesses worse",
        )  # fmt: skip


def _fc(pairing: Pairing, tensors: Any) -> Iterator[Finding]:
    if "fc.weight" not in tensors or pairing.drafter.quantized:
        return
    shape, width, aux = tensors["fc.weight"].shape, _feature_width(pairing), _num_aux(pairing)
    wanted = (pairing.hidden, times(width, aux))
    if None not in wanted and shape != wanted:
        yield error(
            "fc_width", f"fc.weight is {list(shape)}, and {aux} layers of {width} numbers need {list(wanted)}",
            "the head was trained on another number of the target's layers, or on another target",
            f"Give the layers it was trained on in eagle_config.{IDS}, or use another drafter.",
        )  # fmt: skip


def _head_shapes(pairing: Pairing) -> dict[str, Shape]:
    """lm_head and d2t, where the head has its own."""
    drafter, rows = pairing.drafter, pairing.drafter.whole("draft_vocab_size")
    if drafter.flag("tie_word_embeddings") or rows is None:
        return {}
    return {"lm_head.weight": (rows, pairing.hidden), "d2t": (rows,)}


def _output(pairing: Pairing, tensors: Any, head: dict[str, Shape]) -> Iterator[Finding]:
    rows, vocabulary = pairing.drafter.whole("draft_vocab_size"), pairing.drafter.whole("vocab_size")
    if "d2t" in head and "d2t" not in tensors and rows is not None and vocabulary is not None and rows < vocabulary:
        yield error(
            "d2t", f"the files lack d2t, though the head says {rows} of {vocabulary} tokens",
            "without the map its tokens are taken for the target's first ones, and none is right",
            "Copy the checkpoint again, or export it with its vocabulary map.",
        )  # fmt: skip
    wrong = [
        f"{name} is {list(tensors[name].shape)}"
        for name, shape in head.items()
        if name in tensors and None not in shape and tensors[name].shape != shape and not pairing.drafter.quantized
    ]
    if wrong:
        yield error(
            "draft_vocabulary", f"draft_vocab_size is {rows}, hidden_size is {pairing.hidden}, and {' and '.join(wrong)}",
            "the output head would not load, or its tokens mean others", "Correct draft_vocab_size in a copy of config.json.",
        )  # fmt: skip
