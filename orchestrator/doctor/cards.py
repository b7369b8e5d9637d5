"""GPUs: which there are, what they are capable of, what is in use and by whom.  Nothing on a card is ever touched."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.doctor.check import Check, green, red, yellow
from orchestrator.errors import MachineError
from orchestrator.gpus import GpuSet, discover, processes, silent, used_mib
from orchestrator.nvml import Gpu, Nvml
from orchestrator.serving.processes import all_marked

IDLE_MIB = 512
"""What a card shows in use when nobody is on it, drivers that count their own memory in included."""
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Traits:
    """What the driver says of a card beside its name; None: it does not say."""

    capability: tuple[int, int] | None
    """CUDA compute capability, e.g. (9, 0)."""
    mig: bool | None
    """Cut into slices."""


def read_traits(uuid: str) -> Traits:
    """Raises MachineError when the card does not answer."""
    try:
        n = importlib.import_module("pynvml")
    except ImportError:
        return Traits(None, None)
    try:
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByUUID(uuid)
        major, minor = n.nvmlDeviceGetCudaComputeCapability(handle)
    except n.NVMLError as error:
        raise MachineError(f"NVML cannot ask GPU {uuid} what it is: {error}") from error
    try:
        return Traits((major, minor), bool(n.nvmlDeviceGetMigMode(handle)[0]))
    except n.NVMLError:  # a card that has no MIG
        return Traits((major, minor), None)


def gpus(
    asked: str | Sequence[str] = "all",
    required: bool | None = None,
    nvml: Nvml | None = None,
    traits: Callable[[str], Traits] = read_traits,
) -> list[Check]:
    """Every card that `cluster.gpus` means.

    Args:
        asked: As `cluster.gpus`.
        required: Whether the conf needs them; None: no conf is known.
    """
    try:
        cards, lost = discover("all" if asked == "none" else asked, nvml), silent(nvml)
    except MachineError as error:
        return [_none(str(error), required)]
    known = {card.uuid: _traits(card, traits) for card in cards}
    checks = [_kinds(cards, known), *map(_lost, lost), *_mig(cards, known, required), *_old(cards, known)]
    return checks + [_use(card, required, nvml) for card in cards]


def _traits(card: Gpu, traits: Callable[[str], Traits]) -> Traits:
    try:
        return traits(card.uuid)
    except MachineError:  # the look at its memory says so
        return Traits(None, None)


def _none(why: str, required: bool | None) -> Check:
    remedy = "Choose the GPUs with cluster.gpus, see that nvidia-smi works here, or go without: engine.name=simulated."
    if required is False:
        return green("GPUs", f"none needed ({why.split(';')[0]})")
    return (red if required else yellow)("GPUs", why, remedy)


def _lost(why: str) -> Check:
    return yellow("lost GPU", why, "A sweep goes on without it; its administrator may reset it.")


def _kinds(cards: list[Gpu], known: dict[str, Traits]) -> Check:
    kinds: dict[str, int] = {}
    for card in cards:
        capability = known[card.uuid].capability
        able = f"compute capability {capability[0]}.{capability[1]}" if capability else "compute capability unknown"
        kind = f"{card.name} ({card.memory_mib / 1024:.0f} GiB, {able})"
        kinds[kind] = kinds.get(kind, 0) + 1
    what = f"{', '.join(f'{count} x {kind}' for kind, count in kinds.items())}; driver {cards[0].driver_version}"
    if len(kinds) > 1:
        return yellow("GPUs", what, "A run compares figures of one kind of GPU: choose with cluster.gpus=[0,1].")
    return green("GPUs", what)


def _mig(cards: list[Gpu], known: dict[str, Traits], required: bool | None) -> list[Check]:
    cut = ", ".join(str(card.index) for card in cards if known[card.uuid].mig)
    if not cut:
        return []
    say = red if required else yellow
    return [say("MIG", f"on for GPU {cut}: only whole GPUs are supported", "Choose others with cluster.gpus, or have its administrator switch MIG off.")]  # fmt: skip


def _old(cards: list[Gpu], known: dict[str, Traits]) -> list[Check]:
    old = [str(card) for card in cards if (known[card.uuid].capability or LEAST_CAPABILITY) < LEAST_CAPABILITY]
    if not old:
        return []
    return [yellow("capability", f"below 8.0: {', '.join(old)}", "Many attention backends have no kernels for it: keep space.attention_backend to triton, or choose others.")]  # fmt: skip


def _use(card: Gpu, required: bool | None, nvml: Nvml | None) -> Check:
    name, one = f"GPU {card.index}", GpuSet((card.id,))
    try:
        used, there = used_mib(one, nvml)[card.id], processes(one, nvml)
    except MachineError as error:
        return (yellow if required is None else red)(name, str(error), "Leave it out with cluster.gpus; its administrator may reset it.")  # fmt: skip
    ours = dict(all_marked())
    what = f"{used} of {card.memory_mib} MiB in use"
    if not there and used <= IDLE_MIB:
        return green(name, f"free ({what})")
    who = "; ".join(f"{process}{_whose(process.pid, ours)}" for process in there) or "by nobody that the driver names"
    if required is False:
        return green(name, f"{what}: {who}; not needed")
    return yellow(name, f"{what}: {who}", "It is left alone: wait for it, ask its owner, or choose other GPUs with cluster.gpus.")  # fmt: skip


def _whose(pid: int, ours: dict[int, str]) -> str:
    return f", ours: {ours[pid]}" if pid in ours else ", not ours"
