"""Drafters that are not worth another launch: whole launches show that they guess nothing, or they cannot be loaded.

One load point says little: a head that guesses nothing showed 1.10 on six prompts, and 1.01 on the next load point.  So
all points of a launch are pooled.  Not here: flags of single rows (measurement.py), whether speculation pays (verdict.py).
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from results.failure import FailureKind
from results.measurement import INEFFECTIVE_BELOW, Flag, Measurement
from results.record import Record

ENOUGH_STEPS = 200
"""Verify steps below which a launch says nothing of its drafter."""
Pair = tuple[str, str | None]
"""Algorithm and drafter."""


@dataclass(frozen=True)
class Acceptance:
    """Of all load points of a launch, or of several launches, together."""

    drafted_right: float = 0.0
    verify_steps: float = 0.0

    @property
    def length(self) -> float:
        """Tokens per verify step, the bonus token included."""
        return 1 + self.drafted_right / self.verify_steps if self.verify_steps else 1.0

    @property
    def enough(self) -> bool:
        return self.verify_steps >= ENOUGH_STEPS

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(self.drafted_right + other.drafted_right, self.verify_steps + other.verify_steps)


def of_point(measurement: Measurement) -> Acceptance:
    """From the histogram; without one, from the length and the tokens, of which each verify step gives `length`."""
    histogram, length = measurement.acceptance_histogram, measurement.acceptance_length
    if histogram:
        return Acceptance(sum(right * steps for right, steps in enumerate(histogram)), sum(histogram))
    if length and measurement.output_tokens:
        steps = measurement.output_tokens / length
        return Acceptance((length - 1) * steps, steps)
    return Acceptance()


def by_category(records: Iterable[Record]) -> dict[Pair, dict[str, Acceptance]]:
    """Algorithm and drafter, as asked → category of prompts → acceptance, over all trusted rows that tell categories."""
    found: dict[Pair, dict[str, Acceptance]] = defaultdict(dict)
    for record in records:
        told = record.measurement.acceptance_by_category if record.measurement and record.trusted else None
        mine = found[record.asked.algorithm, record.asked.drafter] if told else {}
        for category, histogram in (json.loads(told) if told else {}).items():
            here = Acceptance(sum(right * steps for right, steps in enumerate(histogram)), sum(histogram))
            mine[category] = mine.get(category, Acceptance()) + here
    return dict(found)


def ineffective(records: Iterable[Record]) -> dict[Pair, Acceptance]:
    """Algorithm and drafter, as asked, whose launches guess nothing: one launch at least says so, and none otherwise.

    NGRAM is left out: it has no drafter, and what it finds depends on its settings.
    """
    launches: dict[tuple[Pair, int], list[Record]] = defaultdict(list)
    for record in records:
        if record.measured and record.asked.speculative and record.asked.algorithm != "NGRAM":
            launches[(record.asked.algorithm, record.asked.drafter), record.trial].append(record)
    pooled: dict[Pair, list[Acceptance]] = defaultdict(list)
    for (pair, _), rows in launches.items():
        if (acceptance := _pooled(rows)).enough:
            pooled[pair].append(acceptance)
    return {pair: sum(known, Acceptance()) for pair, known in pooled.items() if _all_in_vain(known)}


@dataclass(frozen=True)
class Reason:
    """Why an algorithm with a drafter is given up."""

    event: str
    """Its name in the journal: drafter_ineffective or drafter_mismatch."""
    words: str
    facts: dict[str, Any]
    """For the journal."""


def hopeless(records: Sequence[Record]) -> dict[Pair, Reason]:
    """What is not worth another launch: it guesses nothing, or its first launch failed because it does not fit."""
    found = {pair: _mismatch(row) for pair, row in _mismatched(records).items()}
    return found | {pair: _in_vain(acceptance) for pair, acceptance in ineffective(records).items()}


def _mismatched(records: Sequence[Record]) -> dict[Pair, Record]:
    """The first such failure of each algorithm and drafter that was never measured."""
    ran = {(row.asked.algorithm, row.asked.drafter) for row in records if row.measured}
    failed = [row for row in records if row.failure and row.failure.kind is FailureKind.DRAFTER_MISMATCH]
    first = {(row.asked.algorithm, row.asked.drafter): row for row in reversed(failed) if row.asked.speculative}
    return {pair: row for pair, row in first.items() if pair not in ran}


def _mismatch(row: Record) -> Reason:
    assert row.failure is not None
    cause = row.failure.cause_in_short().removesuffix(".")
    return Reason("drafter_mismatch", f"it does not fit the target: {cause}", {"trial": row.trial, "cause": cause})


def _in_vain(acceptance: Acceptance) -> Reason:
    length, steps = round(acceptance.length, 4), round(acceptance.verify_steps)
    words = f"it guesses nothing, acceptance length {length:.2f} over {steps} verify steps"
    return Reason("drafter_ineffective", words, {"acceptance_length": length, "verify_steps": steps})


def flagged(records: Sequence[Record], vain: Collection[Pair]) -> list[Record]:
    """The rows, those of ineffective drafters (`vain`) flagged so: also at load points that looked better by chance."""
    return [row if (row.asked.algorithm, row.asked.drafter) not in vain else _flagged(row) for row in records]


def _flagged(row: Record) -> Record:
    if not row.measured or Flag.DRAFTER_INEFFECTIVE in row.flags:
        return row
    return dataclasses.replace(row, flags=(*row.flags, Flag.DRAFTER_INEFFECTIVE))


def _pooled(rows: Sequence[Record]) -> Acceptance:
    sound = [row.measurement for row in rows if row.measurement and Flag.SIMULATED_ACCEPTANCE not in row.flags]
    return sum(map(of_point, sound), Acceptance())


def _all_in_vain(launches: Sequence[Acceptance]) -> bool:
    return all(launch.length < INEFFECTIVE_BELOW for launch in launches)
