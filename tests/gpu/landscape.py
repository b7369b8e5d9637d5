"""Every legal setting of a space measured alike, for judging a search: servers of a card boot together, one is measured at a time.

    python -m tests.gpu.landscape out=DIR gpus=0,1 [at_once=6] [seconds=900] conf=… [key=value …]

In rounds: on each card `at_once` servers boot side by side, one of them the plain server, the others the next legal settings
in a random order (sampler.seed).  Once all that boot in this round, on every card, are ready or have failed, nothing starts
and nothing imports any more: on each card one server after the other is measured and ended, and those that wait are stopped
(SIGSTOP).  When every setting was launched, the rounds go on with those near the best at some concurrency, least often
launched first.  No round is begun that would not end within `seconds`, by the longest so far.
Called again with the same DIR it goes on where it was.  `gpus=` (none) is for an engine on the CPU.

Rows land in DIR/trials as a sweep's do, failures too.  `launch_s` is that of a server which boots beside others.
Not a sweep: nothing is proposed and nothing compared.  Not a test by itself: it needs GPUs, an engine and minutes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.engine import ServedEngine
from orchestrator.engines.launching import Launching
from orchestrator.events import Launched
from orchestrator.facts import facts_of
from orchestrator.gpus import GpuSet, discover
from orchestrator.plan import Plan
from orchestrator.serving.processes import find_in_group
from orchestrator.trials import first_plain, load_points
from orchestrator.worker import Worker
from results.ledger import Ledger
from results.record import Record
from results.rundir import RunDir
from sweeps.legal import legal
from sweeps.settings import Settings
from sweeps.trial import Trial
from tests.gpu.strikes import say

NEAR = 0.05
"""How far below the best at some concurrency a setting may be to be launched again."""
POLL_S = 0.1


@dataclass
class Round:
    """Who still boots, and whose turn it is on each card."""

    booting: int
    cards: Mapping[str, threading.Lock]
    changed: threading.Condition = field(default_factory=threading.Condition)

    def booted(self) -> None:
        with self.changed:
            self.booting -= 1
            self.changed.notify_all()

    def wait(self, stopping: threading.Event) -> None:
        """Until nobody boots any more."""
        with self.changed:
            while self.booting > 0 and not stopping.is_set():
                self.changed.wait(POLL_S)


@dataclass
class Turn:
    """One server's part in a round: it boots, waits, is measured, and lets the next one be."""

    round: Round
    card: str
    group: int | None = None
    """Its process group, once it was started."""
    _booted: bool = False
    _measures: bool = False

    def take(self, stopping: threading.Event) -> None:
        """Called when the server is ready: it is stopped until it is its turn."""
        self._signal(signal.SIGSTOP)
        self._boot_ends()
        self.round.wait(stopping)
        while not stopping.is_set() and not self._measures:
            self._measures = self.round.cards[self.card].acquire(timeout=POLL_S)
        self._signal(signal.SIGCONT)

    def give(self) -> None:
        """Called when nothing of it is measured any more, whatever became of it."""
        self._boot_ends()
        if self._measures:
            self._measures = False
            self.round.cards[self.card].release()

    def _boot_ends(self) -> None:
        if not self._booted:
            self._booted = True
            self.round.booted()

    def _signal(self, number: signal.Signals) -> None:
        for pid in find_in_group(self.group) if self.group is not None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class InTurn(Launching):
    """Plain launches; a server that is ready waits for its turn before it is measured."""

    turn: Turn

    def hold(self, stopping: threading.Event) -> None:
        self.turn.take(stopping)


class Slot(Worker):
    """A worker that shares its card with others of this program: what it finds there is not its own to judge."""

    def __init__(self, plan: Plan, run: RunDir, gpus: GpuSet) -> None:
        super().__init__(plan, run, gpus)
        assert isinstance(self._engine, ServedEngine)
        self.card = ",".join(gpus.ids)
        self.launching = self._engine.launching = InTurn(plan, run, self._engine.dialect)

    def _refuse_busy_gpus(self) -> None:
        pass

    def _prove_free(self, _trial: Trial, _before: dict[str, int]) -> tuple[str, ...]:
        teardown = self._engine.teardown
        return tuple(teardown.left_over) if teardown else ()


class Landscape:
    """The rows, and what to launch next."""

    def __init__(self, plan: Plan, run: RunDir) -> None:
        facts = facts_of(plan)
        self.plain = first_plain(plan, facts)
        self.others = [s for s in legal(plan.space, facts).settings if s.speculative]
        random.Random(plan.sampler.seed).shuffle(self.others)  # noqa: S311 - an order, not secrets
        self.ledger = Ledger.open(run)
        self._run = run
        self._points = load_points(plan)
        self._writing = threading.Lock()

    def launches(self) -> Counter[str]:
        """Of each settings key, those that have rows."""
        return Counter(key for key, _ in {(row.asked.key, row.trial) for row in self.ledger.records})

    def next(self, many: int) -> list[Settings]:
        """Settings not launched yet, in their order; then those near the best, least often launched first."""
        times, of_best = self.launches(), self._of_best()
        order = {settings.key: place for place, settings in enumerate(self.others)}
        again = [s for s in self.others if times[s.key] == 0 or s.key in of_best]
        again.sort(key=lambda s: (times[s.key] > 0, of_best.get(s.key, 0.0) < 1 - NEAR, times[s.key], order[s.key]))
        return again[:many]

    def _of_best(self) -> dict[str, float]:
        """Of each setting its mean speed at the concurrency that suits it most, in parts of the best there."""
        speeds: dict[tuple[str, int], list[float]] = defaultdict(list)
        for row in self.ledger.records:
            if row.asked.speculative and row.point and row.measurement and row.measurement.output_tok_s:
                speeds[row.asked.key, row.point.concurrency].append(row.measurement.output_tok_s)
        means = {where: sum(found) / len(found) for where, found in speeds.items()}
        best: dict[int, float] = defaultdict(float)
        for (_, concurrency), mean in means.items():
            best[concurrency] = max(best[concurrency], mean)
        parts: dict[str, float] = defaultdict(float)
        for (key, concurrency), mean in means.items():
            parts[key] = max(parts[key], mean / best[concurrency])
        return parts

    def trials(self, settings: Sequence[Settings]) -> list[Trial]:
        """Begun, with the next numbers."""
        number = max([-1, *self._run.begun_numbers(), *(row.trial for row in self.ledger.records)]) + 1
        times, made = self.launches(), []
        for place, one in enumerate(settings):
            kind: Any = "trial" if one.speculative else "baseline"
            made.append(Trial(number + place, one, kind, self._points, launch=times[one.key]))
            times[one.key] += 1
            self._run.begin(made[-1])
        return made

    def take(self, row: Record) -> None:
        with self._writing:
            self.ledger.append(row)


def serve(slot: Slot, trial: Trial, turn: Turn, landscape: Landscape) -> None:
    """One server from its launch to its end.  The next may be measured as soon as this one was."""
    slot.launching.turn = turn
    rows: list[Record] = []
    try:
        for event in slot.run(trial):
            if isinstance(event, Launched):
                turn.group = event.process_group
            elif isinstance(event, Record):
                rows.append(event)
                landscape.take(event)
                if len(rows) == len(trial.load_points) or event.failure is not None:
                    turn.give()
    finally:
        turn.give()
        say(line(trial, slot.card, rows))


def line(trial: Trial, card: str, rows: Sequence[Record]) -> str:
    speeds = [
        f"{r.point.concurrency}: {r.measurement.output_tok_s or 0:.0f}" for r in rows if r.point and r.measurement
    ]
    failed = [f"{r.failure.kind}: {r.failure.message[:200]}" for r in rows if r.failure is not None]
    flags = sorted({str(flag) for row in rows for flag in row.flags})
    ready = f"ready in {rows[0].launch_s:.1f} s" if rows and rows[0].launch_s is not None else "never ready"
    return f"{trial.number:3} on {card or 'the CPU'}, {trial.settings} (launch {trial.launch}), {ready}; {', '.join([*speeds, *failed, *flags])}"


def rounds(landscape: Landscape, slots: Sequence[Slot]) -> Iterator[None]:
    """Each round as it ends."""
    cards = {slot.card: threading.Lock() for slot in slots}
    while True:
        firsts = {slot.card: slot for slot in reversed(slots)}
        others = landscape.next(len(slots) - len(firsts))
        chosen = [landscape.plain for _ in firsts] + others
        order = [*firsts.values(), *(slot for slot in slots if slot not in firsts.values())]
        trials = landscape.trials(chosen)
        this = Round(len(trials), cards)
        threads = [
            threading.Thread(target=serve, args=(slot, trial, Turn(this, slot.card), landscape))
            for slot, trial in zip(order, trials, strict=False)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            for slot in slots:
                slot.stopping.set()
            for thread in threads:
                thread.join()
            raise
        yield


def main(words: list[str]) -> int:
    began = time.monotonic()
    given = dict(word.partition("=")[::2] for word in words if word.split("=")[0] in ("out", "gpus", "at_once", "seconds"))  # fmt: skip
    plan = load_plan([word for word in words if word.split("=")[0] not in given])
    path = Path(given["out"]).absolute()
    run = RunDir(path) if (path / "trials").is_dir() else RunDir.at(path)
    ids = [word for word in given.get("gpus", "").split(",") if word]
    sets = [GpuSet((id_,), discover([id_])[0].name) for id_ in ids] or [GpuSet(())]
    slots = [Slot(plan, run, gpus) for _ in range(int(given.get("at_once", 6))) for gpus in sets]
    landscape = Landscape(plan, run)
    there = landscape.launches().total()
    say(f"{len(landscape.others)} settings and the plain server of {plan.engine.name} {dialect_for(plan).version}, {there} launches there, {len(slots)} at a time")  # fmt: skip
    longest, since = 0.0, time.monotonic()
    for _ in rounds(landscape, slots):
        now = time.monotonic()
        longest, since = max(longest, now - since), now
        times = landscape.launches()
        say(f"a round ended; {times.total()} launches, {sum(times[s.key] > 0 for s in landscape.others)} of {len(landscape.others)} settings")  # fmt: skip
        if now - began + longest > float(given.get("seconds", 900)):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
