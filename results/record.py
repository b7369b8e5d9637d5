"""Record: one row of a run: a load point measured on a launch, or the failure that ended a trial.

A row's columns are walked from the nouns: knobs from `Settings`, metrics from `Measurement`, and the rest from the
table below, each with a doc.  Not here: files (ledger.py), judgement (verdict.py).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa

from results.failure import Failure, FailureKind, Stage
from results.measurement import Effect, Flag, Measurement, metrics, worst
from sweeps.observation import Goal, Observation
from sweeps.settings import Settings, knobs
from sweeps.trial import Kind, LoadPoint, Trial

SCHEMA_VERSION = "1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Origin:
    """Where a row comes from: the same for all rows of one launch."""

    run: str
    engine: str
    engine_version: str
    simulated: bool
    host: str
    gpus: tuple[str, ...]
    gpu_name: str
    driver_version: str
    target: str
    workload: str
    argv: tuple[str, ...] = ()
    drafter_hash: str | None = None
    log: str = ""
    launch_mode: str | None = None
    launched: str | None = None
    standby_s: float | None = None
    recorded: str | None = None
    """Of a replay: the recorded launch that answered."""


@dataclass(frozen=True)
class Record:
    """A measured point has `point` and `measurement`; a failed one has `failure` (and the point it happened at, if any)."""

    trial: int
    attempt: int
    kind: Kind
    launch: int
    asked: Settings
    settings: Settings
    """What ran, by the server's own info; equals `asked` when it never came up."""
    origin: Origin
    started_at: datetime
    launch_s: float | None = None
    """Seconds from starting the process, or from telling a standby what to start, to ready."""
    point: LoadPoint | None = None
    measurement: Measurement | None = None
    failure: Failure | None = None
    flags: tuple[Flag, ...] = ()

    @classmethod
    def of(cls, trial: Trial, origin: Origin, **more: Any) -> Record:
        given = {"settings": trial.settings, "started_at": datetime.now(UTC), **more}
        return cls(
            trial=trial.number, attempt=trial.attempt, kind=trial.kind, launch=trial.launch, asked=trial.settings,
            origin=origin, **given,
        )  # fmt: skip

    @property
    def measured(self) -> bool:
        return self.failure is None

    @property
    def trusted(self) -> bool:
        """Whether this row may win: measured, and no flag says otherwise."""
        return self.measured and all(flag.effect is Effect.NOTE for flag in self.flags)

    @property
    def key(self) -> tuple[str, int, str, int, int] | None:
        """(settings key as asked, launch, workload, concurrency, repeat); None for a failure."""
        if self.point is None or not self.measured:
            return None
        return (self.asked.key, self.launch, self.origin.workload, self.point.concurrency, self.point.repeat)

    def value(self, goal: Goal) -> float | None:
        """The merit of the goal's metric (itself, or its inverse where it is to be lowered); None where it is missing or
        what no healthy point can show: zero, negative, infinite, not a number."""
        value: float | None = getattr(self.measurement, goal.metric, None)
        return goal.merit(value) if value is not None and math.isfinite(value) and value > 0 else None

    def observation(self, goal: Goal) -> Observation:
        common = {
            "trial": self.trial, "settings": self.asked, "launch": self.launch,
            "concurrency": self.point.concurrency if self.point else None,
            "repeat": self.point.repeat if self.point else 0,
        }  # fmt: skip
        if self.failure is not None:
            final = self.failure.kind.blame == "setting" and not self.failure.kind.retried
            outcome = "infeasible" if final else "fault"
            return Observation(**common, outcome=outcome, cause=str(self.failure.kind))  # type: ignore[arg-type]
        assert self.measurement is not None
        values = {name: getattr(self.measurement, name) for name in metrics()}
        invalid = worst(list(self.flags)) is Effect.INVALID
        excess = [(values[n] - limit) / limit for n, limit in goal.limits.items() if values[n] is not None]
        histogram = values["acceptance_histogram"]
        return Observation(
            **common,  # type: ignore[arg-type]
            outcome="measured",
            value=None if invalid else self.value(goal),
            excess=max(excess, default=0.0),
            acceptance_length=values["acceptance_length"],
            acceptance_histogram=tuple(histogram) if histogram is not None else None,
            launch_s=self.launch_s,
            measure_s=values["measure_s"],
        )

    def row(self) -> dict[str, Any]:
        """Column name → plain value, every column of `schema()` present."""
        out: dict[str, Any] = dict.fromkeys(schema().names)
        out |= {name: getattr(self.settings, name) for name in knobs()}
        if self.measurement is not None:
            out |= {name: getattr(self.measurement, name) for name in metrics()}
        origin = dataclasses.asdict(self.origin)
        out |= {**origin, "gpus": list(self.origin.gpus), "argv": list(self.origin.argv)}
        out |= {
            "trial": self.trial, "attempt": self.attempt, "launch": self.launch, "kind": self.kind,
            "status": "measured" if self.measured else "failed", "flags": [str(flag) for flag in self.flags],
            "settings_key": self.settings.key, "asked_key": self.asked.key,
            "asked_settings": json.dumps(self.asked.as_dict(), sort_keys=True),
            "server_args": json.dumps(dict(self.settings.server_args), sort_keys=True),
            "concurrency": self.point.concurrency if self.point else None,
            "repeat": self.point.repeat if self.point else None,
            "launch_s": self.launch_s, "started_at": self.started_at,
        }  # fmt: skip
        if self.failure is not None:
            out |= {
                "failure_kind": str(self.failure.kind), "failure_stage": str(self.failure.stage),
                "failure_message": self.failure.message,
            }  # fmt: skip
        return out

    @classmethod
    def from_table(cls, table: pa.Table) -> list[Record]:
        """The rows of a table like `schema()`; a column that it lacks is taken as not measured.

        Raises:
            KeyError, TypeError, ValueError: it holds what no row of ours can hold.
        """
        there, none = set(table.column_names), [None] * table.num_rows
        plain = [name for name in schema().names if name != "started_at"]  # whose conversion imports pandas
        columns = {name: table.column(name).to_pylist() if name in there else none for name in plain}
        columns |= {name: list(map(tuple, columns[name])) for name in ("gpus", "argv", "flags")}
        columns["started_at"] = [_EPOCH + timedelta(microseconds=at) for at in microseconds(table.column("started_at"))]

        def rows(names: Iterable[str]) -> list[tuple[Any, ...]]:
            return list(zip(*(columns[name] for name in names), strict=True))

        asked = _shared(lambda text: Settings.from_dict(json.loads(text)), columns["asked_settings"])
        settings = _shared(_ran, rows((*knobs(), "server_args")))
        origins = _shared(lambda values: Origin(*values), rows(item.name for item in dataclasses.fields(Origin)))
        flags = _shared(lambda names: tuple(map(Flag, names)), columns["flags"])
        points, failures = rows(("concurrency", "repeat")), rows(("failure_kind", "failure_stage", "failure_message"))
        common = rows(("trial", "attempt", "kind", "launch", "status", "launch_s", "started_at"))
        return [
            cls(
                trial=trial, attempt=attempt, kind=kind, launch=launch, asked=asked[i], settings=settings[i], origin=origins[i],
                started_at=started_at, launch_s=launch_s, point=None if points[i][0] is None else LoadPoint(*points[i]),
                measurement=Measurement(*values) if status == "measured" else None,
                failure=None if status == "measured" else _failure(*failures[i]), flags=flags[i],
            )
            for i, ((trial, attempt, kind, launch, status, launch_s, started_at), values) in enumerate(
                zip(common, rows(metrics()), strict=True)
            )
        ]  # fmt: skip


def microseconds(column: pa.ChunkedArray) -> list[int]:
    """Of a column of times, since 1970: pyarrow's own way to Python's times imports pandas."""
    return [at for chunk in column.chunks for at in chunk.view(pa.int64()).to_pylist()]


def _shared(make: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """What `make` makes of each value, equal ones of one object, which then finds out but once what it remembers of itself."""
    made = {value: make(value) for value in set(values)}
    return [made[value] for value in values]


def _ran(values: Sequence[Any]) -> Settings:
    """From its knobs in their order, and the arguments that are passed through as JSON."""
    *given, server_args = values
    return Settings.from_dict({**dict(zip(knobs(), given, strict=True)), "server_args": json.loads(server_args)})


def _failure(kind: str, stage: str, message: str) -> Failure:
    return Failure(FailureKind(kind), Stage(stage), message)


_COLUMNS: tuple[tuple[str, pa.DataType, str, str], ...] = (
    ("run", pa.string(), "", "Name of the run directory."),
    ("trial", pa.int32(), "", "Number of the trial in the run."),
    ("attempt", pa.int32(), "", "Which attempt at the trial measured this row, from 1."),
    ("launch", pa.int32(), "", "Ordinal of the launch among launches of the same settings, from 0."),
    (
        "kind",
        pa.string(),
        "",
        "baseline (the plain server), trial (a proposal), finalist (a relaunch for the final race).",
    ),
    ("status", pa.string(), "", "measured or failed."),
    ("flags", pa.list_(pa.string()), "", "What lowers the trust in this row; see results/measurement.py."),
    ("engine", pa.string(), "", "engine.name: sglang, simulated, attached or replay."),
    (
        "engine_version",
        pa.string(),
        "",
        "Version of the installed engine, as its package says it; of a simulated one, the version that it speaks like.",
    ),
    ("simulated", pa.bool_(), "", "True: a performance model answered, not a GPU."),
    ("host", pa.string(), "", "Machine the server ran on."),
    ("gpus", pa.list_(pa.string()), "", "GPUs of the server."),
    ("gpu_name", pa.string(), "", "Name of the GPUs."),
    ("driver_version", pa.string(), "", "Version of the GPU driver."),
    ("target", pa.string(), "", "Target model."),
    ("settings_key", pa.string(), "", "Key of the settings that ran."),
    ("asked_key", pa.string(), "", "Key of the settings that were asked for."),
    ("asked_settings", pa.string(), "", "The settings that were asked for, as JSON."),
    ("server_args", pa.string(), "", "Arguments passed through, as JSON."),
    ("argv", pa.list_(pa.string()), "", "The server's command line."),
    ("drafter_hash", pa.string(), "", "Hash of the drafter's config.json."),
    ("log", pa.string(), "", "The server's log, relative to the run directory."),
    ("workload", pa.string(), "", "Key of the workload."),
    ("concurrency", pa.int32(), "streams", "Streams at once."),
    ("repeat", pa.int32(), "", "Which repeat of the load point on this launch, from 0."),
    (
        "launch_s",
        pa.float64(),
        "s",
        "Seconds from starting the process, or from telling a standby what to start, to ready.",
    ),
    (
        "standby_s",
        pa.float64(),
        "s",
        "Seconds from the standby's start to ready; none where no standby became the server.",
    ),
    ("launch_mode", pa.string(), "", "engine.launch_mode of the launch: plain, overlap or standby."),
    (
        "launched",
        pa.string(),
        "",
        "How it was launched in fact: plain (and why, where another mode was asked for), or the mode and for each child of the server whether its imports were done ahead (warm) or not (cold).",
    ),
    (
        "recorded",
        pa.string(),
        "",
        "Of a replay: the recorded launch that answered, as run/trial/attempt; launches that one recorded launch answered count as one.",
    ),
    ("failure_kind", pa.string(), "", "Why the trial failed; see results/failure.py."),
    ("failure_stage", pa.string(), "", "How far the launch had come."),
    ("failure_message", pa.string(), "", "Cause, log path and what to do."),
    ("started_at", pa.timestamp("us", tz="UTC"), "", "When the load point (or the failed launch) began."),
)

_TYPES = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "list[int]": pa.list_(pa.int64()),
}  # fmt: skip


@cache
def schema() -> pa.Schema:
    """The Parquet schema of `trials/`: every column with its doc and unit in the field's metadata."""

    def column(name: str, kind: pa.DataType, unit: str, doc: str) -> pa.Field:
        return pa.field(name, kind, metadata={"doc": doc, "unit": unit} if unit else {"doc": doc})

    first = [column(*c) for c in _COLUMNS]
    knob = [column(k.name, _TYPES[k.type.__name__], k.unit or "", k.doc) for k in knobs().values()]
    metric = [column(m.name, _TYPES[m.type], m.unit, m.doc) for m in metrics().values()]
    return pa.schema(first + knob + metric, metadata={"schema_version": SCHEMA_VERSION})
