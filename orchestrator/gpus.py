"""GPUs as this host's driver (NVML) sees them: which there are, who is on them, and whether memory came back.

Nothing here touches a process or a card: foreign processes are named, with pid, owner, age and memory, and left alone.
Not here: which GPU serves which trial (pool.py).
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from orchestrator.errors import MachineError
from orchestrator.serving.processes import VISIBLE

MIB = 2**20
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
class Gpu:
    """One whole card."""

    id: str
    """The word for it in CUDA_VISIBLE_DEVICES: its index or UUID, as whoever chose it wrote it."""
    index: int
    """As nvidia-smi counts (PCI bus order), whatever CUDA_VISIBLE_DEVICES hides."""
    uuid: str
    name: str
    memory_mib: int
    driver_version: str

    def __str__(self) -> str:
        return f"{self.index} ({self.name}, {self.uuid})"


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


@dataclass(frozen=True)
class Reading:
    """A card at one instant."""

    power_w: float
    sm_clock_mhz: int
    temperature_c: int
    slowed: bool
    """By heat, a power brake or a fault of the hardware; the ordinary power cap is none of these."""


class GpuLostError(MachineError):
    """A card, or the whole driver, that does not answer."""


class Nvml(Protocol):
    """All that is asked of the driver.  Raises GpuLostError when a card does not answer."""

    def cards(self) -> list[Gpu]:
        """Every card that answers, by index; its `id` is the index."""

    def silent(self) -> list[str]:
        """Cards that do not answer, in words; a machine goes on without them."""

    def used_mib(self, uuid: str) -> int: ...

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        """(pid, MiB) of each process that computes there."""

    def reading(self, uuid: str) -> Reading: ...


def discover(gpus: str | Sequence[str | int], nvml: Nvml | None = None) -> list[Gpu]:
    """The cards that `cluster.gpus` means: `all` that CUDA_VISIBLE_DEVICES shows, `none`, or a list of indices or UUIDs.

    Raises:
        MachineError: there is none, a named one does not exist or is hidden, or the driver cannot be asked.
    """
    if gpus == "none":
        return []
    nvml = nvml or _open_nvml()
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
    nvml = nvml or _open_nvml()
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
    nvml = nvml or _open_nvml()
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


@functools.cache
def _open_nvml() -> Nvml | None:
    """The driver; None: this machine has none.  Raises MachineError when it has one that cannot be asked."""
    has_driver = any(Path("/dev").glob("nvidia[0-9]*"))
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        if not has_driver:
            return None
        raise MachineError(
            "this machine has NVIDIA GPUs, but the package to ask them is missing: "
            "pip install 'speculation-sweep[gpu]' (nvidia-ml-py)"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not has_driver:
            return None
        raise MachineError(f"the NVIDIA driver cannot be asked ({error}): does nvidia-smi work here?") from error
    return _Pynvml(pynvml)


class _Pynvml:
    """Nvml by the pynvml module (package nvidia-ml-py)."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml

    def cards(self) -> list[Gpu]:
        return [seen for seen in self._look() if isinstance(seen, Gpu)]

    def silent(self) -> list[str]:
        return [seen for seen in self._look() if isinstance(seen, str)]

    def _look(self) -> list[Gpu | str]:
        """Each card, or in words why it cannot be read: one that fell off its bus takes no other with it."""
        n = self._pynvml
        try:
            driver = str(n.nvmlSystemGetDriverVersion())
            return [self._card(index, driver) for index in range(n.nvmlDeviceGetCount())]
        except n.NVMLError as error:
            raise GpuLostError(f"NVML cannot list the GPUs of this machine: {error}") from error

    def _card(self, index: int, driver_version: str) -> Gpu | str:
        n = self._pynvml
        try:
            handle = n.nvmlDeviceGetHandleByIndex(index)
            return Gpu(
                id=str(index),
                index=index,
                uuid=str(n.nvmlDeviceGetUUID(handle)),
                name=str(n.nvmlDeviceGetName(handle)),
                memory_mib=self._memory(handle).total // MIB,
                driver_version=driver_version,
            )
        except n.NVMLError as error:
            return f"GPU {index} does not answer: {error}"

    def used_mib(self, uuid: str) -> int:
        try:
            return int(self._memory(self._pynvml.nvmlDeviceGetHandleByUUID(uuid)).used // MIB)
        except self._pynvml.NVMLError as error:
            raise GpuLostError(f"NVML cannot read the memory of GPU {uuid}: {error}") from error

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        n = self._pynvml
        try:
            handle = n.nvmlDeviceGetHandleByUUID(uuid)
            found = [
                *n.nvmlDeviceGetComputeRunningProcesses(handle),
                *n.nvmlDeviceGetMPSComputeRunningProcesses(handle),
            ]
        except n.NVMLError as error:
            raise GpuLostError(f"NVML cannot list the processes on GPU {uuid}: {error}") from error
        memory = {int(entry.pid): entry.usedGpuMemory for entry in found}
        return [(pid, None if used is None else int(used) // MIB) for pid, used in memory.items()]

    def reading(self, uuid: str) -> Reading:
        n = self._pynvml
        slowed_by = (
            n.nvmlClocksThrottleReasonHwSlowdown
            | n.nvmlClocksThrottleReasonSwThermalSlowdown
            | n.nvmlClocksThrottleReasonHwThermalSlowdown
            | n.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
        )
        try:
            handle = n.nvmlDeviceGetHandleByUUID(uuid)
            return Reading(
                power_w=n.nvmlDeviceGetPowerUsage(handle) / 1000,
                sm_clock_mhz=int(n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)),
                temperature_c=int(n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)),
                slowed=bool(n.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & slowed_by),
            )
        except n.NVMLError as error:
            raise GpuLostError(f"NVML cannot read power and clocks of GPU {uuid}: {error}") from error

    def _memory(self, handle: Any) -> Any:
        """Without what the driver keeps for itself, as nvidia-smi shows it; older drivers count that in."""
        try:
            return self._pynvml.nvmlDeviceGetMemoryInfo(handle, version=self._pynvml.nvmlMemory_v2)
        except (self._pynvml.NVMLError_FunctionNotFound, self._pynvml.NVMLError_NotSupported):
            return self._pynvml.nvmlDeviceGetMemoryInfo(handle)
