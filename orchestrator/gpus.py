"""GPUs of this host: which there are, who is on them, and whether memory came back.

Nothing here touches a process or a card: foreign processes are named, with pid, owner, age and memory, and left alone.
Not here: the driver itself (nvml.py), which GPU serves which trial (pool.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

from orchestrator.errors import MachineError
from orchestrator.nvml import Gpu, GpuLostError, Nvml, open_nvml
from orchestrator.serving.processes import VISIBLE

PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Without it CUDA counts the fastest card first, and an index would mean another card there than here."""
TOLERANCE_MIB = 256
"""A card whose use is within this of what it was is free again: drivers keep a little for themselves."""
POLL_S = 0.1


@dataclass(frozen=True)
class GpuSet:
    """GPU indices or UUIDs, as CUDA_VISIBLE_DEVICES names them; empty for a CPU engine.  `pretend`: none of them exists."""

    ids: tuple[str, ...]
    name: str = ""
    """E.g. NVIDIA H200."""
    driver_version: str = ""
    pretend: bool = False


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a card.  One that is hidden from here (another container's) has no owner, age or name."""

    pid: int
    owner: str | None
    age_s: float | None
    memory_mib: int | None
    """None: the driver does not say."""
    name: str | None
    gpu: str

    def __str__(self) -> str:
        memory = "memory unknown" if self.memory_mib is None else f"{self.memory_mib} MiB"
        if self.age_s is None:
            return f"pid {self.pid} (not visible from here, {memory}) on GPU {self.gpu}"
        return f"pid {self.pid} ({self.name}, of {self.owner}, {self.age_s:.0f} s old, {memory}) on GPU {self.gpu}"


def discover(gpus: str | Sequence[str | int], nvml: Nvml | None = None) -> list[Gpu]:
    """The cards that `cluster.gpus` means: `all` that CUDA_VISIBLE_DEVICES shows, `none`, or a list of indices or UUIDs.

    Raises:
        MachineError: there is none, a named one does not exist or is hidden, or the driver cannot be asked.
    """
    if gpus == "none":
        return []
    nvml = nvml or open_nvml()
    cards = nvml.cards() if nvml else []
    if not cards:
        if nvml and (lost := nvml.silent()):
            raise MachineError("; ".join(lost))
        raise MachineError("no GPU found; engine.name=simulated needs none, cluster.gpus=none for a CPU engine")
    visible = _visible(cards)
    if not visible:
        raise MachineError(
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides every GPU of this machine: {_listed(cards)}"
        )
    if gpus == "all":
        return visible
    words = [gpus] if isinstance(gpus, str) else [str(word) for word in gpus]
    return [_named(word, cards, visible) for word in words]


def silent(nvml: Nvml | None = None) -> list[str]:
    """Cards of this machine that do not answer, in words.  Raises MachineError when the driver cannot be asked."""
    nvml = nvml or open_nvml()
    return nvml.silent() if nvml else []


def used_mib(gpus: GpuSet, nvml: Nvml | None = None) -> dict[str, int]:
    """Memory in use per GPU id, by anyone.  Empty for a pretend or empty set.  Raises GpuLostError."""
    return {id_: driver.used_mib(card.uuid) for id_, card, driver in cards_of(gpus, nvml)}


def processes(gpus: GpuSet, nvml: Nvml | None = None) -> list[GpuProcess]:
    """Who computes on these GPUs.  Empty for a pretend or empty set.  Raises GpuLostError."""
    return [
        _look_up(pid, memory_mib, id_)
        for id_, card, driver in cards_of(gpus, nvml)
        for pid, memory_mib in driver.processes(card.uuid)
    ]


def wait_free(
    gpus: GpuSet,
    before: Mapping[str, int],
    timeout_s: float,
    tolerance_mib: int = TOLERANCE_MIB,
    nvml: Nvml | None = None,
) -> list[str]:
    """Wait until each GPU uses no more memory than `before` (of `used_mib`); returns those that do not, in words.

    A card that stops answering counts as not free.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            late = {
                id_: used for id_, used in used_mib(gpus, nvml).items() if used > before.get(id_, 0) + tolerance_mib
            }
            if not late:
                return []
            if time.monotonic() >= until:
                return [_not_free(id_, used, before.get(id_, 0), processes(gpus, nvml)) for id_, used in late.items()]
        except MachineError as error:
            return [str(error)]
        time.sleep(POLL_S)


def _not_free(id_: str, used: int, before: int, there: list[GpuProcess]) -> str:
    holders = "; ".join(str(process) for process in there if process.gpu == id_) or "no process that the driver names"
    return f"GPU {id_} uses {used} MiB, {before} MiB before the launch; held by: {holders}"


def cards_of(gpus: GpuSet, nvml: Nvml | None = None) -> list[tuple[str, Gpu, Nvml]]:
    """(id, card, whom to ask of it) of each; empty for a pretend or empty set.  Raises GpuLostError: one is gone."""
    if gpus.pretend or not gpus.ids:
        return []
    nvml = nvml or open_nvml()
    if nvml is None:
        raise GpuLostError(f"GPU {', '.join(gpus.ids)}: this machine has no NVIDIA driver any more")
    cards = nvml.cards()
    return [(id_, _still(id_, cards), nvml) for id_ in gpus.ids]


def _still(id_: str, cards: list[Gpu]) -> Gpu:
    card = _find(id_, cards)
    if card is None:
        raise GpuLostError(f"GPU {id_} does not answer any more; nvidia-smi may say why. These do: {_listed(cards)}")
    return card


def _visible(cards: list[Gpu]) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES shows, in its order; like CUDA, nothing behind the first word that names no card."""
    words = os.environ.get(VISIBLE)
    if words is None:
        return cards
    shown: list[Gpu] = []
    for word in words.split(","):
        card = _find(word.strip(), cards)
        if card is None:
            break
        shown.append(card)
    return shown


def _named(word: str, cards: list[Gpu], visible: list[Gpu]) -> Gpu:
    card = _find(word, cards)
    if card is None:
        raise MachineError(f"cluster.gpus: this machine has no GPU {word!r}. There are: {_listed(cards)}")
    if card.uuid not in {shown.uuid for shown in visible}:
        raise MachineError(
            f"cluster.gpus: GPU {word!r} is hidden by CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}. "
            f"It shows: {_listed(visible)}"
        )
    return card


def _find(word: str, cards: list[Gpu]) -> Gpu | None:
    """The card of an index or of a UUID, which may be abbreviated if only one begins so."""
    if word.startswith("MIG-"):
        raise MachineError(f"GPU {word!r} is a MIG slice; only whole GPUs are supported")
    if word.isdecimal():
        found = [card for card in cards if card.index == int(word)]
    else:
        found = [card for card in cards if word.startswith("GPU-") and card.uuid.startswith(word)]
    return replace(found[0], id=word) if len(found) == 1 else None


def _listed(cards: list[Gpu]) -> str:
    return ", ".join(str(card) for card in cards) or "none"


def _look_up(pid: int, memory_mib: int | None, gpu: str) -> GpuProcess:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            age_s = time.time() - process.create_time()
            return GpuProcess(pid, process.username(), age_s, memory_mib, process.name(), gpu)
    except (psutil.Error, ValueError):
        return GpuProcess(pid, None, None, memory_mib, None, gpu)
