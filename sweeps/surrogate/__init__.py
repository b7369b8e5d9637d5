"""Surrogate: what every setting would come to at every concurrency, from what was measured of some.

    log tokens/s = log(1000 concurrency) + log acceptance length - log step time in ms

is an identity when the step time is *defined* as 1000 concurrency length / (tokens/s), bubbles and prefill included; so
each measured point splits into an acceptance (acceptance.py, per drafter, shared by all concurrencies) and a step time
(step_time.py, relative to the plain server's).  A metric other than output_tok_s that is better when higher is treated
alike: what it does not share with tokens per second falls to the step time.  No torch.  Not here: which setting to
launch next (gain.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sweeps.settings import Settings
from sweeps.surrogate.acceptance import Acceptance, Library, Seen, clipped, library_for
from sweeps.surrogate.candidates import Candidates, Floats, Whole
from sweeps.surrogate.families import Family
from sweeps.surrogate.points import Point, noise_of, thinned
from sweeps.surrogate.step_time import Basis, Noise, StepTime, Timed

USUAL_OVERHEAD = 1.3
"""Step time with speculation over that without, where no plain server was measured at a concurrency."""


class Surrogate:
    """Made once for a space and a set of concurrencies; `fit` is what every proposal pays."""

    def __init__(
        self, settings: Sequence[Settings], concurrencies: Sequence[int], known: Sequence[Family] | None = None
    ) -> None:
        """`known`: families that it may be of; None: those that were learned."""
        self.candidates = Candidates(settings)
        self.concurrencies = tuple(sorted(concurrencies))
        self._known = known
        self._accepts: dict[int, tuple[object, Acceptance]] = {}
        """Drafter → what was last asked of it, and the answer: most launches say something of one drafter alone."""
        self.levels = {concurrency: level for level, concurrency in enumerate(self.concurrencies)}

    @cached_property
    def basis(self) -> Basis:
        return Basis(self.candidates, self.concurrencies, self._known)

    @cached_property
    def library(self) -> Library:
        """The prior over drafters, for the shapes of these candidates."""
        return library_for([shape for shape in self.candidates.shapes if shape[0] > 0] or [(1, 1, 2)])

    @cached_property
    def shape(self) -> Whole:
        """Place of each candidate's shape in the library; 0 for a plain server, which has none."""
        place = self.library.place
        return np.array([place[clipped(shape)] if shape[0] else 0 for shape in self.candidates.shapes])

    def fit(self, points: Sequence[Point], pending: Sequence[tuple[int, int]] = ()) -> Posterior:
        """`pending` are (place, level) of what is being measured.

        What was measured elsewhere is related to its own plain server, counts for little, and says nothing of acceptance,
        which belongs to target and prompts.

        Raises:
            ValueError: no point is given.
        """
        if not points:
            raise ValueError("nothing was measured: there is no time to relate others to")
        sources = {p.elsewhere for p in points}
        plain = {source: self._plain_ms([p for p in points if p.elsewhere == source]) for source in sources}
        plain_ms = plain.get("", next(iter(plain.values())))
        noise = noise_of(points)
        points = thinned(points)
        timed = [
            Timed(p.place, p.level, self._step_ms(p) / plain[p.elsewhere][p.level], noise.sd / np.sqrt(p.weight))
            for p in points
        ]
        lengths = [self._acceptance(number, points, pending) for number in range(len(self.candidates.proposers))]
        times = StepTime(self.basis, timed, noise, self._gained(lengths), pending)
        return Posterior(self, plain_ms, times, lengths, noise)

    def _acceptance(self, proposer: int, points: Sequence[Point], pending: Sequence[tuple[int, int]]) -> Acceptance:
        of = self.candidates.proposer
        here = [p for p in points if of[p.place] == proposer and not p.elsewhere]
        seen = [Seen(self.candidates.shapes[p.place], p.level, p.length, p.histogram) for p in here]
        waiting = [(self.candidates.shapes[place], level) for place, level in pending if of[place] == proposer]
        asked = (tuple(seen), tuple(waiting))
        if proposer not in self._accepts or self._accepts[proposer][0] != asked:
            self._accepts[proposer] = (asked, Acceptance(self.library, seen, waiting))
        return self._accepts[proposer][1]

    def _gained(self, lengths: Sequence[Acceptance]) -> Floats:
        """Levels × candidates: tokens that a step is expected to gain over one."""
        found = np.zeros((len(self.concurrencies), len(self.candidates)))
        for number, acceptance in enumerate(lengths):
            own = np.flatnonzero(self.candidates.proposer == number)
            for level in range(len(found)):
                found[level, own] = np.exp(acceptance.mean(level)[self.shape[own]]) - 1
        return found

    def _step_ms(self, point: Point) -> float:
        return 1000.0 * self.concurrencies[point.level] * point.length / point.value

    def _plain_ms(self, points: Sequence[Point]) -> Floats:
        """Step time of the plain server a level: of the first one measured there, else of what is nearest to one."""
        found = np.full(len(self.concurrencies), np.nan)
        for level in range(len(found)):
            here = [p for p in points if p.level == level]
            plain = [p for p in here if not self.candidates.speculative[p.place]]
            if plain:
                first = min(p.place for p in plain)
                found[level] = np.exp(np.mean([np.log(self._step_ms(p)) for p in plain if p.place == first]))
            elif here:
                found[level] = min(self._step_ms(p) for p in here) / USUAL_OVERHEAD
        known = ~np.isnan(found)
        at = np.log(np.array(self.concurrencies, float))
        return np.asarray(np.exp(np.interp(at, at[known], np.log(found[known]))))


@dataclass(frozen=True)
class Posterior:
    """Of the log of the goal's metric, for every candidate at a level (the place of a concurrency)."""

    surrogate: Surrogate
    plain_ms: Floats
    times: StepTime
    lengths: Sequence[Acceptance]
    noise: Noise

    def mean(self, level: int) -> Floats:
        speed: Floats = np.log(1000.0 * self.surrogate.concurrencies[level] / self.plain_ms[level]) - self.times.mean(
            level
        )
        for number, acceptance in enumerate(self.lengths):
            own = self._own(number)
            speed[own] += acceptance.mean(level)[self.surrogate.shape[own]]
        return np.asarray(speed)

    def variance(self, level: int) -> Floats:
        found = self.times.variance(level)
        for number, acceptance in enumerate(self.lengths):
            own = self._own(number)
            found[own] += acceptance.variance(level)[self.surrogate.shape[own]]
        return found

    def covariance(self, places: Whole, others: Whole, level: int) -> Floats:
        """Between candidates at one level."""
        found = self.times.covariance(places, others, level)
        for number, acceptance in enumerate(self.lengths):
            rows = np.flatnonzero(self.surrogate.candidates.proposer[places] == number)
            columns = np.flatnonzero(self.surrogate.candidates.proposer[others] == number)
            if len(rows) and len(columns):
                shapes = self.surrogate.shape
                found[np.ix_(rows, columns)] += acceptance.covariance(
                    shapes[places[rows]], shapes[others[columns]], level
                )
        return found

    def log_length(self, level: int) -> Floats:
        """Expected log of the acceptance length; 0 for a plain server."""
        found = np.zeros(len(self.surrogate.candidates))
        for number, acceptance in enumerate(self.lengths):
            own = self._own(number)
            found[own] = acceptance.mean(level)[self.surrogate.shape[own]]
        return found

    def log_ratio(self, level: int) -> Floats:
        """Expected log of step time over the plain server's."""
        return self.times.mean(level)

    def _own(self, proposer: int) -> Whole:
        return np.flatnonzero(self.surrogate.candidates.proposer == proposer)
