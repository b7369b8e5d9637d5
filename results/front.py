"""Front: every settings at every load point as throughput per GPU beside the speed one user sees, and what a token costs.

Which of them to want is a person's choice; a point that another one beats in both is nobody's (Pareto).
Pure.  Not here: how sure a speed is (verdict.py), the drawing (page/cost.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.record import Record
from results.sample import mean
from sweeps.observation import Goal
from sweeps.settings import Settings


@dataclass(frozen=True)
class Offer:
    """What one settings gives at one load point: means over its trusted launches, where it was relaunched over the relaunches."""

    settings: Settings
    concurrency: int
    gpus: int
    output_tok_s_per_gpu: float
    user_tok_s: float
    tokens_per_joule: float | None = None
    cost_per_million_tokens: float | None = None
    """In the currency of the goal's price; None without one."""


def offers(counted: Iterable[Sequence[Record]], goal: Goal) -> list[Offer]:
    """Of all settings that may win and keep the goal's limits, the fastest for one user first.

    `counted`: the rows of each settings at each load point (sample.counted_rows); those without a user's speed are left out.
    """
    kept = ([row for row in rows if row.measurement and row.measurement.user_tok_s] for rows in counted)
    made = [_offer(rows, goal) for rows in kept if rows and _keeps(rows, goal)]
    return sorted(made, key=lambda one: (-one.user_tok_s, -one.output_tok_s_per_gpu))


def unbeaten(found: Iterable[Offer]) -> list[Offer]:
    """Those that no other of them beats in both, from the fastest for one user to the most throughput."""
    kept: list[Offer] = []
    for one in sorted(found, key=lambda one: (-one.user_tok_s, -one.output_tok_s_per_gpu)):
        if not kept or one.output_tok_s_per_gpu > kept[-1].output_tok_s_per_gpu:
            kept.append(one)
    return kept


def cost_per_million_tokens(output_tok_s_per_gpu: float, price_per_gpu_hour: float) -> float:
    """Price of the GPU time that a million output tokens take."""
    return price_per_gpu_hour / 3600 / output_tok_s_per_gpu * 1e6


def _offer(rows: Sequence[Record], goal: Goal) -> Offer:
    first = rows[0]
    assert first.point is not None
    gpus = max(len(first.origin.gpus), first.settings.tp_size, 1)
    per_gpu = (mean(rows, "output_tok_s") or 0.0) / gpus
    price = goal.price_per_gpu_hour
    return Offer(
        settings=first.settings,
        concurrency=first.point.concurrency,
        gpus=gpus,
        output_tok_s_per_gpu=per_gpu,
        user_tok_s=mean(rows, "user_tok_s") or 0.0,
        tokens_per_joule=mean(rows, "tokens_per_joule"),
        cost_per_million_tokens=None if price is None else cost_per_million_tokens(per_gpu, price),
    )


def _keeps(rows: Sequence[Record], goal: Goal) -> bool:
    means = {name: mean(rows, name) for name in goal.limits}
    return all(value is None or value <= goal.limits[name] for name, value in means.items())
