"""Acceptance: how many tokens a verify step gains, for every shape a drafter could be run with, from what was seen of some.

Five numbers describe a drafter.  With contexts of class m (Gauss-Hermite nodes z_m, weights w_m) the chance that the
draft at depth j is right, given all before it were, is

    a_mj = sigmoid(level + slope ln j + spread z_m)          (times `gate` at j = 1: nothing to look up)

a child of rank r ≤ k is the right one with probability c(r) - c(r-1), where c follows one of two laws (`Cover`), and
exactly one path can be right, so that the acceptance length of a tree is 1 + Σ over its nodes of the chance that the
node is on that path (the identity of SpecInfer, Sequoia and EAGLE-2).  A dynamic tree keeps the likeliest nodes: the
n-1 largest products of a beam of width k and depth s.

Many drawn drafters (particles) stand for the prior.  Histograms and lengths reweight them, tempered so that some forty
remain; their mean and covariance over shapes, with a residual, are then conditioned on the measured lengths.  A chain's
histogram measures every shorter chain as well.  Acceptance belongs to drafter and prompts, so all concurrencies share it
but for a small shift of their own.  Not here: time (step_time.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sweeps.surrogate.candidates import Bools, Floats, Shape, Whole

PARTICLES = 2000
CLASSES = 5
ZIPF, RANKS = 0.5, 200.0
"""Share of particles whose coverage is Zipf's, and how many ranks it is shared among."""
WIDEST, MOST_TOKENS, DEEPEST = 16, 128, 32
"""Beyond these a tree gains next to nothing; larger shapes count as these."""
LEAST_PARTICLES = 40.0
"""Effective number to which the weights are tempered."""
RESIDUAL = 0.02
"""Relative sd of what the five numbers miss of a shape's length, seven tenths of its variance shared by shapes nearby."""
SHIFT = 0.012
"""Relative sd of a concurrency's own shift of all lengths."""
FLOOR = 0.004
"""Relative sd of a measured length beside its counts: no two runs see the same contexts."""
DESIGN_EFFECT = 2.0
"""Neighbouring verify steps are alike: so many counts are worth one."""


@dataclass(frozen=True)
class Seen:
    """What one load point showed of a drafter."""

    shape: Shape
    level: int
    """Place of its concurrency."""
    length: float
    """Acceptance length, at least 1."""
    histogram: tuple[int, ...] = ()
    """Verify steps that accepted exactly j drafts; empty: not known."""


@dataclass(frozen=True)
class Library:
    """Drawn drafters: log of the length of every shape, and the survival of a chain."""

    shapes: tuple[Shape, ...]
    log_length: Floats
    """Particles × shapes."""
    survival: Floats
    """Particles × depths: P(at least j drafts of a chain are accepted)."""

    @cached_property
    def place(self) -> dict[Shape, int]:
        return {shape: place for place, shape in enumerate(self.shapes)}

    @cached_property
    def near(self) -> Floats:
        """Correlation of the residuals of two shapes."""
        return _near(self.shapes)


def clipped(shape: Shape) -> Shape:
    return (min(shape[0], DEEPEST), min(shape[1], WIDEST), min(shape[2], MOST_TOKENS))


def library_for(shapes: Sequence[Shape]) -> Library:
    """Of these shapes and of every chain not deeper than they are; made once a process."""
    depth = max((clipped(shape)[0] for shape in shapes), default=1)
    chains = [(steps, 1, steps + 1) for steps in range(1, depth + 1)]
    return _library(tuple(dict.fromkeys([*chains, *map(clipped, shapes)])))


@lru_cache(maxsize=4)
def _library(shapes: tuple[Shape, ...]) -> Library:
    depth = max(steps for steps, _, _ in shapes)
    nodes, weights = np.polynomial.hermite_e.hermegauss(CLASSES)
    weights = weights / weights.sum()
    right, cover = _drawn(depth, nodes)
    survival = (np.cumprod(right, axis=2) * weights[None, :, None]).sum(1)
    lengths = np.ones((PARTICLES, len(shapes)))
    place = {shape: number for number, shape in enumerate(shapes)}
    for topk in sorted({k for _, k, _ in shapes}):
        wanted = [shape for shape in shapes if shape[1] == topk]
        for shape, gain in _gains(right, cover, topk, wanted):
            lengths[:, place[shape]] += gain @ weights
    return Library(shapes, np.log(lengths), np.clip(survival, 1e-6, 1 - 1e-6))


@dataclass(frozen=True)
class Cover:
    """How often the right token is among a particle's k first, by how often it is the first, a; one of two laws each.

    Power: 1 - (1 - a)^(k^exponent).  Zipf: a, and what the first misses shared among the others as rank^-exponent; Sequoia
    finds acceptance by rank to be such a power law.  The first alone took the trees of weak drafters for a fifth too short.
    """

    exponent: Floats
    zipf: Bools

    def of(self, first: Floats, topk: int) -> Floats:
        """`first`: particles × classes × 1 → particles × classes × (topk + 1), 0 for no token."""
        ranks = np.arange(topk + 1)
        power = 1 - (1 - first) ** (ranks ** self.exponent[:, None, None])
        weights = np.arange(2.0, RANKS)[None, :] ** -self.exponent[:, None]
        share = np.cumsum(weights, axis=1)[:, : max(topk - 1, 1)] / weights.sum(1, keepdims=True)
        among = np.concatenate([np.zeros((len(share), 1)), share], axis=1)[:, None, :topk]
        shared = np.concatenate([np.zeros_like(first), first + (1 - first) * among], axis=2)
        return np.asarray(np.where(self.zipf[:, None, None], shared, power))


def _drawn(depth: int, nodes: Floats) -> tuple[Floats, Cover]:
    """Chance of a right draft (particles × classes × depths) and coverage of the prior's drafters."""
    chance = np.random.default_rng(7)
    level, slope = chance.normal(0.7, 1.0, PARTICLES), chance.normal(-0.15, 0.4, PARTICLES)
    spread = np.exp(chance.normal(0.1, 0.4, PARTICLES))
    coverage = np.clip(chance.normal(0.5, 0.15, PARTICLES), 0.15, 0.95)
    gate = np.where(chance.random(PARTICLES) < 0.75, 1.0, chance.uniform(0.1, 1.0, PARTICLES))
    zipf = chance.random(PARTICLES) < ZIPF
    coverage = np.where(zipf, chance.uniform(1.1, 2.3, PARTICLES), coverage)
    depths = np.log(np.arange(1, depth + 1))
    logit = level[:, None, None] + slope[:, None, None] * depths + spread[:, None, None] * nodes[None, :, None]
    right = 1 / (1 + np.exp(-logit))
    right[:, :, 0] *= gate[:, None]
    return right, Cover(coverage, zipf)


def _gains(right: Floats, cover: Cover, topk: int, shapes: Sequence[Shape]) -> list[tuple[Shape, Floats]]:
    """Expected accepted drafts (particles × classes) of every shape of this topk."""
    most = max(tokens for _, _, tokens in shapes) - 1
    beam = np.ones((*right.shape[:2], 1), np.float32)
    pool = np.zeros((*right.shape[:2], 0), np.float32)
    found = []
    for depth in range(1, max(steps for steps, _, _ in shapes) + 1):
        child = np.diff(cover.of(right[:, :, depth - 1 : depth], topk), axis=2).astype(np.float32)
        child = -np.sort(-child, axis=2)
        paths = (beam[..., None] * child[:, :, None, :]).reshape(*right.shape[:2], -1)
        paths = -np.sort(-paths, axis=2)
        beam = paths[:, :, :topk]
        pool = -np.sort(-np.concatenate([pool, paths[:, :, :most]], axis=2), axis=2)[:, :, :most]
        wanted = [shape for shape in shapes if shape[0] == depth]
        if wanted:
            gained = np.cumsum(pool, axis=2)
            found += [(shape, gained[:, :, min(shape[2] - 1, gained.shape[2]) - 1].astype(float)) for shape in wanted]
    return found


class Acceptance:
    """One drafter at `levels` concurrencies, after what was seen of it.

    Mean and covariance are of the log of the acceptance length.  `pending` are (shape, level) that are being measured:
    they narrow the covariance and leave the mean.
    """

    def __init__(self, library: Library, seen: Sequence[Seen], pending: Sequence[tuple[Shape, int]] = ()) -> None:
        self._library = library
        place = library.place
        seen = [_usable(item) for item in seen]
        mean, factor = _moments(library, _weights(library, seen))
        rows = _Rows.of(seen, place)
        waiting = [(place[clipped(shape)], level) for shape, level in pending]
        self._shape = np.concatenate([rows.shape, np.array([s for s, _ in waiting], dtype=np.int64)])
        self._level = np.concatenate([rows.level, np.array([c for _, c in waiting], dtype=np.int64)])
        self._factor, self._mean = factor, mean
        self._near = library.near
        noise = np.zeros((len(self._shape),) * 2)
        noise[: len(rows.shape), : len(rows.shape)] = rows.noise
        noise[range(len(rows.shape), len(noise)), range(len(rows.shape), len(noise))] = (2 * FLOOR) ** 2
        prior = self._prior(self._shape, self._level, self._shape, self._level)
        self._inverse = np.linalg.inv(prior + noise + 1e-9 * np.eye(len(noise)))
        error = np.concatenate([rows.log_length - mean[rows.shape], np.zeros(len(waiting))])
        known = np.linalg.solve(prior[: len(rows.shape), : len(rows.shape)] + rows.noise + 1e-9 * np.eye(len(rows.shape)), error[: len(rows.shape)]) if len(rows.shape) else error[:0]  # fmt: skip
        self._weight = np.concatenate([known, np.zeros(len(waiting))])

    def mean(self, level: int) -> Floats:
        """Of every shape of the library."""
        every = np.arange(len(self._mean))
        return np.asarray(np.maximum(self._mean + self._across(every, level) @ self._weight, 0.0))

    def variance(self, level: int) -> Floats:
        every = np.arange(len(self._mean))
        across = self._across(every, level)
        own = (self._factor**2).sum(1) + RESIDUAL**2 + SHIFT**2
        return np.asarray(np.maximum(own - ((across @ self._inverse) * across).sum(1), 1e-7))

    def covariance(self, shapes: Whole, others: Whole, level: int) -> Floats:
        """Between library shapes at one concurrency."""
        at = np.full(len(shapes), level), np.full(len(others), level)
        prior = self._prior(shapes, at[0], others, at[1])
        explained = self._across(shapes, level) @ self._inverse @ self._across(others, level).T
        return np.asarray(prior - explained)

    def _across(self, shapes: Whole, level: int) -> Floats:
        return self._prior(shapes, np.full(len(shapes), level), self._shape, self._level)

    def _prior(self, shapes: Whole, levels: Whole, others: Whole, other_levels: Whole) -> Floats:
        shared = self._factor[shapes] @ self._factor[others].T + RESIDUAL**2 * self._near[np.ix_(shapes, others)]
        return np.asarray(shared + SHIFT**2 * (levels[:, None] == other_levels[None, :]))


def _usable(item: Seen) -> Seen:
    """As one of the library's shapes; a histogram of another depth than the shape's says nothing about its chain."""
    shape = clipped(item.shape)
    chain = shape[1] == 1 and len(item.histogram) == shape[0] + 1 and sum(item.histogram) > 0
    length = max(item.length, 1.0)
    return Seen(shape, item.level, length, item.histogram if chain else ())


@dataclass(frozen=True)
class _Rows:
    """Measured logs of lengths with the covariance of their errors; of a chain's histogram one row a shorter chain."""

    shape: Whole
    level: Whole
    log_length: Floats
    noise: Floats

    @classmethod
    def of(cls, seen: Sequence[Seen], place: dict[Shape, int]) -> _Rows:
        shapes: list[int] = []
        levels: list[int] = []
        logs: list[Floats] = []
        blocks: list[Floats] = []
        for item in seen:
            value, block = (_chain_rows(item.histogram) if item.histogram else (np.array([np.log(item.length)]), np.array([[0.012**2]])))  # fmt: skip
            steps = [(j, 1, j + 1) for j in range(1, item.shape[0] + 1)] if item.histogram else [item.shape]
            shapes += [place[shape] for shape in steps]
            levels += [item.level] * len(steps)
            logs.append(value)
            blocks.append(block)
        noise = np.zeros((len(shapes),) * 2)
        at = 0
        for block in blocks:
            noise[at : at + len(block), at : at + len(block)] = block
            at += len(block)
        whole = np.array(shapes, dtype=np.int64), np.array(levels, dtype=np.int64)
        return cls(*whole, np.concatenate(logs) if logs else np.zeros(0), noise)


def _chain_rows(histogram: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Logs of the lengths of every chain up to this one's depth, and the covariance of their errors."""
    counts = np.array(histogram, float)
    total = counts.sum()
    gained = np.minimum(np.arange(len(counts))[None, :], np.arange(1, len(counts))[:, None])
    mean = gained @ counts / total
    spread = (gained * counts / total) @ gained.T - np.outer(mean, mean)
    length = 1 + mean
    block = spread / (total / DESIGN_EFFECT) / np.outer(length, length) + FLOOR**2 * np.eye(len(length))
    return np.log(length), block


def _weights(library: Library, seen: Sequence[Seen]) -> Floats:
    """Of the particles, after hazards of chains and lengths of all; tempered."""
    log_weight = np.zeros(len(library.log_length))
    place = library.place
    for item in seen:
        error = np.log(item.length) - library.log_length[:, place[item.shape]]
        log_weight -= 0.5 * (error / 0.028) ** 2
        if item.histogram:
            log_weight += 0.5 * _hazards(library.survival, item.histogram)
    return _tempered(log_weight)


def _hazards(survival: Floats, histogram: tuple[int, ...]) -> Floats:
    """Log likelihood of "accepted, given all before were" at each depth, of at most 150 steps each."""
    counts = np.array(histogram, float)
    reached = np.cumsum(counts[::-1])[::-1]
    depth = len(counts) - 1
    before = np.concatenate([np.ones((len(survival), 1)), survival[:, : depth - 1]], axis=1)
    hazard = np.clip(survival[:, :depth] / before, 1e-6, 1 - 1e-6)
    share = reached[1:] / np.maximum(reached[:-1], 1)
    told = np.minimum(reached[:-1], 150.0)
    return np.asarray((told * (share * np.log(hazard) + (1 - share) * np.log1p(-hazard))).sum(1))


def _tempered(log_weight: Floats) -> Floats:
    log_weight = log_weight - log_weight.max()

    def at(power: float) -> Floats:
        weight = np.exp(power * log_weight)
        return np.asarray(weight / weight.sum())

    if 1 / (at(1.0) ** 2).sum() >= LEAST_PARTICLES:
        return at(1.0)
    low, high = 0.0, 1.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / (at(middle) ** 2).sum() > LEAST_PARTICLES else (low, middle)
    return at(low)


def _moments(library: Library, weight: Floats) -> tuple[Floats, Floats]:
    """Mean over shapes, and a factor of their covariance."""
    kept = weight > 1e-5
    weight = weight[kept] / weight[kept].sum()
    logs = library.log_length[kept]
    mean = weight @ logs
    spread = (logs - mean) * np.sqrt(weight)[:, None]
    if len(spread) > len(mean):
        values, vectors = np.linalg.eigh(spread.T @ spread)
        top = values > values.max() * 1e-6
        return mean, vectors[:, top] * np.sqrt(values[top])
    return mean, spread.T


def _near(shapes: Sequence[Shape]) -> Floats:
    """Correlation of the residuals of shapes."""
    at = np.log2(np.array(shapes, float))
    square = ((at[:, None, :] - at[None, :, :]) ** 2).sum(-1)
    return np.asarray(0.7 * np.exp(-0.5 * square) + 0.3 * np.eye(len(shapes)))
