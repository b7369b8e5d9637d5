"""Schedule: which trial to launch next, within the budget.

In order: trials that an interruption left unfinished; the plain server; for each proposal first the plain server with
the same values, if that was not launched yet; at the end the race, in which the finalists and the plain server are
launched once more.  Not here: proposing settings (sweeps/sampler.py), running them (pool.py).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable

from orchestrator.plan import Plan
from results.ledger import Ledger
from results.record import Record
from results.rundir import RunDir
from results.verdict import finalists
from sweeps.rules import problems, settle
from sweeps.sampler import Sampler
from sweeps.settings import Settings
from sweeps.trial import Kind, LoadPoint, Trial


class Schedule:
    """Draws trials; each is on disk as begun before it is handed out."""

    def __init__(
        self, plan: Plan, run: RunDir, ledger: Ledger, sampler: Sampler, on_space_exhausted: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._run = run
        self._ledger = ledger
        self._sampler = sampler
        self._on_space_exhausted = on_space_exhausted
        self._points = load_points(plan)
        self._queue: deque[Trial] = deque()
        self._running: dict[int, Trial] = {}
        self._launches: dict[str, int] = {}
        """Settings key → launches begun."""
        self._next_number = 0
        self._charged = 0
        self._searching = True
        self._race_drawn = False
        self._spent_hours = run.hours_spent()
        self._began = time.monotonic()
        self._recall()
        if not self._launches or self._moved():
            self._enqueue(first_plain(plan), "baseline")

    @property
    def charged(self) -> int:
        """Launches counted against the budget: ended ones, failed ones included, and those running."""
        return self._charged

    def draw(self) -> Trial | None:
        """The next trial; None when there is none, or none before something that runs has ended."""
        if not self._affordable():
            return None
        trial = self._queue.popleft() if self._queue else self._searched() or self._raced()
        if trial is None:
            return None
        self._charged += 1
        self._running[trial.number] = trial
        self._run.begin(trial)
        return trial

    def ended(self, number: int, complete: bool, retry: bool) -> Trial:
        """What became of a running trial; an interrupted one is not charged, a retried one comes next."""
        trial = self._running.pop(number)
        if not complete:
            self._charged -= 1
        if retry:
            self._queue.appendleft(dataclasses.replace(self._rest(trial), attempt=trial.attempt + 1))
        return trial

    def give_up(self, algorithm: str, drafter: str | None) -> bool:
        """Launch nothing more with this algorithm and drafter; what runs already is left to its end.

        False: they were given up before.
        """
        if not self._sampler.give_up(algorithm, drafter):
            return False
        self._queue = deque(trial for trial in self._queue if not self._sampler.gave_up(trial.settings))
        return True

    def environment_broken(self) -> None:
        """Every further launch would fail the same way: draw no more."""
        self._queue.clear()
        self._searching = False
        self._race_drawn = True

    def _affordable(self) -> bool:
        budget = self._plan.budget
        hours = self._spent_hours + (time.monotonic() - self._began) / 3600
        bounds = [
            budget.launches is not None and self._charged >= budget.launches,
            budget.hours is not None and hours >= budget.hours,
            budget.gpu_hours is not None and self._run.gpu_hours_spent() >= budget.gpu_hours,
        ]
        return not any(bounds)

    def _searched(self) -> Trial | None:
        if not self._searching or not self._launches_left_for_search():
            self._searching = False
            return None
        proposal = self._sampler.propose()
        if proposal is None:
            self._searching = False
            self._on_space_exhausted()
            return None
        kind: Kind = "trial" if proposal.settings.speculative else "baseline"
        plain = settle(proposal.settings.plain()).settings
        if kind == "trial" and plain.key not in self._launches:
            self._enqueue(plain, "baseline")
        self._queue.append(self._trial(proposal.settings, kind, coordinates=dict(proposal.coordinates)))
        return self._queue.popleft()

    def _launches_left_for_search(self) -> bool:
        budget = self._plan.budget
        if budget.launches is None:
            return True
        return self._charged < budget.launches - min(budget.finalists, budget.launches // 3)

    def _raced(self) -> Trial | None:
        """Once everything has ended: the finalists once more."""
        if self._race_drawn or self._running:
            return None
        self._race_drawn = True
        raced = {r.asked.key for r in self._ledger.records if r.launch > 0}
        for settings in finalists(self._ledger.records, self._plan.goal, self._plan.budget.finalists):
            if settings.key not in raced and not self._sampler.gave_up(settings):
                self._enqueue(settings, "finalist" if settings.speculative else "baseline")
        return self._queue.popleft() if self._queue else None

    def _enqueue(self, settings: Settings, kind: Kind) -> None:
        self._queue.append(self._trial(settings, kind))

    def _trial(self, settings: Settings, kind: Kind, **more: object) -> Trial:
        launch = self._launches.get(settings.key, 0)
        self._launches[settings.key] = launch + 1
        self._sampler.seen(settings)
        trial = Trial(self._next_number, settings, kind, self._points, launch=launch, **more)  # type: ignore[arg-type]
        self._next_number += 1
        return trial

    def _recall(self) -> None:
        """Take up what an earlier driver began: finished trials are counted, unfinished ones queued with what is missing."""
        for trial in (begun.trial for begun in self._run.begun()):
            self._next_number = max(self._next_number, trial.number + 1)
            self._launches[trial.settings.key] = max(self._launches.get(trial.settings.key, 0), trial.launch + 1)
            self._sampler.seen(trial.settings)
            if whole(self._plan, self._ledger.of(trial.number)):
                self._charged += 1
            else:
                self._queue.append(dataclasses.replace(self._rest(trial), attempt=trial.attempt + 1))

    def _moved(self) -> bool:
        """Whether what was measured comes from other machines: the plain server is measured again on this one."""
        hosts = {record.origin.host for record in self._ledger.records if record.measured}
        return bool(hosts) and self._plan.cluster.address == "local" and os.uname().nodename not in hosts

    def _rest(self, trial: Trial) -> Trial:
        """The trial with the load points that are not measured yet."""
        measured = {r.point for r in self._ledger.of(trial.number) if r.measured}
        return dataclasses.replace(trial, load_points=tuple(p for p in self._points if p not in measured))


def whole(plan: Plan, rows: list[Record]) -> bool:
    """Whether a trial with these rows is over: every load point measured, or failed for good."""
    measured = {record.point for record in rows if record.measured}
    return measured.issuperset(load_points(plan)) or any(_final(record) for record in rows)


def _final(record: Record) -> bool:
    return record.failure is not None and record.failure.kind.over(record.attempt)


def load_points(plan: Plan) -> tuple[LoadPoint, ...]:
    """Every load point of a launch, the lightest load first."""
    work = plan.workload
    return tuple(LoadPoint(c, repeat) for c in sorted(work.concurrency) for repeat in range(work.repeats))


def first_plain(plan: Plan) -> Settings:
    """The plain server at the first value of everything that is swept."""
    return settle(plan.space.settings({}).plain()).settings


def launchable(plan: Plan) -> list[Settings]:
    """Every distinct legal setting of the plan's grid, plain servers first."""
    found = {s.key: s for s in (settle(settings).settings for settings in plan.space.grid()) if not problems(s)}
    plain = {s.key: s for s in (settle(s.plain()).settings for s in found.values())}
    return list((plain | found).values())
