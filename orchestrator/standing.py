"""Standing: how far a sweep is, now: what runs and for how long, which trials are over, how long it goes on.

The same facts for the live view (live.py), which has them in memory, and for the verb status (reading.py), which reads them
from the files of a running or dead sweep.  Not here: the best so far (leaders.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import NamedTuple

from orchestrator.plan import Plan
from orchestrator.rows import Row
from orchestrator.trials import load_points
from results.begun import Begun
from results.failure import FailureKind
from sweeps.settings import Settings
from sweeps.trial import LoadPoint


class Running(NamedTuple):
    trial: int
    settings: Settings
    host: str
    gpus: tuple[str, ...]
    stage: str
    """E.g. `weights`, `measuring 2 of 3`, or `stopping` once all is measured."""
    for_s: float
    """Since its launch; once it measures, since its server was ready or the last load point ended."""
    usual_s: float | None
    """What that takes in this run: launch to ready, or this load point; None: not known yet."""


@dataclass(frozen=True)
class Left:
    """How long it goes on, and what that rests on."""

    seconds: float
    basis: str


def over_and_unfinished(plan: Plan, rows: Iterable[Row], begun: Iterable[int]) -> tuple[set[int], set[int]]:
    """Begun trials that are over (every load point measured, or failed for good), and the others."""
    measured: dict[int, set[LoadPoint]] = defaultdict(set)
    failures: dict[int, list[FailureKind]] = defaultdict(list)
    for row in rows:
        if row.point is not None:
            measured[row.trial].add(row.point)
        elif row.failure is not None:
            failures[row.trial].append(row.failure)
    points, numbers = set(load_points(plan)), set(begun)
    done = {
        number
        for number in numbers
        if points <= measured[number] or any(kind.over(times) for times, kind in enumerate(failures[number], 1))
    }
    return done, numbers - done


def running(
    begun: Begun, rows: Sequence[Row], gpus: Sequence[str], stage: str, plan: Plan, now: datetime, usual: Usual
) -> Running:
    """A trial that is not over; `stage`: how far its server's log says it is.

    A launch measures what earlier ones of the same trial left.
    """
    trial, launched_s = begun.trial, begun.started_at.timestamp()
    own = [row for row in rows if row.trial == trial.number and row.point is not None and row.started_s >= launched_s]
    left, every = trial.load_points[len(own) :], load_points(plan)
    since_s, usual_s = launched_s, usual.launch_s
    if own or begun.ready_at:
        since_s = own[-1].started_s + (own[-1].measure_s or 0.0) if own else (begun.ready_at or now).timestamp()
        stage = f"measuring {len(every) - len(left) + 1} of {len(every)}" if left else "stopping"
        usual_s = usual.point_s.get(left[0].concurrency) if left else None
    for_s = max(0.0, now.timestamp() - since_s)
    return Running(trial.number, trial.settings, begun.host or "", tuple(gpus), stage, for_s, usual_s)


@dataclass(frozen=True)
class Usual:
    """What things take in this run: medians; None: not known yet."""

    launch_s: float | None
    point_s: Mapping[int, float]
    """Concurrency → seconds of a load point."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Usual:
        launches = {row.trial: row.launch_s for row in rows if row.launch_s is not None}
        points: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            if row.point is not None and row.measure_s is not None:
                points[row.point.concurrency].append(row.measure_s)
        return cls(
            median(launches.values()) if launches else None, {load: median(found) for load, found in points.items()}
        )


def time_left(
    plan: Plan,
    charged: int,
    held_s: Sequence[float],
    at_once: int,
    spent_hours: float,
    spent_gpu_hours: float,
    at_work: int = 0,
) -> Left | None:
    """Until the first bound of the budget; None while nothing is known.

    `held_s`: of each trial that ended; `at_once`: servers at a time; `at_work`: those that run, taken as half done.
    """
    budget, found = plan.budget, list[Left]()
    at_once = max(1, at_once)
    if budget.launches is not None and held_s:
        each_s, left = median(held_s), max(0, budget.launches - charged)
        also = f" and {at_work} running" if at_work else ""
        words = f"{left} launches left{also}, {each_s:.0f} s each (median of {len(held_s)}), {at_once} at once"
        found.append(Left((left + at_work / 2) / at_once * each_s, words))
    if budget.hours is not None:
        found.append(
            Left(
                max(0.0, budget.hours - spent_hours) * 3600,
                f"budget.hours: {spent_hours:.2f} of {budget.hours:g} h spent",
            )
        )
    if budget.gpu_hours is not None:
        width = max(int(size) for size in plan.space.domains["tp_size"].values())
        seconds = max(0.0, budget.gpu_hours - spent_gpu_hours) * 3600 / (at_once * width)
        found.append(Left(seconds, f"budget.gpu_hours: {spent_gpu_hours:.2f} of {budget.gpu_hours:g} spent"))
    return min(found, key=lambda one: one.seconds, default=None)


def duration(seconds: float) -> str:
    """45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def clock(at: datetime | None = None) -> str:
    """A time on this machine's clock with its zone, e.g. 2026-01-02 21:04:05 CET."""
    return (at or datetime.now().astimezone()).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
