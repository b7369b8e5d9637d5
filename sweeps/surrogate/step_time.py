"""Step time: how long a verify step takes, relative to a step of the plain server at the same concurrency.

A Gaussian process over (settings, concurrency) whose kernel is a physics basis with Gaussian weights, plus a residual:
a constant for verifying at all, a roofline in the tokens of a step (memory-bound, then bound by arithmetic), experts
woken by more tokens, drafting by steps and beam, trees, every swept server knob alone and with speculation, and random
walks over tokens, steps and topk for kernels that switch where nobody says so.  A concurrency is correlated with those
near it.  Amplitude of the residual, width of the basis and noise are fitted by marginal likelihood; noise starts from
what relaunches and repeats showed.  Outliers count less (Student's t).  Not here: acceptance (acceptance.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeps.surrogate.candidates import Candidates, Floats, Whole

ROOFS = ((250.0, 0.7, 0.5), (100.0, 0.05, 0.25), (600.0, 0.1, 0.4))
"""Tokens of a step at which arithmetic takes over, and mean and sd of that roofline's weight."""
TIGHT = 0.6
"""Scale of all prior sds but those of the first two terms."""
AMPLITUDES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Relative sds of the residual that are tried; log-normal around 0.025."""
WIDTHS = (1.0, 2.0)
"""Factors on the sds of the basis that are tried."""
NOISES = (0.7, 1.0, 1.6, 2.6)
"""Factors on the noise that are tried, the more readily the fewer repeats there are."""
WALK = 12
"""Most places of a random walk."""
REACH, RESIDUAL_REACH = 6.0, 4.0
"""Doublings of concurrency over which weights and residual stay correlated."""


@dataclass(frozen=True)
class Timed:
    """One measured step time: of the settings at `place`, at the concurrency at `level`, over the plain server's."""

    place: int
    level: int
    ratio: float
    noise: float
    """Relative sd."""


@dataclass(frozen=True)
class Noise:
    """Relative sd of one measurement, and how many degrees of freedom say so."""

    sd: float
    freedom: float


class Basis:
    """The terms for these candidates at these concurrencies: (levels × candidates × terms), scaled by their prior sds."""

    def __init__(self, candidates: Candidates, concurrencies: Sequence[int]) -> None:
        self.candidates = candidates
        self.concurrencies = tuple(concurrencies)
        terms = [_terms(candidates, concurrency) for concurrency in concurrencies]
        means, sds = ([np.array([row[which] for row in level]) for level in terms] for which in (1, 2))
        columns = [np.stack([row[0] for row in level], axis=1) for level in terms]
        scale = np.where(np.arange(len(terms[0])) < 2, 1.0, TIGHT)
        self.mean = np.stack([np.maximum(c @ m, 0.5) for c, m in zip(columns, means, strict=True)])
        self.factor = np.stack([c * (s * scale) for c, s in zip(columns, sds, strict=True)])

    @cached_property
    def nearness(self) -> Floats:
        """Correlation of the weights at two concurrencies."""
        return np.asarray(np.exp(-self._doublings / REACH))

    @cached_property
    def residual_nearness(self) -> Floats:
        return np.asarray(np.exp(-self._doublings / RESIDUAL_REACH))

    @cached_property
    def _doublings(self) -> Floats:
        at = np.log2(np.array(self.concurrencies, float))
        return np.asarray(np.abs(at[:, None] - at[None, :]))

    @cached_property
    def _where(self) -> Floats:
        c = self.candidates
        return np.asarray(np.log2(np.stack([np.maximum(c.steps, 0.5), c.topk, c.tokens], axis=1)))

    def near(self, places: Whole, others: Whole) -> Floats:
        """Correlation of the residuals of two settings at one concurrency."""
        c = self.candidates
        square = ((self._where[places][:, None, :] - self._where[others][None, :, :]) ** 2).sum(-1)
        same_variant = 0.4 + 0.6 * (c.variant[places][:, None] == c.variant[others][None, :])
        same_proposer = 0.6 + 0.4 * (c.proposer[places][:, None] == c.proposer[others][None, :])
        same = places[:, None] == others[None, :]
        return np.asarray(0.6 * np.exp(-0.5 * square) * same_variant * same_proposer + 0.4 * same)


Term = tuple[Floats, float, float]
"""A column of the basis, mean and sd of its weight."""


def _terms(c: Candidates, concurrency: int) -> list[Term]:
    plain, wide = np.ones(len(c)), np.sqrt(concurrency)
    spec, tree = c.speculative.astype(float), c.tree.astype(float)
    n, s, k = c.tokens, c.steps, c.topk
    found: list[Term] = [(plain, 1.0, 0.02), (spec, 0.12, 0.45)]
    found += [(_roof(concurrency * n, r) - _roof(np.array([float(concurrency)]), r), m, sd) for r, m, sd in ROOFS]
    found += [((np.sqrt(n) - 1) / 3, 0.08, 0.25), ((n - 1) / 16, 0.03, 0.08 + 0.02 * wide), (s, 0.05, 0.05)]
    for number in range(len(c.proposers)):
        own = (c.proposer == number).astype(float)
        found += [(s * own, 0.0, 0.035), (spec * own, 0.0, 0.05)]
    found += [(s * (k - 1) / 7, 0.01, 0.02 + 0.004 * wide), (tree, 0.08, 0.10), (tree * (k - 1) / 7, 0.02, 0.05)]
    for values, sd in ((n, 0.035), (s, 0.02), (k, 0.05)):
        found += [(spec * (values >= bound), 0.0, sd) for bound in _bounds(values[c.speculative])]
    found += [(tree * (n % 8 > 0), 0.0, 0.03)]
    for name, places in c.variants.items():
        own_sd = 0.06 if name.endswith("backend") else 0.25
        for value in range(int(places.max()) + 1):
            has = (places == value).astype(float)
            found += [(has, 0.0, own_sd), (has * spec, 0.0, 0.12), (has * tree, 0.0, 0.06), (has * (n - 1) / 16, 0.0, 0.06 + 0.01 * wide)]  # fmt: skip
    return found


def _roof(tokens: Floats, ridge: float) -> Floats:
    """A smooth maximum of a memory-bound step, 1, and one that grows with its tokens."""
    return np.asarray((1 + (tokens / ridge) ** 3) ** (1 / 3))


def _bounds(values: Floats) -> Floats:
    """Where a walk over these values may step: at each but the least, thinned to WALK."""
    found = np.unique(values)[1:]
    return found if len(found) <= WALK else found[np.linspace(0, len(found) - 1, WALK).astype(int)]


class StepTime:
    """The model after measurements.  Mean and covariance are of the log of (step time / plain step time).

    `pending` are (place, level) that are being measured: they narrow the covariance and leave the mean.
    """

    def __init__(
        self, basis: Basis, timed: Sequence[Timed], noise: Noise, pending: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._basis = basis
        self._noise = noise
        self.amplitude = 0.03
        self.noise = noise.sd
        """Relative sd of one measurement, as fitted."""
        self._scale = basis.mean.copy()
        self._width = 1.0
        self._place = np.array([t.place for t in timed], dtype=np.int64)
        self._level = np.array([t.level for t in timed], dtype=np.int64)
        self._ratio = np.array([t.ratio for t in timed])
        self._relative = np.array([t.noise for t in timed])
        self._weight = np.zeros(len(timed))
        self._trust = np.ones(len(timed))
        if timed:
            self._fit()
        self._condition_on(pending)

    def mean(self, level: int) -> Floats:
        return np.asarray(np.log(self._scale[level]))

    def variance(self, level: int) -> Floats:
        every = np.arange(len(self._basis.candidates))
        scale = self._scale[level]
        own = (self._factor(every, np.full(len(every), level)) ** 2).sum(1) + (self.amplitude * scale) ** 2
        across = self._across(every, level)
        return np.asarray(np.maximum(own - ((across @ self._inverse) * across).sum(1), 1e-8) / scale**2)

    def covariance(self, places: Whole, others: Whole, level: int) -> Floats:
        """Between candidates at one concurrency."""
        at = np.full(len(places), level), np.full(len(others), level)
        prior = self._prior(places, at[0], others, at[1])
        explained = self._across(places, level) @ self._inverse @ self._across(others, level).T
        scale = self._scale[level]
        return np.asarray((prior - explained) / np.outer(scale[places], scale[others]))

    def _fit(self) -> None:
        """Twice the widths, then the mean; each time with the scale and the trust that the last one gave."""
        error = self._ratio - self._basis.mean[self._level, self._place]
        for turn in range(3):
            if turn < 2:
                self._choose_widths(error)
            inverse = np.linalg.inv(self._covariance_of_data())
            self._weight = inverse @ error
            mean = np.stack([self._mean_at(level) for level in range(len(self._basis.concurrencies))])
            self._scale = np.maximum(mean, 0.3)
            off = (self._ratio - self._scale[self._level, self._place]) / (self._sd_of_data())
            self._trust = np.clip(5 / (4 + off**2), 0.15, 1.25)

    def _choose_widths(self, error: Floats) -> None:
        residual = self._residual(self._place, self._level, self._place, self._level)
        factor = self._basis.factor[self._level, self._place]
        wide = factor[:, 2:] @ factor[:, 2:].T
        first = factor[:, :2] @ factor[:, :2].T
        near = self._basis.nearness[np.ix_(self._level, self._level)]
        own = (self._relative * self._scale[self._level, self._place]) ** 2 / self._trust
        best = -np.inf
        for width, amplitude, louder in itertools.product(WIDTHS, AMPLITUDES, self._louder()):
            covariance = near * (first + width**2 * wide) + amplitude**2 * residual
            likelihood = _log_likelihood(covariance + np.diag(own * louder**2), error)
            likelihood -= 0.5 * (np.log(amplitude / 0.025) / 0.7) ** 2 + 0.5 * (np.log(width) / 0.5) ** 2
            likelihood -= self._noise.freedom * (np.log(louder) + 0.5 * (1 / louder**2 - 1))
            if likelihood > best:
                best, self.amplitude, self._width, self.noise = likelihood, amplitude, width, self._noise.sd * louder

    def _louder(self) -> tuple[float, ...]:
        return NOISES if len(self._ratio) >= 6 else (1.0,)

    def _sd_of_data(self) -> Floats:
        louder = self.noise / self._noise.sd
        return np.asarray(self._relative * louder * self._scale[self._level, self._place])

    def _covariance_of_data(self) -> Floats:
        prior = self._prior(self._place, self._level, self._place, self._level)
        return np.asarray(prior + np.diag(self._sd_of_data() ** 2 / self._trust))

    def _condition_on(self, pending: Sequence[tuple[int, int]]) -> None:
        """The inverse that the covariances use: of what was measured and what is being measured."""
        variance = self._sd_of_data() ** 2 / self._trust
        self._seen = len(self._place)
        if pending:
            self._place = np.concatenate([self._place, np.array([p for p, _ in pending], dtype=np.int64)])
            self._level = np.concatenate([self._level, np.array([c for _, c in pending], dtype=np.int64)])
            waiting = (self.noise * self._scale[self._level[self._seen :], self._place[self._seen :]]) ** 2
            variance = np.concatenate([variance, waiting])
        prior = self._prior(self._place, self._level, self._place, self._level)
        self._inverse = np.linalg.inv(prior + np.diag(variance)) if len(variance) else np.zeros((0, 0))

    def _mean_at(self, level: int) -> Floats:
        every = np.arange(len(self._basis.candidates))
        return np.asarray(self._basis.mean[level] + self._across(every, level) @ self._weight)

    def _factor(self, places: Whole, levels: Whole) -> Floats:
        factor = self._basis.factor[levels, places]
        if self._width == 1.0:
            return factor
        return np.concatenate([factor[:, :2], self._width * factor[:, 2:]], axis=1)

    def _across(self, places: Whole, level: int) -> Floats:
        return self._prior(places, np.full(len(places), level), self._place, self._level)

    def _prior(self, places: Whole, levels: Whole, others: Whole, other_levels: Whole) -> Floats:
        near = self._basis.nearness[np.ix_(levels, other_levels)]
        shared = near * (self._factor(places, levels) @ self._factor(others, other_levels).T)
        return np.asarray(shared + self.amplitude**2 * self._residual(places, levels, others, other_levels))

    def _residual(self, places: Whole, levels: Whole, others: Whole, other_levels: Whole) -> Floats:
        scale = np.outer(self._scale[levels, places], self._scale[other_levels, others])
        near = self._basis.residual_nearness[np.ix_(levels, other_levels)]
        return np.asarray(near * self._basis.near(places, others) * scale)


def _log_likelihood(covariance: Floats, error: Floats) -> float:
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return -np.inf
    whitened = np.linalg.solve(lower, error)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(lower)).sum())
