"""Rows: a few values of each row of a run, of which thirty thousand are read in a moment.

For whoever wants to know how a sweep stands (leaders.py, standing.py).  Not here: whole rows (results.record).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from results.failure import FailureKind
from results.ledger import read_tables, rows_path
from results.measurement import Effect, worst
from results.record import Record, microseconds
from results.rundir import RunDir
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
