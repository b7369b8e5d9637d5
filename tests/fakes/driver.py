"""A sweep without servers: the schedule draws, the test answers, ledger and sampler are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.plan import Plan
from orchestrator.schedule import Schedule
from results.ledger import Ledger
from results.record import Record
from results.rundir import RunDir
from sweeps.sampler import Sampler
from sweeps.trial import Trial
from tests.fakes.plans import plan
from tests.fakes.records import rows


class Driver:
    """Draws every trial and answers it at once, as a sweep with one GPU set does."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.run = RunDir.open(path) if path.exists() else RunDir.at(path)
        self.ledger = Ledger.open(self.run)
        self.sampler = Sampler(plan.space, plan.goal, seed=len(self.run.begun()))
        self.exhausted = False
        self.schedule = Schedule(plan, self.run, self.ledger, self.sampler, self._exhausted)
        self.drawn: list[Trial] = []

    def _exhausted(self) -> None:
        self.exhausted = True

    def drive(self, answer: Callable[[Trial], list[Record]] = rows, most: int = 200) -> list[Trial]:
        while len(self.drawn) < most and (trial := self.schedule.draw()) is not None:
            self.drawn.append(trial)
            records = answer(trial)
            for record in records:
                self.ledger.append(record)
                self.sampler.learn(record.observation(plan().goal))
            kinds = [r.failure.kind for r in records if r.failure is not None]
            retry = any(kind.retried and not kind.over(trial.failures + 1) for kind in kinds)
            self.schedule.ended(trial.number, complete=not retry, retry=retry)
            self.sampler.finish(trial.number)
        return self.drawn
