"""Gain: which setting to launch next and at which concurrencies, by what is learned per second of GPU.

The worth of measuring x at one concurrency is how much the best expected setting is expected to rise by it (knowledge
gradient, on the log scale), relative to the best one measured so far and with the covariance between the two.  Where the model sees next to nothing left to gain, it is asked again as if it were half as sure of
what was never measured (insurance).  Not here: the model (__init__.py), what was
observed (known.py), how likely more is to be found (odds.py), Optuna (sweeps/sampler).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from sweeps.observation import Observation
from sweeps.surrogate import Posterior
from sweeps.surrogate.candidates import Bools, Floats
from sweeps.surrogate.known import Known
from sweeps.surrogate.odds import near

SMALL_GAIN = 0.004
"""Expected rise of the log speed below which insurance takes over."""
LITTLE_GAIN, LITTLE_INSURED_GAIN = 0.005, 0.02
"""Expected rises, as they are and with the doubt doubled, below which together the search has seen enough."""
NEAR_ENOUGH = 0.8
"""Chance that the best found is within NEAR of the best there is, from which on the search may end."""
INSURED, LEAST_INSURED_SD = 2.0, 0.03
"""Factor on the sd of what was never measured, and its least value, for the insurance."""
SHORT, SHORT_SD = 0.7, 0.2
"""While the plain server leads: settings of so many times the fewest tokens that were verified, or fewer, are in this doubt
at least.  What is slow at many tokens may be a kernel that switches at some number of them, not speculation itself."""
MOST_LAUNCHES = 2
"""Of one setting in the search; the race may relaunch more often."""
WORTH_A_POINT, WORTH_OF_BEST = 0.3, 0.15
"""A concurrency is measured when its gain is this share of the setting's best, and of the best of all."""
USUAL_LAUNCH_S, USUAL_MEASURE_S = 120.0, 60.0


@dataclass(frozen=True)
class Pending:
    """Settings that are being measured, at these concurrencies."""

    key: str
    concurrencies: tuple[int, ...]


@dataclass(frozen=True)
class Next:
    place: int
    """Of the settings among the candidates."""
    concurrencies: tuple[int, ...]
    """Those worth measuring, ascending."""
    gain: float
    """Expected rise of the log of the best speed, the largest over concurrencies and settings."""
    insured_gain: float
    """The same with the doubt doubled."""
    best: tuple[int | None, ...] = ()
    """A concurrency: the place of the best expected of what was measured there; None: nothing was."""
    near: float = 0.0
    """Chance that `best` is within NEAR of the best at every concurrency."""
    mean_gain: float = np.inf
    mean_insured_gain: float = np.inf
    """Both, the largest over settings at each concurrency, in the mean over concurrencies."""

    @property
    def enough(self) -> bool:
        """Whether nothing is likely to be found that would be worth its launch: many near-equal settings are found as well."""
        little = self.mean_gain < LITTLE_GAIN and self.mean_insured_gain < LITTLE_INSURED_GAIN
        return little or self.near >= NEAR_ENOUGH


@dataclass(frozen=True)
class Costs:
    """Seconds of GPU time, medians of what was seen."""

    launch_s: float = USUAL_LAUNCH_S
    measure_s: float = USUAL_MEASURE_S

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> Costs:
        seen = list(observations)
        launch = [o.launch_s for o in seen if o.launch_s]
        measure = [o.measure_s for o in seen if o.measure_s]
        return cls(
            float(np.median(launch)) if launch else USUAL_LAUNCH_S,
            float(np.median(measure)) if measure else USUAL_MEASURE_S,
        )


def next_launch(
    known: Known,
    pending: Sequence[Pending] = (),
    costs: Costs = Costs(),
    allowed: Bools | None = None,
    chance: random.Random | None = None,
    every_load: bool = False,
) -> Next | None:
    """The launch that is worth most per second; None when nothing is left that may be launched.

    `every_load`: a launch is measured at all concurrencies, and is worth what it teaches at all of them.

    `allowed`: of each candidate, whether it may be proposed; None: all may.  `chance` decides where nothing else does.
    """
    surrogate = known.surrogate
    waiting = [
        (surrogate.candidates.place[p.key], surrogate.levels[c]) for p in pending for c in p.concurrencies
        if p.key in surrogate.candidates.place and c in surrogate.levels
    ]  # fmt: skip
    may = np.ones(len(surrogate.candidates), bool) if allowed is None else allowed.copy()
    may[[place for place, _ in waiting]] = False
    if all(point.elsewhere for point in known.points):
        return _blind(known, pending, may, chance or random.Random(0))  # noqa: S311 - an order, not secrets
    posterior = surrogate.fit(known.points, waiting)
    gains = np.stack([_gain(known, posterior, level, may) for level in range(len(surrogate.concurrencies))])
    if known.weights:
        gains *= (np.array(known.weights) / np.mean(known.weights))[:, None, None]
    plain, insured = gains[:, 0], gains[:, 1]
    if max(plain.max(), insured.max()) <= 0:
        return None
    chosen = plain if plain.max() >= SMALL_GAIN else insured
    worth = (chosen >= np.maximum(WORTH_A_POINT * chosen.max(0), WORTH_OF_BEST * chosen.max())) | every_load
    seconds = costs.launch_s + worth.sum(0) * costs.measure_s
    score = np.where(may, (chosen * worth).sum(0) / seconds, -1.0)
    place = int(np.argmax(score))
    levels = np.flatnonzero(worth[:, place] & ((chosen[:, place] > 0) | every_load))
    at = tuple(surrogate.concurrencies[level] for level in levels) or surrogate.concurrencies
    best = tuple(known.incumbent(posterior, level) for level in range(len(surrogate.concurrencies)))
    return Next(
        place, at, float(plain.max()), float(insured.max()), best, near(known, posterior, best),
        float(plain.max(1).mean()), float(insured.max(1).mean()),
    )  # fmt: skip


def _gain(known: Known, posterior: Posterior, level: int, may: Bools) -> Floats:
    """Two rows over candidates: the gain, and the insured gain; 0 where there is none to be had."""
    best = known.incumbent(posterior, level)
    launches, chance = known.launches[level], known.runs[level] * ~known.outside_limits[level]
    chance = np.where(may & (launches < MOST_LAUNCHES), chance, 0.0)
    mean, variance = posterior.mean(level), posterior.variance(level)
    if best is None:
        return np.stack([chance * np.sqrt(variance)] * 2)
    every = np.arange(len(mean))
    shared = posterior.covariance(every, np.array([best]), level)[:, 0]
    sd = np.sqrt(np.maximum(variance + variance[best] - 2 * shared, 1e-6))
    sd = np.where(_untried_short(known, level, best), np.maximum(sd, SHORT_SD), sd)
    doubt = np.where(launches > 0, sd, np.maximum(INSURED * sd, LEAST_INSURED_SD))
    noise = posterior.times.noise
    return np.stack([chance * _rise(mean - mean[best], s, noise) for s in (sd, doubt)])


def _untried_short(known: Known, level: int, best: int) -> Bools:
    """Settings that verify far fewer tokens than any that was measured, while the plain server is the best."""
    candidates = known.surrogate.candidates
    tried = candidates.speculative & (known.launches[level] > 0)
    if candidates.speculative[best] or not tried.any():
        return np.zeros(len(candidates), bool)
    return np.asarray(candidates.speculative & (candidates.tokens <= SHORT * candidates.tokens[tried].min()))


def _rise(ahead: Floats, sd: Floats, noise: float) -> Floats:
    """Expected rise of the larger of two, the second `ahead` by a normal amount of which one noisy measurement tells."""
    told = sd**2 / np.sqrt(sd**2 + noise**2)
    z = ahead / told
    return np.asarray(told * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)))


def _blind(known: Known, pending: Sequence[Pending], may: Bools, chance: random.Random) -> Next | None:
    """Before anything was measured: the plain server, then distinct telling settings, a deep chain for each drafter first."""
    candidates = known.surrogate.candidates
    streams = max(known.surrogate.concurrencies)
    busy = Counter(candidates.variant[candidates.place[p.key]] for p in pending if p.key in candidates.place)
    alive = may & (known.runs.max(0) > 0)
    order = [np.flatnonzero(alive & ~candidates.speculative)] if not pending else []
    depth = 7.0 if streams <= 16 else 5.0
    for number in range(len(candidates.proposers)):
        mine = alive & (candidates.proposer == number)
        waiting = any(
            candidates.proposer[candidates.place[p.key]] == number for p in pending if p.key in candidates.place
        )
        if not waiting:
            order.append(_nearest(candidates.steps, depth, np.flatnonzero(mine & ~candidates.tree)))
    for number in range(len(candidates.proposers)):
        mine = alive & (candidates.proposer == number)
        order.append(
            _nearest(candidates.tokens, 16.0 if streams <= 16 else 8.0, np.flatnonzero(mine & candidates.tree))
        )
    rest = np.flatnonzero(alive).tolist()
    order.append(np.array(chance.sample(rest, len(rest)), dtype=np.int64))
    for places in order:
        if len(places):
            freest = min(places, key=lambda place: busy[candidates.variant[place]])
            return Next(int(freest), known.surrogate.concurrencies, np.inf, np.inf)
    return None


def _nearest(values: Floats, wanted: float, places: np.ndarray) -> np.ndarray:
    """Those of the places whose value is the nearest to what is wanted."""
    if not len(places):
        return places
    distance = np.abs(values[places] - wanted)
    return np.asarray(places[distance == distance.min()])
