"""Facts of a plan: engine version, GPUs, target and load, as far as they can be learnt here without launching anything.

What cannot be learnt stays None, and the rules that need it wait for the server.  Not here: what follows (sweeps/rules.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.doctor.cards import read_traits
from orchestrator.engines import dialect_for
from orchestrator.errors import MachineError
from orchestrator.gpus import discover
from orchestrator.nvml import Gpu
from orchestrator.plan import Plan, Target
from orchestrator.simulator.profile import load_profile
from sweeps.architectures import rewritten
from sweeps.bounded import UnreadableError, read_bytes, read_object
from sweeps.checkpoint import CONFIG_BYTES, Checkpoint
from sweeps.facts import Attention, Facts

GIB = 2**30
GENERATIONS = {
    "A100": "sm80", "A10G": "sm86", "A10": "sm86", "L4": "sm89", "L40S": "sm89", "H100": "sm90", "H200": "sm90", "H20": "sm90",
    "GH200": "sm90", "B200": "sm100", "GB200": "sm100", "B300": "sm103", "GB300": "sm103", "RTX-PRO-6000": "sm120",
}  # fmt: skip
"""Accelerator, as `cluster.accelerator` names it → compute capability."""
FLOAT32 = ("float32", "float")
"""Its names in SGLang."""
MTP_UNDER_OTHER_NAMES = ("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration")


def facts_of(plan: Plan) -> Facts:
    """What the rules may know of this plan, from this machine's disk, driver and engine; never raises."""
    largest = max(plan.workload.concurrency)
    if plan.engine.name == "simulated":
        target = load_profile(plan.engine.profile).target
        kinds: dict[bool | None, Attention | None] = {True: "mla", False: "gqa", None: None}
        return Facts(
            version=dialect_for(plan).version, architecture=target.architecture, attention=kinds[target.latent_attention], largest_concurrency=largest
        )  # fmt: skip
    if plan.engine.name == "replay":
        return Facts(version=_version(plan), largest_concurrency=largest)
    return Facts(version=_version(plan), largest_concurrency=largest, **_gpus(plan), **_target(plan.target))


def cards_of(plan: Plan) -> list[Gpu] | None:
    """The GPUs of this machine that the plan would use; None: not known here."""
    if plan.cluster.address != "local" or plan.engine.name == "simulated":
        return None
    try:
        return discover(plan.cluster.gpus)
    except MachineError:
        return None


def _version(plan: Plan) -> str | None:
    """Asks the engine's interpreter; None where it is not on this machine."""
    try:
        return dialect_for(plan).version
    except MachineError:
        return None


def _gpus(plan: Plan) -> Mapping[str, Any]:
    cards = cards_of(plan)
    if not cards:
        return {"gpu": GENERATIONS.get(plan.cluster.accelerator)}
    memory_gib = min(card.memory_mib for card in cards) / 1024
    try:
        capability = read_traits(cards[0].uuid).capability
    except MachineError:
        capability = None
    return {"gpu": f"sm{capability[0]}{capability[1]}" if capability else None, "memory_gib": memory_gib}


def _target(asked: Target) -> Mapping[str, Any]:
    """From the target's config.json and the sizes of its files; nothing for one that is not on this disk."""
    folder = Path(asked.path)
    try:
        target = Checkpoint(asked.path, read_object(read_bytes(folder / "config.json", CONFIG_BYTES)))
    except UnreadableError:
        return {}
    architecture = target.architecture
    if architecture is None:
        return {}
    drafts_itself = architecture in MTP_UNDER_OTHER_NAMES or rewritten(architecture) is not None
    return {
        "architecture": architecture,
        "attention": "gqa" if target.whole("kv_lora_rank") is None else "mla",
        "num_attention_heads": target.whole("num_attention_heads"),
        "num_kv_heads": target.whole("num_key_value_heads"),
        "weights_gib": _weights_gib(folder, halved=_halved(target, asked.dtype)),
        "bundles_mtp": None if drafts_itself else False,
    }


def _halved(target: Checkpoint, dtype: str) -> bool:
    """Whether SGLang loads float32 weights as 16 bits, as it does whatever `dtype` is asked for (`auto`, too) but float32.

    A config that names none counts as float32 (configs/model_config.py:1649-1710 of SGLang 0.5.17).
    """
    return (target.dtype or "float32") in FLOAT32 and dtype.lower() not in FLOAT32


def _weights_gib(folder: Path, *, halved: bool) -> float | None:
    """Of the files that SGLang would load; a second copy under another name (consolidated.*) is not one of them."""
    try:
        sizes = [file.stat().st_size for file in folder.glob("model*.safetensors")]
    except OSError:
        return None
    return sum(sizes) / GIB / (2 if halved else 1) or None
