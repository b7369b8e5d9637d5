"""Telemetry: what the GPUs of a server say of themselves while a load point runs: power, clocks, heat, slowdowns.

Read from NVML a few times a second on a thread of its own.  Where there is no NVIDIA driver, or the engine runs on none of its
cards, every figure is None.  Not here: which cards there are and who is on them (gpus.py).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import MachineError
from orchestrator.gpus import GpuSet, cards_of
from orchestrator.nvml import Nvml, Reading

SAMPLE_S = 0.25
LAST_ANSWER_S = 5.0
"""A driver that hangs is not waited for."""
THROTTLED_SHARE = 0.1
"""Share of samples with a slowdown from which a point does not stand for its settings."""


@dataclass(frozen=True)
class Seen:
    """All samples of a load point; each has one reading a GPU."""

    samples: tuple[tuple[Reading, ...], ...]
    duration_s: float

    @property
    def power_w(self) -> float | None:
        """Mean of all GPUs together, watts."""
        return (
            sum(one.power_w for sample in self.samples for one in sample) / len(self.samples) if self.samples else None
        )

    @property
    def throttled_share(self) -> float | None:
        """Share of samples in which heat or a power brake held back a GPU."""
        if not self.samples:
            return None
        return sum(any(one.slowed for one in sample) for sample in self.samples) / len(self.samples)

    @property
    def throttled(self) -> bool:
        return (self.throttled_share or 0.0) > THROTTLED_SHARE

    def figures(self, output_tokens: int | None) -> dict[str, Any]:
        """The metrics of results/measurement.py; all None when nothing was seen."""
        power_w, readings = self.power_w, [one for sample in self.samples for one in sample]
        energy_j = power_w * self.duration_s if power_w else None
        return {
            "power_w": power_w,
            "tokens_per_joule": output_tokens / energy_j if energy_j and output_tokens else None,
            "sm_clock_mhz": sum(one.sm_clock_mhz for one in readings) / len(readings) if readings else None,
            "gpu_temperature_c": max((one.temperature_c for one in readings), default=None),
            "throttled_share": self.throttled_share,
        }


class Telemetry:
    """A context in which the GPUs are sampled; `seen()` afterwards."""

    def __init__(self, gpus: GpuSet, nvml: Nvml | None = None, sample_s: float = SAMPLE_S) -> None:
        self._gpus, self._nvml, self._sample_s = gpus, nvml, sample_s
        self._samples: list[tuple[Reading, ...]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="telemetry", daemon=True)
        self._began_s = self._ended_s = 0.0

    def __enter__(self) -> Telemetry:
        self._began_s = time.monotonic()
        if self._gpus.ids and not self._gpus.pretend:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ended_s = time.monotonic()
        if self._thread.ident is not None:
            self._thread.join(timeout=LAST_ANSWER_S)

    def seen(self) -> Seen:
        return Seen(tuple(self._samples), self._ended_s - self._began_s)

    def _sample(self) -> None:
        """Until the block ends; a card that stops answering ends the sampling, not the measurement."""
        try:
            cards = cards_of(self._gpus, self._nvml)
            while True:
                self._samples.append(tuple(driver.reading(card.uuid) for _, card, driver in cards))
                if self._over.wait(self._sample_s):
                    return
        except MachineError:
            return
