"""NVML: the driver's own word on each card of this host, by the pynvml module (package nvidia-ml-py).

Not here: which of the cards a sweep may use, who is on them, and whether they are free again (gpus.py).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import MachineError

MIB = 2**20


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


@functools.cache
def open_nvml() -> Nvml | None:
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
    return Pynvml(pynvml)


class Pynvml:
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
