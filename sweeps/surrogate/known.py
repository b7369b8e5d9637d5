"""Known: everything observed, as the search reads it: who was measured where, what may run there, what is best so far.

Failures teach by their cause.  Not here: what to launch next (gain.py), how likely it is that more is to be found (odds.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sweeps.observation import Observation
from sweeps.settings import Settings
from sweeps.surrogate import Posterior, Surrogate
from sweeps.surrogate.candidates import Bools, Floats, proposer_of
from sweeps.surrogate.points import Point, points_of

KERNELS_REFUSE = "backend_unsupported"
"""Cause of a failure that says something of all settings with the same kernels."""
OUT_OF_MEMORY = ("oom_kv_pool", "oom_graph_capture", "oom_running")


@dataclass(frozen=True)
class Known:
    """Everything observed, as the search reads it."""

    surrogate: Surrogate
    points: Sequence[Point]
    failures: Sequence[Observation]
    planned: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Trial → concurrencies it was to measure; missing: all of them."""
    weights: tuple[float, ...] = ()
    """What each concurrency counts in the goal; empty: alike."""

    @classmethod
    def of(
        cls, surrogate: Surrogate, observations: Iterable[Observation],
        planned: dict[int, tuple[int, ...]] | None = None, weights: tuple[float, ...] = (),
    ) -> Known:  # fmt: skip
        """Raises NoAcceptanceError (points.py) when what was observed cannot be split into acceptance and time."""
        seen = list(observations)
        points = points_of(seen, surrogate.candidates, surrogate.levels)
        failures = [o for o in seen if o.outcome == "infeasible" and not o.elsewhere]
        return cls(surrogate, points, failures, planned or {}, weights)

    @cached_property
    def launches(self) -> np.ndarray:
        """Levels × candidates: how often this sweep measured each; a winner has to be launched in it."""
        found = np.zeros((len(self.surrogate.concurrencies), len(self.surrogate.candidates)), int)
        for point in self.points:
            found[point.level, point.place] += point.here
        return found

    @cached_property
    def outside_limits(self) -> Bools:
        found = np.zeros(self.launches.shape, bool)
        for point in self.points:
            found[point.level, point.place] |= not point.within_limits
        return found

    @cached_property
    def runs(self) -> Floats:
        """Levels × candidates: chance that it can run there."""
        candidates = self.surrogate.candidates
        chance = np.full(self.launches.shape, 0.97)
        chance *= np.where(self._kernels_seen, 1.0, np.where(candidates.tree, 0.75, 0.97))
        for failure in self.failures:
            self._strike(chance, failure)
        return np.where(self.launches > 0, np.maximum(chance, 0.97), chance)

    @cached_property
    def _kernels_seen(self) -> Bools:
        """Of each candidate: whether its backend did chains (or trees) before."""
        candidates = self.surrogate.candidates
        cells = list(zip(candidates.variant.tolist(), candidates.tree.tolist(), strict=True))
        seen = {cells[point.place] for point in self.points}
        return np.array([cell in seen for cell in cells])

    def _strike(self, chance: Floats, failure: Observation) -> None:
        """What a failure rules out, by its cause."""
        candidates, failed = self.surrogate.candidates, failure.settings
        place = candidates.place.get(failed.key)
        if place is None:
            return
        same_server = candidates.variant == candidates.variant[place]
        chance[:, place] = 0.0
        if failure.cause == KERNELS_REFUSE:
            chance[:, same_server & (candidates.tree == candidates.tree[place]) & candidates.speculative] = 0.0
        elif failure.cause in OUT_OF_MEMORY and failed.speculative:
            self._strike_memory(chance, failure, place)
        elif failure.cause == "drafter_mismatch":
            mine = proposer_of(failed)
            chance[:, [proposer_of(s) == mine for s in candidates.settings]] = 0.0

    def _strike_memory(self, chance: Floats, failure: Observation, place: int) -> None:
        """What needs as much memory and more cannot run either.

        A server that was told how many requests to hold has room for them from its start: at whichever load it would be
        measured, more draft tokens need more.  Otherwise the largest load that it was to be measured at decides.
        """
        candidates, failed = self.surrogate.candidates, failure.settings
        if failure.concurrency is None and failed.max_running_requests is not None:
            chance[:, candidates.speculative & (candidates.tokens >= candidates.tokens[place]) & self._as_tight(failed)] = 0.0  # fmt: skip
            return
        streams = np.array(self.surrogate.concurrencies, float)
        most = failure.concurrency or max(self.planned.get(failure.trial, self.surrogate.concurrencies))
        chance[streams[:, None] * candidates.tokens >= most * candidates.tokens[place]] = 0.0
        if most > streams.min():
            chance[streams < most, place] = 0.6

    def _as_tight(self, failed: Settings) -> Bools:
        """Candidates that leave no more memory than these settings for each request."""
        needs = failed.max_running_requests or 0
        return np.array([
            (s.tp_size, s.mem_fraction_static) == (failed.tp_size, failed.mem_fraction_static)
            and (s.max_running_requests is None or s.max_running_requests >= needs)
            for s in self.surrogate.candidates.settings
        ])  # fmt: skip

    def incumbent(self, posterior: Posterior, level: int) -> int | None:
        """The best expected of what was measured there within the limits."""
        able = (self.launches[level] > 0) & ~self.outside_limits[level]
        if not able.any():
            return None
        return int(np.argmax(np.where(able, posterior.mean(level), -np.inf)))
