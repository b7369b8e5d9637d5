"""Standing: how far a sweep is, now: what runs and for how long, the best so far, what was spent and what is left.

The same facts for the live view (progress.py), which has them in memory, and for the verb status (reading.py), which reads
them from the files of a running or dead sweep.  So they are made from `Row`s, a few values of a row, of which thirty
thousand are read in a moment.  Not here: the verdict, which knows its doubt (results/verdict.py).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from statistics import fmean, median
from typing import Any, NamedTuple

import yaml

from orchestrator.plan import Plan
from orchestrator.trials import load_points
from results.begun import Begun
from results.failure import FailureKind
from results.ledger import read_tables, rows_path
from results.measurement import Effect, worst
from results.record import Record, microseconds
from results.rundir import RunDir
from results.sample import geometric, judged_by
from sweeps.observation import Goal
from sweeps.settings import Settings, knobs
from sweeps.trial import LoadPoint


class Row(NamedTuple):
    trial: int
    key: str
    """Of the settings that ran."""
    speculative: bool
    point: LoadPoint | None
    value: float | None
    """Of the goal's metric, where it was measured and may win."""
    limited: tuple[float | None, ...]
    """Of the metrics that the goal limits."""
    failure: FailureKind | None
    launch: int
    """Ordinal among launches of the same settings."""
    launch_s: float | None
    measure_s: float | None
    started_s: float
    """When it began to be measured, or failed: seconds since 1970."""


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


class Reported(NamedTuple):
    """What a run's report says of a load point."""

    concurrency: int
    answer: str
    """better, worse, cannot tell or not compared."""
    use: Settings | None
    """The speculative settings to run; None: the plain server, or `nothing`."""
    speculative: Settings | None
    """The best that may win, whether it is to be run or not."""
    speedup: float | None
    """Of that over the best plain server."""
    nothing: str
    """Why there is no such one, for a person; else empty."""
    known: bool
    """Whether it is known what to run."""


class Best(NamedTuple):
    concurrency: int
    speculative: str | None
    """Settings key; None: none was measured here, or none that was may win."""
    speedup: float | None
    """Over the best plain server; None where one of the two is missing."""
    nothing: str = ""
    """Why there is no speculative one, for a person; else empty."""


@dataclass(frozen=True)
class Left:
    """How long it goes on, and what that rests on."""

    seconds: float
    basis: str


def row_of(record: Record, goal: Goal) -> Row:
    measurement = record.measurement
    return Row(
        trial=record.trial, key=record.settings.key, speculative=record.settings.speculative, point=record.point if record.measured else None,
        value=record.value(goal) if record.trusted else None, limited=tuple(getattr(measurement, name, None) for name in goal.limits),
        failure=record.failure.kind if record.failure else None, launch=record.launch, launch_s=record.launch_s,
        measure_s=measurement.measure_s if measurement else None, started_s=record.started_at.timestamp(),
    )  # fmt: skip


_COLUMNS = (
    "trial", "settings_key", "algorithm", "concurrency", "repeat", "status", "flags", "failure_kind", "launch", "launch_s", "measure_s", "started_at",
)  # fmt: skip


def tables_of(run: RunDir, goal: Goal) -> list[Any]:
    """The rows of `run` as Arrow tables; of a compacted run no more columns than are wanted here."""
    import pyarrow.parquet as pq

    path = rows_path(run)
    if path != run.compact_file:
        return read_tables(run)
    there = set(pq.read_schema(path).names)
    wanted = [name for name in (*_COLUMNS, goal.metric, *goal.limits, *knobs(), "server_args") if name in there]
    return [pq.ParquetFile(path).read(columns=list(dict.fromkeys(wanted)))]


def rows_of(tables: Iterable[Any], goal: Goal) -> list[Row]:
    """From Arrow tables of rows; a column that an older run does not have counts as not measured."""
    rows: list[Row] = []
    for table in tables:
        shared, limits = ([_column(table, name) for name in names] for names in (_COLUMNS, goal.limits))
        limited = list(zip(*limits, strict=True)) if limits else [()] * table.num_rows
        values = zip(zip(*shared, strict=True), _column(table, goal.metric), limited, strict=True)
        rows += [_row(*of_row, goal) for of_row in values]
    return rows


def _column(table: Any, name: str) -> list[Any]:
    if name not in table.schema.names:
        return [None] * int(table.num_rows)
    column = table.column(name)
    return microseconds(column) if name == "started_at" else list(column.to_pylist())


def _row(shared: Sequence[Any], value: float | None, limited: tuple[float | None, ...], goal: Goal) -> Row:
    trial, key, algorithm, concurrency, repeat, status, flags, failure_kind, launch, launch_s, measure_s, started_us = (
        shared
    )
    measured = status == "measured"
    usable = measured and value is not None and math.isfinite(value) and value > 0 and _may_win(tuple(flags))
    return Row(
        trial=trial, key=key, speculative=algorithm != "none", point=LoadPoint(concurrency, repeat) if measured else None,
        value=goal.merit(value) if usable and value is not None else None, limited=limited,
        failure=None if measured else FailureKind(failure_kind), launch=launch, launch_s=launch_s, measure_s=measure_s, started_s=started_us / 1e6,
    )  # fmt: skip


@cache
def _may_win(flags: tuple[str, ...]) -> bool:
    return worst(list(flags)) not in (Effect.NEVER_BEST, Effect.INVALID)


def settings_in(tables: Iterable[Any], keys: set[str]) -> dict[str, Settings]:
    """The settings as run with these keys."""
    found: dict[str, Settings] = {}
    for table in tables:
        places = {key: place for place, key in enumerate(_column(table, "settings_key")) if key in keys}
        for key, place in places.items():
            (row,) = (
                table.slice(place, 1)
                .select([n for n in (*knobs(), "server_args") if n in table.schema.names])
                .to_pylist()
            )
            args = json.loads(row.pop("server_args"))
            found[key] = Settings.from_dict({**row, "server_args": args})
    return found


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


def best_so_far(rows: Iterable[Row], goal: Goal) -> list[Best]:
    """Per load point, by means over the launches that the verdict counts; what breaks a limit is left out.

    Where a setting was launched again the verdict is about such a one; only a first launch that is clearly faster goes before
    it there, which takes intervals to tell.
    """
    found: dict[int, dict[tuple[bool, str], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.point is not None and goal.counts(row.point.concurrency):
            found[row.point.concurrency][row.speculative, row.key].append(row)
    return [_best(concurrency, here, goal) for concurrency, here in sorted(found.items())]


def reported(run: RunDir) -> tuple[str, list[Reported]] | None:
    """The verdict's sentence and what it says of each load point, as the run's report has them.

    The report knows its doubt, which `best_so_far` does not.  None: there is no best.yaml that could be read.
    """
    try:
        found = yaml.safe_load(run.best.read_bytes())
        return str(found["verdict"]), [_reported(answer) for answer in found["answers"]]
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return None


def _reported(answer: Mapping[str, Any]) -> Reported:
    use = None if answer["settings"] == "baseline" else Settings.from_dict(answer["settings"])
    other, may_win, unmet = answer.get("best_speculative"), answer.get("may_win", True), answer.get("nothing_meets")
    best = use or (Settings.from_dict(other) if other and may_win else None)
    measured = "no speculative setting may win" if other else "no speculative setting was measured"
    nothing = f"nothing meets {unmet}" if unmet else "" if best else measured
    speedup = answer["speedup"] if best else None
    known = not unmet and bool(use or answer["command"] or answer["speedup"])
    return Reported(answer["concurrency"], answer["answer"], use, best, speedup, nothing, known)


def _best(concurrency: int, here: Mapping[tuple[bool, str], Sequence[Row]], goal: Goal) -> Best:
    sound = {who: kept for who, rows in here.items() if (kept := [row for row in rows if row.value is not None])}
    picked = sum(speculative for speculative, _ in sound) > 1
    logs: dict[bool, dict[str, float]] = {True: {}, False: {}}
    proven: dict[str, float] = {}
    within: dict[bool, list[float]] = {True: [], False: []}
    broken: list[str] = []
    for (speculative, key), rows in sound.items():
        counted = judged_by(rows, lambda row: row.launch, picked=picked and speculative)
        log = fmean(math.log(row.value or math.nan) for row in counted)
        above = _broken(counted, goal)
        broken += above if speculative else []
        within[speculative] += [] if above else [log]
        if not speculative or not above:
            logs[speculative][key] = log
            if speculative and all(row.launch > 0 for row in counted):
                proven[key] = log
    plain = max(within[False] or logs[False].values(), default=None)
    winner = _winner(logs[True], proven, plain)
    if winner is None:
        return Best(concurrency, None, None, _nothing(sum(speculative for speculative, _ in here), broken))
    return Best(concurrency, winner, None if plain is None else math.exp(logs[True][winner] - plain))


def _nothing(measured: int, broken: Sequence[str]) -> str:
    if not measured:
        return "nothing speculative measured yet"
    why = " and ".join(dict.fromkeys(broken)) or "flags bar their rows"
    return f"no speculative setting may win so far, {measured} measured ({why})"


def _winner(logs: Mapping[str, float], proven: Mapping[str, float], plain: float | None) -> str | None:
    """The fastest that was launched again, but not where that looks slower than the plain server and another faster."""
    fastest, best = (max(found, key=lambda key: found[key], default=None) for found in (logs, proven))
    if fastest is None or best is None:
        return fastest
    return fastest if plain is not None and logs[fastest] > plain >= proven[best] else best


def _broken(rows: Sequence[Row], goal: Goal) -> list[str]:
    """The limits that some settings break."""
    found = []
    for place, (name, limit) in enumerate(goal.limits.items()):
        values = [value for row in rows if (value := row.limited[place]) is not None]
        if values and geometric(values) > limit:
            found.append(f"{name} is above its limit {limit:g}")
    return found


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
