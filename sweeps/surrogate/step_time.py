"""Step time: how long a verify step takes, relative to a step of the plain server at the same concurrency.

A Gaussian process over (settings, concurrency) whose kernel is a physics basis (terms.py) with Gaussian weights, plus a
residual.  A concurrency is correlated with those near it.  What the weights are likely to be depends on the family of
model and machine (families.py): the chance of each follows from its marginal likelihood, and the prior is their mixture.
Amplitude of the residual and noise are fitted likewise; noise starts from what relaunches and repeats showed.  Outliers
count less (Student's t).  Not here: acceptance (acceptance.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeps.surrogate.candidates import Candidates, Floats, Whole
from sweeps.surrogate.families import Family, Weights, families
from sweeps.surrogate.terms import PREFILL, SHARED, terms_of

AMPLITUDES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Relative sds of the residual that are tried; log-normal around 0.025."""
NOISES = (0.7, 1.0, 1.6, 2.6)
"""Factors on the noise that are tried, the more readily the fewer repeats there are."""
LEAST_CHANCE = 1e-3
"""Of a family that still counts."""
LEAST_RATIO = 0.5
"""Of the prior's mean."""
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


@dataclass(frozen=True)
class Prior:
    """Of the ratio of every candidate at every concurrency."""

    mean: Floats
    """Levels × candidates."""
    factor: Floats
    """Levels × candidates × terms, of the covariance of one level."""


class Basis:
    """The terms for these candidates at these concurrencies, and what each family thinks of their weights."""

    def __init__(
        self, candidates: Candidates, concurrencies: Sequence[int], known: Sequence[Family] | None = None
    ) -> None:
        self.candidates = candidates
        self.concurrencies = tuple(concurrencies)
        self.families = tuple(families() if known is None else known)
        self._terms = [terms_of(candidates, c, np.zeros(len(candidates))) for c in concurrencies]
        self._columns = [np.stack([term.column for term in level], axis=1) for level in self._terms]
        self._names = [term.name for term in self._terms[0]]
        self._shared = [self._names.index(name) for name in SHARED]
        self._weights = [[family.at(c) for family in self.families] for c in concurrencies]

    def prior(self, chances: Floats, gained: Floats) -> Prior:
        """With these chances of the families; `gained`: levels × candidates, tokens a step gains (terms.py)."""
        made = [self._at(level, chances, gained[level]) for level in range(len(self.concurrencies))]
        return Prior(np.stack([mean for mean, _ in made]), np.stack([factor for _, factor in made]))

    def _at(self, level: int, chances: Floats, gained: Floats) -> tuple[Floats, Floats]:
        known = Weights.mixed([(c, w) for c, w in zip(chances, self._weights[level], strict=True) if c > LEAST_CHANCE])
        columns = self._columns[level].copy()
        columns[:, self._names.index(PREFILL)] = gained
        usual = columns @ np.array([term.mean for term in self._terms[level]])
        columns *= np.array([term.sd for term in self._terms[level]])
        shared = columns[:, self._shared]
        columns *= np.sqrt([known.variance.get(name, 1.0) for name in self._names])
        columns[:, self._shared] = shared @ np.linalg.cholesky(known.covariance + 1e-6 * np.eye(len(SHARED)))
        return np.maximum(usual + shared @ known.mean, LEAST_RATIO), columns

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


class StepTime:
    """The model after measurements.  Mean and covariance are of the log of (step time / plain step time).

    `pending` are (place, level) that are being measured: they narrow the covariance and leave the mean.
    """

    def __init__(
        self,
        basis: Basis,
        timed: Sequence[Timed],
        noise: Noise,
        gained: Floats,
        pending: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`gained`: levels × candidates, tokens that a step of each is expected to gain over one."""
        self._basis = basis
        self._noise = noise
        self._gained = gained
        self.amplitude = 0.03
        self.noise = noise.sd
        """Relative sd of one measurement, as fitted."""
        shares = np.array([family.share for family in basis.families])
        self.chances: Floats = shares / shares.sum()
        """Of each family of the basis."""
        self._prior_of = basis.prior(self.chances, gained)
        self._scale = self._prior_of.mean.copy()
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
        own = (self._prior_of.factor[level] ** 2).sum(1) + (self.amplitude * scale) ** 2
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
        """Twice the family and the widths, then the mean; each time with the scale and the trust that the last one gave."""
        alone = [self._basis.prior(one, self._gained) for one in np.eye(len(self.chances))]
        of_data = [Prior(p.mean[self._level, self._place], p.factor[self._level, self._place]) for p in alone]
        for turn in range(3):
            if turn < 2:
                self._choose(of_data)
            error = self._ratio - self._prior_of.mean[self._level, self._place]
            self._weight = np.linalg.inv(self._covariance_of_data()) @ error
            mean = np.stack([self._mean_at(level) for level in range(len(self._basis.concurrencies))])
            self._scale = np.maximum(mean, 0.3)
            off = (self._ratio - self._scale[self._level, self._place]) / (self._sd_of_data())
            self._trust = np.clip(5 / (4 + off**2), 0.15, 1.25)

    def _choose(self, alone: Sequence[Prior]) -> None:
        """`alone`: of each family, at what was measured."""
        residual = self._residual(self._place, self._level, self._place, self._level)
        near = self._basis.nearness[np.ix_(self._level, self._level)]
        own = np.diag((self._relative * self._scale[self._level, self._place]) ** 2 / self._trust)
        widths = np.array(list(itertools.product(AMPLITUDES, self._louder())))
        spread = widths[:, 0, None, None] ** 2 * residual + widths[:, 1, None, None] ** 2 * own
        believed = -0.5 * (np.log(widths[:, 0] / 0.025) / 0.7) ** 2
        believed -= self._noise.freedom * (np.log(widths[:, 1]) + 0.5 * (1 / widths[:, 1] ** 2 - 1))
        likelihood = np.stack([
            _log_likelihood(near * (prior.factor @ prior.factor.T) + spread, self._ratio - prior.mean)
            + believed + np.log(family.share) for prior, family in zip(alone, self._basis.families, strict=True)
        ])  # fmt: skip
        self.amplitude, louder = widths[int(np.argmax(likelihood.max(0)))].tolist()
        self.noise = self._noise.sd * louder
        evidence = likelihood.max(1)
        chances = np.exp(evidence - evidence.max())
        self.chances = chances / chances.sum()
        self._prior_of = self._basis.prior(self.chances, self._gained)

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
        return np.asarray(self._prior_of.mean[level] + self._across(every, level) @ self._weight)

    def _across(self, places: Whole, level: int) -> Floats:
        return self._prior(places, np.full(len(places), level), self._place, self._level)

    def _prior(self, places: Whole, levels: Whole, others: Whole, other_levels: Whole) -> Floats:
        near, factor = self._basis.nearness[np.ix_(levels, other_levels)], self._prior_of.factor
        shared = near * (factor[levels, places] @ factor[other_levels, others].T)
        return np.asarray(shared + self.amplitude**2 * self._residual(places, levels, others, other_levels))

    def _residual(self, places: Whole, levels: Whole, others: Whole, other_levels: Whole) -> Floats:
        scale = np.outer(self._scale[levels, places], self._scale[other_levels, others])
        near = self._basis.residual_nearness[np.ix_(levels, other_levels)]
        return np.asarray(near * self._basis.near(places, others) * scale)


def _log_likelihood(covariances: Floats, error: Floats) -> Floats:
    """Of one error under each of many covariances."""
    try:
        lower = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        return np.full(len(covariances), -np.inf)
    whitened = np.linalg.solve(lower, np.broadcast_to(error[:, None], (*lower.shape[:2], 1)))[..., 0]
    return np.asarray(-0.5 * (whitened**2).sum(1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1))
