"""Schedule: which trial to launch next, within the budget.

In order: trials that an interruption left unfinished; the plain server; for each proposal first the plain server with
the same values, if that was not launched yet; at the end the race, in which the finalists and the plain server are
launched again, there and back (A-B-B-A), until the verdict is sure or the launches kept back for it are spent.
Not here: proposing settings (sweeps/sampler), what the race launches (results/verdict.py, with the sampler's chances),
running trials (pool.py).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable

from orchestrator.plan import Plan
from orchestrator.trials import charged, failures, first_plain, load_points, whole
from results.counted import counted
from results.ledger import Ledger
from results.rundir import RunDir
from results.verdict import race_pass
from sweeps.facts import NOTHING_KNOWN, Facts
from sweeps.rules import settle
from sweeps.sampler import Sampler
from sweeps.settings import Settings
from sweeps.trial import Kind, Trial


class Schedule:
    """Draws trials; each is on disk as begun before it is handed out."""

    def __init__(
        self,
        plan: Plan,
        run: RunDir,
        ledger: Ledger,
        sampler: Sampler,
        on_space_exhausted: Callable[[], None],
        facts: Facts = NOTHING_KNOWN,
    ) -> None:
        self._plan = plan
        self._facts = facts
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
        self._relaunches = 0
        """Launches begun of settings that had been launched before: what the race has used."""
        self.why_ended = "nothing left to launch"
        """Why nothing more is drawn, for a person."""
        self._exhausted = False
        self._race_over = False
        self._passes = 0
        self._lanes: dict[str, deque[Trial]] = {}
        """What is left of the race's pass on each GPU set: a pass stays on one, where its launches are alike."""
        self._spent_hours = run.journal.hours_spent()
        self._began = time.monotonic()
        self._recall()
        if not self._launches or self._moved():
            self._enqueue(first_plain(plan, facts), "baseline")

    @property
    def charged(self) -> int:
        """Launches counted against the budget: ended ones, failed ones included, and those running."""
        return self._charged

    def draw(self, gpu_set: str = "") -> Trial | None:
        """The next trial for a GPU set; None when there is none, or none before something that runs has ended."""
        if not self._affordable():
            return None
        trial = self._queue.popleft() if self._queue else self._searched() or self._raced(gpu_set) or self._searched()
        if trial is None:
            return None
        self._charged += 1
        self._running[trial.number] = trial
        self._run.begin(trial)
        return trial

    def ended(self, number: int, complete: bool, retry: bool) -> bool:
        """What became of a running trial; whether it is over.

        One that we interrupted is not charged, a retried one comes next.  One that was lost after its last load point has
        nothing to try again.
        """
        trial = self._rest(self._running.pop(number))
        if complete or not trial.load_points:
            return True
        if retry:
            self._queue.appendleft(dataclasses.replace(trial, attempt=trial.attempt + 1, failures=trial.failures + 1))
        else:
            self._charged -= 1
        return False

    def give_up(self, algorithm: str, drafter: str | None, attention_backend: str | None = None) -> bool:
        """Launch nothing more with these, on any attention backend if none is named; what runs is left to its end.

        False: they were given up before.
        """
        if not self._sampler.give_up(algorithm, drafter, attention_backend):
            return False
        self._queue = self._without_given_up(self._queue)
        self._lanes = {gpu_set: self._without_given_up(lane) for gpu_set, lane in self._lanes.items()}
        return True

    def _without_given_up(self, trials: deque[Trial]) -> deque[Trial]:
        return deque(trial for trial in trials if not self._sampler.gave_up(trial.settings))

    @property
    def _launching(self) -> bool:
        """Of a server that runs already there is the one trial, and no launch."""
        return self._plan.engine.name != "attached"

    def call_off(self, why: str) -> None:
        """Every further launch would fail the same way: draw no more."""
        self.why_ended = why
        self._queue.clear()
        self._lanes.clear()
        self._race_over = True
        self._exhausted = True

    @property
    def _hours(self) -> float:
        """By the clock, over all resumes."""
        return self._spent_hours + (time.monotonic() - self._began) / 3600

    def _affordable(self) -> bool:
        budget, hours = self._plan.budget, self._hours
        bounds = {
            f"budget.launches: {counted(budget.launches or 0, 'launch')}": self._launching and budget.launches is not None and self._charged >= budget.launches,
            f"budget.hours: {hours:.2f} h": budget.hours is not None and hours >= budget.hours,
            f"budget.gpu_hours: {budget.gpu_hours} GPU-hours": budget.gpu_hours is not None and self._run.journal.gpu_hours_spent() >= budget.gpu_hours,
        }  # fmt: skip
        spent = [bound for bound, reached in bounds.items() if reached]
        self.why_ended = f"{spent[0]} spent" if spent else self.why_ended
        return not spent

    def _searched(self) -> Trial | None:
        if not self._launching:
            self.why_ended = "the server that runs already was measured"
            return None
        if self._exhausted or not self._launches_left_for_search():
            return None
        proposal = self._sampler.propose()
        if proposal is None:
            if self._sampler.waits and self._running:
                return None
            self._exhausted = True
            self.why_ended = self._sampler.why_nothing
            if self._sampler.enough is None:
                self._on_space_exhausted()
            return None
        kind: Kind = "trial" if proposal.settings.speculative else "baseline"
        plain = settle(proposal.settings.plain(), self._facts).settings
        if kind == "trial" and plain.key not in self._launches:
            self._enqueue(plain, "baseline")
        self._queue.append(self._trial(proposal.settings, kind, coordinates=dict(proposal.coordinates)))
        return self._queue.popleft()

    def _launches_left_for_search(self) -> bool:
        """Until only the race's launches are left; what the race did not use is searched on with."""
        budget = self._plan.budget
        if budget.launches is None:
            return self._race_over or self._time_left_for_search()
        kept_back = 0 if self._race_over else max(0, budget.kept_back - self._relaunches)
        return self._charged + self._waiting < budget.launches - kept_back

    @property
    def _waiting(self) -> int:
        """Launches of the race that are drawn up and not begun."""
        return sum(map(len, self._lanes.values()))

    def _time_left_for_search(self) -> bool:
        """Until only as much time is left as the race's launches took so far on average, a third of it at most."""
        budget = self._plan.budget
        used = self._hours / budget.hours if budget.hours else 0.0
        if budget.gpu_hours:
            used = max(used, self._run.journal.gpu_hours_spent() / budget.gpu_hours)
        to_race = max(0, budget.finalists - self._relaunches) + self._waiting
        kept_back = to_race * used / max(self._charged, 1)
        return used + 1e-9 < 1 - min(kept_back, 1 / 3)

    def _raced(self, gpu_set: str) -> Trial | None:
        """Once the search has ended: the next launch of this GPU set's pass, or the first of a new one.

        What another set was to launch and does not come for, when nothing runs any more, is launched on this one.
        """
        lanes = [self._lanes.get(gpu_set, deque())] + ([] if self._running else list(self._lanes.values()))
        for lane in lanes:
            if lane:
                return lane.popleft()
        if self._race_over or (self._running and not self._lanes):
            return None
        self._lanes[gpu_set] = deque(self._trial(settings, _race_kind(settings)) for settings in self._next_pass())
        self._race_over = not self._lanes[gpu_set]
        return None if self._race_over else self._lanes[gpu_set].popleft()

    def _next_pass(self) -> list[Settings]:
        budget = self._plan.budget
        kept_back = budget.finalists if budget.launches is None else budget.kept_back
        room = kept_back - self._relaunches
        chance = self._sampler.chances_of_best()
        launches = race_pass(self._ledger.records, self._plan.goal, room, self._passes, chance)
        self._passes += 1
        return [settings for settings in launches if not self._sampler.gave_up(settings)]

    def _enqueue(self, settings: Settings, kind: Kind) -> None:
        self._queue.append(self._trial(settings, kind))

    def _trial(self, settings: Settings, kind: Kind, **more: object) -> Trial:
        launch = self._launches.get(settings.key, 0)
        self._launches[settings.key] = launch + 1
        self._relaunches += launch > 0
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
            self._relaunches += trial.launch > 0
            rows = self._ledger.of(trial.number)
            self._charged += charged(self._plan, rows)
            if not whole(self._plan, rows):
                again = dataclasses.replace(self._rest(trial), attempt=trial.attempt + 1, failures=failures(rows))
                self._queue.append(again)

    def _moved(self) -> bool:
        """Whether what was measured comes from other machines: the plain server is measured again on this one."""
        hosts = {record.origin.host for record in self._ledger.records if record.measured}
        return bool(hosts) and self._plan.cluster.address == "local" and os.uname().nodename not in hosts

    def _rest(self, trial: Trial) -> Trial:
        """The trial with the load points that are not measured yet."""
        measured = {r.point for r in self._ledger.of(trial.number) if r.measured}
        return dataclasses.replace(trial, load_points=tuple(p for p in self._points if p not in measured))


def _race_kind(settings: Settings) -> Kind:
    return "finalist" if settings.speculative else "baseline"
