"""Odds: how likely it is that what was found is the best there is, or that speculation pays at all, by drawn truths.

Not here: what was found (known.py), what to launch next (gain.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sweeps.surrogate import Posterior
from sweeps.surrogate.candidates import Floats
from sweeps.surrogate.known import Known

MARGIN, NEAR = 0.01, 0.02
"""Relative: what makes speculation pay, and what counts as found."""
CALM = 0.78
"""Factor on the sds of drawn truths: of many settings that are each in doubt the best leads by less than they say, for
what they do not share is partly the same.  Chosen so that stated and true chances agree (docs/results)."""
DRAWS, MOST_ARMS = 400, 120


@dataclass(frozen=True)
class BreakEven:
    """What speculation would need at one concurrency, by the likeliest setting for it: L > T/T0, and how likely it is to have it."""

    concurrency: int
    place: int
    """Of that setting among the candidates."""
    step_time_ratio: float
    """Expected step time over the plain server's: the acceptance length needed to break even."""
    acceptance_length: float
    """Expected of it."""
    chance: float
    """That some speculative setting is more than MARGIN faster than the best plain server."""


def break_even(known: Known, posterior: Posterior, level: int) -> BreakEven | None:
    """None where no plain server was measured or nothing speculative can run."""
    candidates = known.surrogate.candidates
    plain = np.flatnonzero((known.launches[level] > 0) & ~candidates.speculative)
    able = np.flatnonzero(candidates.speculative & (known.runs[level] > 0))
    if not len(plain) or not len(able):
        return None
    mean = posterior.mean(level)
    best, rival = int(plain[np.argmax(mean[plain])]), int(able[np.argmax(mean[able])])
    chance = 1 - lead(known, posterior, level, best, able)(MARGIN)
    ratio, length = posterior.log_ratio(level)[rival], posterior.log_length(level)[rival]
    return BreakEven(known.surrogate.concurrencies[level], rival, float(np.exp(ratio)), float(np.exp(length)), chance)


def lead(known: Known, posterior: Posterior, level: int, best: int, places: np.ndarray) -> Callable[[float], float]:
    """Of drawn truths: the share in which the best of the places leads by at most so much."""
    mean, variance = posterior.mean(level), posterior.variance(level)
    rivals = places[places != best]
    hope = mean[rivals] + 2 * np.sqrt(variance[rivals])
    arms = np.concatenate([[best], rivals[np.argsort(-hope)[: MOST_ARMS - 1]]])
    drawn, chance = drawn_truths(posterior, level, arms)
    runs = chance.random((DRAWS, len(arms))) < known.runs[level][arms]
    ahead = np.where(runs, drawn, -np.inf)[:, 1:].max(axis=1, initial=-np.inf) - drawn[:, 0]
    return lambda margin: float((ahead <= margin).mean())


def drawn_truths(posterior: Posterior, level: int, arms: np.ndarray) -> tuple[Floats, np.random.Generator]:
    """Drawn truths (draws × arms), and the generator to go on with."""
    lower = np.linalg.cholesky(posterior.covariance(arms, arms, level) + 1e-7 * np.eye(len(arms)))
    chance = np.random.default_rng(11)
    return posterior.mean(level)[arms] + CALM * chance.standard_normal((DRAWS, len(arms))) @ lower.T, chance


def chances_of_best(known: Known, posterior: Posterior, level: int) -> dict[int, float]:
    """Of what was measured at a concurrency within the limits: place → chance that it is the best of them."""
    arms = np.flatnonzero((known.launches[level] > 0) & ~known.outside_limits[level])
    if not len(arms):
        return {}
    first = np.bincount(drawn_truths(posterior, level, arms)[0].argmax(axis=1), minlength=len(arms))
    return dict(zip(arms.tolist(), (first / DRAWS).tolist(), strict=True))


def near(known: Known, posterior: Posterior, found: Sequence[int | None]) -> float:
    """Chance that what was found is within NEAR of the best at every concurrency, as if each had doubts of its own; 0 where
    nothing was found."""
    chance = 1.0
    for level, best in enumerate(found):
        if best is None:
            return 0.0
        chance *= lead(known, posterior, level, best, np.flatnonzero(known.runs[level] > 0))(NEAR)
    return chance
