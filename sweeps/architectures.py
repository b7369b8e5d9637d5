"""Architectures: which algorithm a drafter is for, by the class that its config.json names.

SGLang takes the drafter's class from its checkpoint, whatever algorithm it is told; so the class decides what the drafter
is, and an algorithm that does not go with it loads and guesses nothing, or crashes.  Source: the EntryClass of models/*.py
and configs/model_config.py:577-700, 0.5.17 and 0.5.23.  Not here: whether the drafter fits the target (drafter.py).
"""

from __future__ import annotations

from sweeps.capabilities import exists
from sweeps.checkpoint import Checkpoint

LLAMA_EAGLE3 = "LlamaForCausalLMEagle3"
MLA_EAGLE3 = "Eagle3DeepseekV2ForCausalLM"
EAGLE3_CLASSES = (LLAMA_EAGLE3, MLA_EAGLE3)
LLAMA_EAGLE = "LlamaForCausalLMEagle"
QWEN2_EAGLE = "Qwen2ForCausalLMEagle"
EAGLE_CLASSES = (LLAMA_EAGLE, QWEN2_EAGLE, "MistralForCausalLMEagle", "MistralLarge3ForCausalLMEagle")
DFLASH_CLASSES = (
    "DFlashDraftModel", "DFlashLagunaForCausalLM", "DFlash2DraftModel", "DFlash2BeamDraftModel",
    "MiniMaxDFlash2DraftModel", "MuseGlimmerAssistantModel", "LiLiCorrDraftModel",
)  # fmt: skip
DSPARK_CLASSES = (
    "DSparkDraftModel", "Qwen3DSparkModel", "DeepseekV4ForCausalLMDSpark", "LingDSparkModel", "DSparkMiniMaxDraftModel",
    "Lfm2DSparkDraftModel",
)  # fmt: skip
ASSISTANT_CLASSES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
"""Started as EAGLE or NEXTN, they run as FROZEN_KV_MTP."""

_REWRITTEN = {
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLMNextN",
    "BailingMoeV2ForCausalLM": "BailingMoeForCausalLMNextN",
    "BailingMoeV2_5ForCausalLM": "BailingMoeForCausalLMNextN",
    "BailingMoeV3ForCausalLM": "BailingMoeForCausalLMNextN",
    "MiMoV2FlashForCausalLM": "MiMoV2MTP",
    "Step3p7ForConditionalGeneration": "Step3p5MTP",
    "NemotronHPuzzleForCausalLM": "NemotronHForCausalLMMTP",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5MoeForCausalLM": "Qwen3_5ForCausalLMMTP",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen4ExpForConditionalGeneration": "Qwen4ExpForCausalLMMTP",
}
"""Model classes whose layers for several tokens at once have a class of another name; the rest follow from their names."""


def algorithm_of(drafter: Checkpoint) -> str | None:
    """The algorithm this drafter is for; None when its config.json names no class that drafts.

    A head that goes by the name of a whole language model is known by what only heads have.
    """
    name = drafter.architecture
    if name is None:
        return None
    for algorithm, classes in _BY_CLASS.items():
        if name in classes:
            return algorithm
    if name.endswith(("NextN", "MTP")):
        return "NEXTN"
    if "eagle3" in name.lower():
        return "EAGLE3"
    if "eagle" in name.lower():
        return "EAGLE"
    if (head := head_in_disguise(drafter)) is not None:
        return head
    if rewritten(name) is not None:
        return "NEXTN"
    return "STANDALONE" if name.endswith(("ForCausalLM", "ForConditionalGeneration")) else None


_BY_CLASS = {
    "EAGLE3": EAGLE3_CLASSES,
    "EAGLE": EAGLE_CLASSES,
    "DFLASH": DFLASH_CLASSES,
    "DSPARK": DSPARK_CLASSES,
    "NEXTN": ASSISTANT_CLASSES,
}


def only_drafts(model: Checkpoint) -> str | None:
    """The algorithm of a checkpoint that does nothing but draft, by its config.json, so that it cannot be a target."""
    name, algorithm = model.architecture or "", algorithm_of(Checkpoint(model.path, model.config))
    layers = name in ASSISTANT_CLASSES or name.endswith(("NextN", "MTP"))
    return algorithm if layers or algorithm in ("EAGLE3", "EAGLE", "DFLASH", "DSPARK") else None


def head_in_disguise(drafter: Checkpoint) -> str | None:
    """EAGLE3 or EAGLE for a head whose config.json names the class of a whole language model."""
    name, tensors = drafter.architecture or "", drafter.tensors or {}
    if not name.endswith("ForCausalLM") or name in (*EAGLE3_CLASSES, *EAGLE_CLASSES):
        return None
    if "draft_vocab_size" in drafter.config or "eagle_config" in drafter.config or "d2t" in tensors:
        return "EAGLE3"
    return "EAGLE" if "fc.weight" in tensors else None


def rewritten(model_class: str, version: str = "") -> str | None:
    """The class that SGLang loads instead when a checkpoint of this class is given as a drafter; None: no other.

    Without a version: of any that is known.
    """
    stem = model_class.removesuffix("ForCausalLM")
    names = [_REWRITTEN.get(model_class, ""), f"{model_class}NextN", f"{model_class}MTP", f"{stem}MTP"]
    return next((name for name in names if name != model_class and exists(name, version)), None)
