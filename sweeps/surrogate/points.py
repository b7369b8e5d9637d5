"""Points: observations as the surrogate reads them, one a launch and concurrency, and the noise that relaunches show.

Not here: failures (known.py reads them).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeps.observation import Observation
from sweeps.surrogate.candidates import Candidates
from sweeps.surrogate.step_time import Noise

USUAL_NOISE, USUAL_SECONDS, USUAL_FREEDOM = 0.02, 120.0, 4.0
"""Relative sd of a throughput from launch to launch, measured for so long, before any relaunch; and how many relaunches
that belief is worth.  Of shorter measurements it grows as the root of the time that is missing, up to MOST_NOISE."""
MOST_NOISE = 0.08


@dataclass(frozen=True)
class Point:
    """What one launch came to at one concurrency, repeats put together."""

    place: int
    """Of its settings among the candidates."""
    level: int
    """Place of its concurrency."""
    trial: int
    value: float
    """The goal's metric."""
    length: float
    """Acceptance length; 1 for a plain server."""
    histogram: tuple[int, ...] = ()
    within_limits: bool = True
    measure_s: float | None = None
    """Seconds that were measured; None: not known."""
    elsewhere: str = ""
    """The sweep of another target or other GPUs that it comes from; empty: this one, or one like it."""

    @property
    def here(self) -> bool:
        """Whether this sweep launched it; trials of earlier ones have numbers below 0."""
        return self.trial >= 0 and not self.elsewhere

    @property
    def weight(self) -> float:
        """Launches here that it is worth."""
        return HINT if self.elsewhere else 1.0


HINT = 0.1
"""Launches here that one of another target or on other GPUs is worth."""


class NoAcceptanceError(Exception):
    """A speculative point came without acceptance length and histogram, or the two contradict each other."""


def points_of(observations: Iterable[Observation], candidates: Candidates, levels: Mapping[int, int]) -> list[Point]:
    """Points of valid measurements of candidates.

    Raises:
        NoAcceptanceError: the message names the settings.
    """
    grouped: dict[tuple[int, str, int], list[Observation]] = defaultdict(list)
    for o in observations:
        known = o.concurrency is not None and o.concurrency in levels and o.settings.key in candidates.place
        if known and o.outcome == "measured" and o.value is not None and math.isfinite(o.value) and o.value > 0:
            grouped[o.trial, o.settings.key, o.concurrency or 0].append(o)
    return [
        _point(group, candidates.place[key], levels[concurrency]) for (_, key, concurrency), group in grouped.items()
    ]


def _point(group: Sequence[Observation], place: int, level: int) -> Point:
    first = group[0]
    value = math.exp(sum(math.log(o.value or 1.0) for o in group) / len(group))
    within = all(o.excess <= 0 for o in group)
    if not first.settings.speculative:
        return Point(place, level, first.trial, value, 1.0, (), within, _seconds(group), first.elsewhere)
    histogram = _summed([o.acceptance_histogram for o in group if o.acceptance_histogram])
    lengths = [length for o in group if (length := _length(o)) is not None]
    if not lengths:
        raise NoAcceptanceError(f"{first.settings} at concurrency {first.concurrency} came without acceptance length")
    return Point(
        place,
        level,
        first.trial,
        value,
        sum(lengths) / len(lengths),
        histogram,
        within,
        _seconds(group),
        first.elsewhere,
    )


def _seconds(group: Sequence[Observation]) -> float | None:
    """Of all repeats together."""
    return sum(o.measure_s or 0.0 for o in group) or None


TOLERANCE = 0.05
"""Relative difference between a reported acceptance length and its histogram's that rounding and half-done requests explain."""


def _length(o: Observation) -> float | None:
    """As reported, else from the histogram.

    Raises:
        NoAcceptanceError: 1 + Σ j H_j / Σ H_j is not what is reported.
    """
    total = sum(o.acceptance_histogram or ())
    told = 1 + sum(j * count for j, count in enumerate(o.acceptance_histogram or ())) / total if total else None
    length = o.acceptance_length
    if length is not None and told is not None and abs(told / length - 1) > TOLERANCE:
        raise NoAcceptanceError(
            f"{o.settings} at concurrency {o.concurrency}: acceptance length {length:.2f} is not its histogram's, {told:.2f}"
        )
    return length if length is not None else told


def _summed(histograms: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(map(len, histograms), default=0)
    return tuple(sum(h[j] if j < len(h) else 0 for h in histograms) for j in range(longest))


def thinned(points: Sequence[Point], most: int = 240) -> list[Point]:
    """At most so many, so that a fit stays a fraction of a second: of each level the best half of its share and the newest.

    Plain servers come first.
    """
    if len(points) <= most:
        return list(points)
    levels = sorted({point.level for point in points})
    share = most // len(levels)
    kept: list[Point] = []
    for level in levels:
        here = [point for point in points if point.level == level]
        first = sorted(here, key=lambda p: (p.length > 1.0, -p.value))[: share - share // 2]
        newest = sorted((p for p in here if p not in first), key=lambda p: p.trial)[-(share // 2) :]
        kept += [*first, *newest]
    return kept


def noise_of(points: Sequence[Point]) -> Noise:
    """Of one launch, pooled over relaunches of the same settings at the same concurrency."""
    grouped: dict[tuple[int, int], list[float]] = defaultdict(list)
    for point in points:
        if not point.elsewhere:
            grouped[point.place, point.level].append(math.log(point.value))
    seconds = [point.measure_s for point in points if point.measure_s]
    short = math.sqrt(USUAL_SECONDS / float(np.median(seconds))) if seconds else 1.0
    usual = min(MOST_NOISE, USUAL_NOISE * max(1.0, short))
    squares = sum(float(np.var(logs)) * len(logs) for logs in grouped.values())
    freedom = sum(len(logs) - 1 for logs in grouped.values())
    total = USUAL_FREEDOM + freedom
    return Noise(math.sqrt((USUAL_FREEDOM * usual**2 + squares) / total), total)
