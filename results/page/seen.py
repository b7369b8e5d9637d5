"""What was seen of each settings at each load point, as means over its launches: what the chart of cost draws.

Not here: intervals and who wins (results/verdict.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.record import Record
from results.sample import mean
from results.verdict import Verdict
from sweeps.settings import Settings


@dataclass(frozen=True)
class Seen:
    settings: Settings
    concurrency: int
    output_tok_s: float
    acceptance_length: float | None


def seen(counted: Iterable[Sequence[Record]]) -> list[Seen]:
    """By concurrency, fastest first; `counted`: the rows of each settings at each load point (sample.counted_rows)."""
    return sorted(map(_seen, counted), key=lambda one: (one.concurrency, -one.output_tok_s))


def plain_tok_s(every: Sequence[Seen], verdict: Verdict) -> dict[int, float]:
    """Concurrency → output of the plain server that the verdict compares with."""
    keys = {answer.concurrency: answer.best_plain.key for answer in verdict.answers if answer.best_plain is not None}
    return {one.concurrency: one.output_tok_s for one in every if keys.get(one.concurrency) == one.settings.key}


def _seen(rows: Sequence[Record]) -> Seen:
    return Seen(
        rows[0].settings,
        rows[0].point.concurrency if rows[0].point else 0,
        mean(rows, "output_tok_s") or 0.0,
        mean(rows, "acceptance_length"),
    )
