"""Load points that were slow from their first step to their last: nothing in such a row shows it, but other rows do.

Who does less cannot need longer.  A step (the median gap between chunks) with fewer streams, fewer draft steps, branches
and tokens of the same drafter on the same machine takes no longer than one with more, and a plain step no longer than a
verifying one.  So each step is held against the shortest of those that were asked for as much or more.  Where the same
settings were launched again, only these launches are compared: a relaunch decides.
Pure, and a judgement over all rows: a row alone is not enough, and what is said of it changes with each launch.
Not here: a slow or silent part of a point (orchestrator/measuring/steady.py), which the row itself shows.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from results.measurement import Flag
from results.record import Record

SLOWER = 1.4
"""Times as long as it need be: slow.  On an H200 sound points were within 1.1, a host at half speed gave 1.5 to 2.1."""
SLOWER_TOO = 1.15
"""Enough in a launch most of whose points are slow."""
MOST_NAMED = 5


class Work(NamedTuple):
    """What is asked of a step; it takes no longer than one of which each of these is as large or larger."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    concurrency: int


Place = tuple[str, str, str, str]
"""Host, kind of GPU, workload and the plain server's key: rows that can be compared at all."""
Guesser = tuple[str, str | None, str | None]
"""Algorithm, drafter and the drafter's kernels; of a plain server (none, None, None)."""


class Step(NamedTuple):
    """Of a row that is judged and may judge others."""

    row: int
    place: Place
    guesser: Guesser
    work: Work
    settings: str
    launch: tuple[int, int]
    ms: float


def slowdowns(records: Sequence[Record]) -> dict[int, float]:
    """Index of a row → how many times as long its steps took as they need have; rows that are not slow are left out."""
    plain: dict[str, str] = {}
    steps = [step for row, record in enumerate(records) if (step := _step(row, record, plain)) is not None]
    ratios = {step.row: step.ms / floor for step, floor in zip(steps, _floors(steps), strict=True)}
    launches: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        launches[step.launch].append(ratios[step.row])
    bounds = {launch: SLOWER_TOO if _mostly_slow(found) else SLOWER for launch, found in launches.items()}
    return {step.row: ratios[step.row] for step in steps if ratios[step.row] >= bounds[step.launch]}


def flagged(records: Sequence[Record], slow: Mapping[int, float]) -> list[Record]:
    """The rows, those that are `slow` flagged so."""
    return [_flagged(record) if row in slow else record for row, record in enumerate(records)]


def words(records: Sequence[Record], slow: Mapping[int, float]) -> list[str]:
    """A sentence a launch, the slowest first, the later ones counted only."""
    launches: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for row, ratio in slow.items():
        launches[records[row].trial, records[row].attempt][row] = ratio
    ranked = sorted(launches.values(), key=lambda points: -max(points.values()))
    said = [_sentence([records[row] for row in points], list(points.values())) for points in ranked[:MOST_NAMED]]
    more = len(ranked) - MOST_NAMED
    return [*said, f"{more} more launches were slow in the same way (`slow_steps`)."] if more > 0 else said


def _step(row: int, record: Record, plain: dict[str, str]) -> Step | None:
    """None where the row has no steps, or they are no measure of the machine.  `plain`: settings key → plain server's."""
    measurement, point, ran, origin = record.measurement, record.point, record.settings, record.origin
    if measurement is None or point is None or not record.trusted or Flag.CLIENT_BOUND in record.flags:
        return None
    if not measurement.itl_p50_ms or not math.isfinite(measurement.itl_p50_ms):
        return None
    if ran.key not in plain:
        plain[ran.key] = ran.plain().key
    return Step(
        row=row,
        place=(origin.host, origin.gpu_name, origin.workload, plain[ran.key]),
        guesser=(ran.algorithm, ran.drafter, ran.draft_attention_backend),
        work=Work(ran.num_steps or 0, ran.eagle_topk or 0, ran.num_draft_tokens or 0, point.concurrency),
        settings=ran.key,
        launch=(record.trial, record.attempt),
        ms=measurement.itl_p50_ms,
    )


def _floors(steps: Sequence[Step]) -> list[float]:
    """Of each step the milliseconds that it need not have exceeded; its own where nothing is faster."""
    alike: dict[tuple[Place, str, int], list[Step]] = defaultdict(list)
    for step in steps:
        alike[step.place, step.settings, step.work.concurrency].append(step)
    relaunched = {key: min(s.ms for s in found) for key, found in alike.items() if len({s.launch for s in found}) > 1}
    bounds = _bounds(steps)
    return [
        relaunched.get((step.place, step.settings, step.work.concurrency), bounds[step.place, step.guesser][step.work])
        for step in steps
    ]


def _bounds(steps: Sequence[Step]) -> dict[tuple[Place, Guesser], dict[Work, float]]:
    """Of each guesser's steps the shortest that was asked for as much or more; a plain one's bound is any guesser's."""
    shortest: dict[tuple[Place, Guesser], dict[Work, float]] = defaultdict(dict)
    anyone: dict[Place, dict[Work, float]] = defaultdict(dict)
    plain: dict[Place, Guesser] = {}
    for step in steps:
        for cells in (shortest[step.place, step.guesser], anyone[step.place]):
            cells[step.work] = min(step.ms, cells.get(step.work, math.inf))
        if step.guesser[0] == "none":
            plain[step.place] = step.guesser
    found = {key: _least_above(cells) for key, cells in shortest.items()}
    return found | {(place, guesser): _least_above(anyone[place]) for place, guesser in plain.items()}


def _least_above(cells: Mapping[Work, float]) -> dict[Work, float]:
    """Of each cell the least value of those that are as large or larger in every dimension."""
    axes = [sorted(set(values)) for values in zip(*cells, strict=True)]
    places = {work: tuple(axis.index(value) for axis, value in zip(axes, work, strict=True)) for work in cells}
    grid = np.full([len(axis) for axis in axes], math.inf)
    for work, place in places.items():
        grid[place] = cells[work]
    for dimension in range(grid.ndim):
        grid = np.flip(np.minimum.accumulate(np.flip(grid, dimension), dimension), dimension)
    return {work: float(grid[place]) for work, place in places.items()}


def _mostly_slow(ratios: Iterable[float]) -> bool:
    found = [ratio >= SLOWER for ratio in ratios]
    return 2 * sum(found) > len(found)


def _flagged(record: Record) -> Record:
    return dataclasses.replace(record, flags=tuple(dict.fromkeys((*record.flags, Flag.SLOW_STEPS))))


def _sentence(rows: Sequence[Record], ratios: Sequence[float]) -> str:
    points = {row.point.concurrency: ratio for row, ratio in zip(rows, ratios, strict=True) if row.point}
    at = ", ".join(f"{concurrency} ({ratio:.1f} times)" for concurrency, ratio in sorted(points.items()))
    first = rows[0]
    bound = "lower bounds" if first.settings.speculative else "lower bounds, and speedups over them upper ones"
    return (
        f"Trial {first.trial}, {first.asked}, was slow from end to end at concurrency {at}: a step took so many times as "
        f"long as where no less was asked of it. Most likely the machine was slow; its figures there are {bound}."
    )
