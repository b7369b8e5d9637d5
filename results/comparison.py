"""Comparison: how far two samples differ, and how sure that is.

A `Spread` is how much launches of the same settings differ; a `Difference` is a log ratio with its 95 % interval:

- Of several that were never relaunched the best has an interval that is simultaneous over all of which it was the best
  (`among`), as it is over the relaunched ones.
- The spread between launches is pooled over all settings launched more than once at that concurrency; over all
  concurrencies when there is none at this one.  Speculative and plain servers have pools of their own: on an H200 the
  speed of a single speculative stream moved by ±25 % between launches at identical acceptance, the plain server's by
  ±1.5 %.
- A spread seen on few relaunches is worth little, so experience weighs in as if it were some relaunches more (`EXPERIENCE`,
  a scaled inverse χ² prior: Gelman et al., Bayesian Data Analysis, §2.6); with many it no longer counts.  Two pools make a
  Welch interval (degrees of freedom after Satterthwaite, Student's t).  A `Basis` says what an interval rests on.

How often such intervals hold the truth is measured by benchmarks/verdict.py.  Not here: what is compared (sample.py), who
wins (contest.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import fmean

from results.sample import Sample, Side

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Experience:
    """What is known of a spread before any relaunch: its size on the log, worth so many degrees of freedom."""

    sd: float
    degrees: int


EXPERIENCE = {True: Experience(sd=0.08, degrees=3), False: Experience(sd=0.02, degrees=6)}
"""Between launches of a speculative and of a plain server; what it is good for is in docs/results (verdict)."""
ENOUGH_DEGREES = 3
"""Of relaunches; with fewer an interval is called assumed."""


class Basis(StrEnum):
    """Where the spread in an interval comes from; `doc` is a clause for a person."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Basis:
        basis = str.__new__(cls, value)
        basis._value_ = value
        basis.doc = doc
        return basis

    MEASURED = "measured", "launches of the same settings at this load point, the plain server's and speculative ones'"
    ELSEWHERE = (
        "measured at other load points",
        "nothing was launched twice here: launches of the same settings at other load points were compared",
    )
    FEW = (
        "measured on few relaunches",
        "there are too few relaunches to trust their spread alone: experience counts as much",
    )
    FEW_OTHERS = (
        "measured on few relaunches of other settings",
        "it was launched once: its spread is taken from the few others that were launched again, and experience counts as much",
    )
    PLAIN_ASSUMED = (
        "assumed for the plain server",
        f"it was launched once: {EXPERIENCE[False].sd:.0%} between launches is taken from experience",
    )
    SPECULATIVE_ASSUMED = (
        "assumed for the speculative server",
        f"none was launched twice: {EXPERIENCE[True].sd:.0%} between launches is taken from experience",
    )
    ASSUMED = (
        "assumed",
        f"nothing was launched twice: {EXPERIENCE[True].sd:.0%} between launches of a speculative server and {EXPERIENCE[False].sd:.0%} of the plain one are taken from experience",
    )


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log between launches of the same settings; `degrees` 0: nothing was launched twice."""

    sd: float
    degrees: int
    here: bool = True
    """Seen at the load point that is compared, not at others."""

    def with_experience(self, known: Experience) -> Experience:
        """What was seen and what was known before, each with the weight of its degrees."""
        degrees = self.degrees + known.degrees
        variance = (self.degrees * self.sd**2 + known.degrees * known.sd**2) / degrees
        return Experience(math.sqrt(variance), degrees)


@dataclass(frozen=True)
class Difference:
    """Mean of a log ratio, half its interval, its standard error, and where the spread in it comes from."""

    log: float
    half: float
    error: float
    basis: Basis

    @property
    def low(self) -> float:
        return self.log - self.half

    @property
    def high(self) -> float:
        return self.log + self.half

    @property
    def doubt(self) -> float:
        """Probability that the sign is really the other one: 0.5 is a coin, 0 is certain."""
        if self.error == 0:
            return 0.0 if self.log else 0.5
        return 0.5 * math.erfc(abs(self.log) / (self.error * math.sqrt(2)))


def spread(found: Iterable[Sample], *, speculative: bool) -> Spread:
    """Pooled within settings and host: √(Σ squares / Σ(n-1)); 0 degrees where nothing was launched twice."""
    squares, degrees = 0.0, 0
    for sample in found:
        if sample.speculative != speculative or not sample.trusted:
            continue
        for host in {launch.host for launch in sample.by_launch}:
            logs = [launch.log for launch in sample.by_launch if launch.host == host]
            squares += sum((log - fmean(logs)) ** 2 for log in logs)
            degrees += len(logs) - 1
    return Spread(math.sqrt(squares / degrees) if degrees else 0.0, degrees)


def difference(one: Sample, other: Sample, spreads: Mapping[bool, Spread], among: int = 1) -> Difference:
    """log(one / other); `spreads` by whether a sample is speculative; `one` was picked as the best of `among`."""
    half, error, basis = _doubt(one.side, other.side, spreads[True], spreads[False], among)
    return Difference(one.log - other.log, half, error, basis)


@lru_cache(maxsize=4096)
def _doubt(one: Side, other: Side, speculative: Spread, plain: Spread, among: int) -> tuple[float, float, Basis]:
    """Half the interval, the standard error, and where the spread in it comes from."""
    spreads = {True: speculative, False: plain}
    shares: dict[bool, float] = {}
    for side in (one, other):
        shares[side.speculative] = shares.get(side.speculative, 0.0) + 1 / side.counted
    known = {kind: spreads[kind].with_experience(EXPERIENCE[kind]) for kind in shares}
    error = math.sqrt(sum(known[kind].sd ** 2 * share for kind, share in shares.items()))
    half = _quantile(_degrees(shares, known), _tail(among)) * error
    return half, error, _basis({kind: spreads[kind] for kind in shares}, (one, other))


def _basis(spreads: Mapping[bool, Spread], compared: Sequence[Side]) -> Basis:
    assumed = {kind for kind, seen in spreads.items() if not seen.degrees}
    if assumed:
        both = Basis.ASSUMED if assumed == set(spreads) else None
        return both or (Basis.SPECULATIVE_ASSUMED if True in assumed else Basis.PLAIN_ASSUMED)
    few = {kind for kind, seen in spreads.items() if seen.degrees < ENOUGH_DEGREES and (kind or len(spreads) == 1)}
    if few:
        once = any(side.once for side in compared if side.speculative in few)
        return Basis.FEW_OTHERS if once else Basis.FEW
    return Basis.MEASURED if all(seen.here for seen in spreads.values()) else Basis.ELSEWHERE


def _degrees(shares: Mapping[bool, float], known: Mapping[bool, Experience]) -> float:
    """Welch and Satterthwaite."""
    parts = {kind: known[kind].sd ** 2 * share for kind, share in shares.items()}
    doubt = sum(part**2 / known[kind].degrees for kind, part in parts.items())
    return float(sum(parts.values()) ** 2 / doubt)


def _tail(among: int) -> float:
    """Probability above the interval, such that the best of `among` equals lies above its own in one of twenty cases.

    Being the best leaves no lower tail: 1 - (1 - tail)^among = 1 - CONFIDENCE (Šidák).  One or two need no correction.
    """
    alone = (1 - CONFIDENCE) / 2
    return min(alone, 1.0 - math.pow(CONFIDENCE, 1 / max(among, 1)))


def _quantile(degrees: float, tail: float) -> float:
    from scipy.special import stdtrit  # late: it takes a while to import

    return float(stdtrit(degrees, 1 - tail))
