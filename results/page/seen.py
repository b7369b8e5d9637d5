"""What was seen of each settings at each load point, as means over its rows: what the chart of cost draws.

Not here: intervals and who wins (results/verdict.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from results.record import Record
from results.sample import judged_rows
from results.verdict import Verdict
from sweeps.settings import Settings


@dataclass(frozen=True)
class Seen:
    settings: Settings
    concurrency: int
    output_tok_s: float
    acceptance_length: float | None


def seen(records: Sequence[Record]) -> list[Seen]:
    """Trusted rows only, where it was relaunched the relaunches', by concurrency, fastest first."""
    found: dict[int, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.point is not None and record.trusted and record.measurement and record.measurement.output_tok_s:
            found[record.point.concurrency][record.settings.key].append(record)
    every = [_mean(load, rows) for load, here in found.items() for rows in judged_rows(list(here.values()))]
    return sorted(every, key=lambda one: (one.concurrency, -one.output_tok_s))


def plain_tok_s(every: Sequence[Seen], verdict: Verdict) -> dict[int, float]:
    """Concurrency → output of the plain server that the verdict compares with."""
    keys = {answer.concurrency: answer.best_plain.key for answer in verdict.answers if answer.best_plain is not None}
    return {one.concurrency: one.output_tok_s for one in every if keys.get(one.concurrency) == one.settings.key}


def _mean(concurrency: int, rows: Sequence[Record]) -> Seen:
    def mean(metric: str) -> float | None:
        values = [value for row in rows if (value := getattr(row.measurement, metric)) is not None]
        return fmean(values) if values else None

    return Seen(rows[0].settings, concurrency, mean("output_tok_s") or 0.0, mean("acceptance_length"))
