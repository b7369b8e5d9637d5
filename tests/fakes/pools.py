"""LocalPool: a pool that runs one trial at a time in this process, without Ray."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.events import Event
from orchestrator.gpus import GpuSet
from orchestrator.plan import Plan
from orchestrator.pool import Draw
from orchestrator.worker import Worker
from results.rundir import RunDir


class LocalPool:
    """One trial at a time in this process."""

    size = 1
    spent = False

    def __init__(self, plan: Plan, run: RunDir, gpus: GpuSet) -> None:
        self._worker = Worker(plan, run, gpus)

    def run(self, draw: Draw) -> Iterator[Event]:
        while (trial := draw("")) is not None:
            yield from self._worker.run(trial)

    @property
    def stopped(self) -> bool:
        return self._worker.enough.is_set()

    def stop(self, now: bool) -> None:
        self._worker.enough.set()
        if now:
            self._worker.stopping.set()

    def close(self) -> None:
        self._worker.close()
