"""Comparison: how far two settings differ at one load point, and how sure that is.

A `Sample` is all that was seen of one settings at one concurrency; a `Spread` is how much launches of the same settings
differ; a `Difference` is a log ratio with its 95 % interval:

- The launch is the unit of replication: repeats on one server share its luck, so they are averaged first.
- The spread between launches is pooled over all settings launched more than once at that concurrency; over all
  concurrencies when there is none at this one.  Speculative and plain servers have pools of their own: on an H200 the
  speed of a single speculative stream moved by ±25 % between launches at identical acceptance, the plain server's by
  ±1.5 %.  Two pools make a Welch interval (degrees of freedom after Satterthwaite, Student's t).
- Where nothing of a kind was launched twice its spread is not measured but assumed from that experience, and counts as
  known: its share is added at right angles and lends no certainty to the other's.  A measured interval that is wider only
  for want of degrees of freedom yields to the assumed one, which never takes less than the spread seen.  A `Basis` says
  which of all this an interval rests on.
- Hosts differ: launches are cleared of how much faster their host ran the same plain servers than the other hosts did.

Not here: who wins (verdict.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from results.measurement import Effect, worst
from results.record import Record
from sweeps.observation import Goal
from sweeps.settings import Settings

CONFIDENCE = 0.95
ASSUMED_SD = {True: 0.12, False: 0.02}
"""Standard deviation between launches on the log, speculative and plain, where none was relaunched: prior knowledge."""


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
        "relaunches differ by more than experience says, and are too few to say how far off that is: the real interval may be wider",
    )
    PLAIN_ASSUMED = (
        "assumed for the plain server",
        f"speculative servers were launched often enough, the plain one was not: for it {ASSUMED_SD[False]:.0%} between launches is taken from experience",
    )
    SPECULATIVE_ASSUMED = (
        "assumed for the speculative server",
        f"the plain server was launched often enough, speculative ones were not: for them {ASSUMED_SD[True]:.0%} between launches is taken from experience",
    )
    ASSUMED = (
        "assumed",
        f"neither was launched often enough: {ASSUMED_SD[True]:.0%} between launches of a speculative server and {ASSUMED_SD[False]:.0%} of the plain one are taken from experience",
    )


@dataclass(frozen=True)
class Launch:
    host: str
    log: float
    """Mean of the metric's log over the repeats."""


@dataclass(frozen=True)
class Sample:
    """The rows of one settings (as run) at one concurrency that count, a mean a launch."""

    settings: Settings
    rows: tuple[Record, ...]
    by_launch: tuple[Launch, ...]
    log: float
    """Mean over launches, each cleared of its host's own speed."""
    valid: bool
    """Whether some row has no flag that makes it invalid."""
    trusted: bool
    """Whether some row may win as far as flags go; then only such rows count."""
    cannot_win: str | None
    """The flags, or the limits that are broken; None: it may win."""

    @property
    def key(self) -> str:
        return self.settings.key

    @property
    def asked(self) -> Settings:
        return self.rows[0].asked

    @property
    def speculative(self) -> bool:
        return self.settings.speculative

    @property
    def launches(self) -> int:
        return len(self.by_launch)

    def mean(self, metric: str) -> float | None:
        """Over the rows that have it."""
        values = [value for row in self.rows if (value := getattr(row.measurement, metric)) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log between launches of the same settings; `degrees` 0: nothing was launched twice."""

    sd: float
    degrees: int
    here: bool = True
    """Seen at the load point that is compared, not at others."""


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


def samples(records: Iterable[Record], goal: Goal) -> dict[int, tuple[Sample, ...]]:
    """Concurrency → its samples, for all load points that count; rows that show nothing plausible are left out."""
    found: dict[int, dict[str, list[Record]]] = {}
    for record in records:
        if record.point and goal.counts(record.point.concurrency) and record.value(goal) is not None:
            here = found.setdefault(record.point.concurrency, {})
            here.setdefault(record.settings.key, []).append(record)
    return {concurrency: _samples(list(here.values()), goal) for concurrency, here in sorted(found.items())}


def best_plain(here: Iterable[Sample]) -> Sample | None:
    """Of the samples of one load point: the fastest plain server that may win, or when none keeps the limits the fastest
    of those without serious flags; None when there is no such one."""
    sound = sorted((sample for sample in here if not sample.speculative and sample.trusted), key=lambda one: -one.log)
    return next((sample for sample in sound if sample.cannot_win is None), next(iter(sound), None))


def spread(found: Iterable[Sample], *, speculative: bool) -> Spread:
    """Pooled within settings and host: √(Σ squares / Σ(n-1)); the assumed one with 0 degrees where nothing is."""
    squares, degrees = 0.0, 0
    for sample in found:
        if sample.speculative != speculative or not sample.trusted:
            continue
        for host in {launch.host for launch in sample.by_launch}:
            logs = [launch.log for launch in sample.by_launch if launch.host == host]
            squares += sum((log - fmean(logs)) ** 2 for log in logs)
            degrees += len(logs) - 1
    return Spread(math.sqrt(squares / degrees), degrees) if degrees else Spread(ASSUMED_SD[speculative], 0)


def difference(one: Sample, other: Sample, spreads: Mapping[bool, Spread]) -> Difference:
    """log(one / other); `spreads` by whether a sample is speculative."""
    shares: dict[bool, float] = {}
    for sample in (one, other):
        shares[sample.speculative] = shares.get(sample.speculative, 0.0) + 1 / sample.launches
    error = _error(shares, {kind: spreads[kind].sd for kind in shares})
    by_data = _half_by_data(shares, spreads)
    by_prior = _quantile(math.inf) * _error(shares, {kind: max(spreads[kind].sd, ASSUMED_SD[kind]) for kind in shares})
    basis = _basis({kind: spreads[kind] for kind in shares}, few=by_prior < by_data)
    return Difference(one.log - other.log, min(by_data, by_prior), error, basis)


def _basis(spreads: Mapping[bool, Spread], few: bool) -> Basis:
    """`few`: the relaunches were too few, so that of what was seen and what is assumed the larger one was taken."""
    assumed = {kind for kind, seen in spreads.items() if not seen.degrees or (few and seen.sd < ASSUMED_SD[kind])}
    if assumed:
        both = Basis.ASSUMED if assumed == set(spreads) else None
        return both or (Basis.SPECULATIVE_ASSUMED if True in assumed else Basis.PLAIN_ASSUMED)
    if few:
        return Basis.FEW
    return Basis.MEASURED if all(seen.here for seen in spreads.values()) else Basis.ELSEWHERE


def _error(shares: Mapping[bool, float], sds: Mapping[bool, float]) -> float:
    return math.sqrt(sum(sds[kind] ** 2 * share for kind, share in shares.items()))


def _half_by_data(shares: Mapping[bool, float], spreads: Mapping[bool, Spread]) -> float:
    """Half an interval: Student's for what was seen and the normal one for what is assumed, at right angles.

    Were the assumed spread's certainty counted among the degrees, two launches that agree by luck would pass for proof.
    """
    seen = {kind: share for kind, share in shares.items() if spreads[kind].degrees}
    known = {kind: share for kind, share in shares.items() if not spreads[kind].degrees}
    sds = {kind: spreads[kind].sd for kind in shares}
    return math.hypot(_quantile(_degrees(seen, spreads)) * _error(seen, sds), _quantile(math.inf) * _error(known, sds))


def _degrees(shares: Mapping[bool, float], spreads: Mapping[bool, Spread]) -> float:
    """Welch and Satterthwaite, over kinds whose spread was seen."""
    parts = {kind: spreads[kind].sd ** 2 * share for kind, share in shares.items()}
    doubt = sum(part**2 / spreads[kind].degrees for kind, part in parts.items())
    return sum(parts.values()) ** 2 / doubt if doubt else math.inf


def _quantile(degrees: float) -> float:
    from scipy.special import stdtrit  # late: it takes a while to import

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def _samples(by_settings: Sequence[list[Record]], goal: Goal) -> tuple[Sample, ...]:
    offsets = _host_offsets([rows for rows in by_settings if not rows[0].settings.speculative], goal)
    return tuple(_sample(rows, goal, offsets) for rows in by_settings)


def _sample(rows: list[Record], goal: Goal, offsets: Mapping[str, float]) -> Sample:
    trusted = [row for row in rows if row.trusted]
    valid = [row for row in rows if worst(list(row.flags)) is not Effect.INVALID]
    counted = trusted or valid or rows
    launches = _launches(counted, goal)
    return Sample(
        settings=rows[0].settings,
        rows=tuple(counted),
        by_launch=launches,
        log=fmean(launch.log - offsets.get(launch.host, 0.0) for launch in launches),
        valid=bool(valid),
        trusted=bool(trusted),
        cannot_win=_broken_limits(counted, goal) if trusted else _serious_flags(counted),
    )


def _launches(rows: list[Record], goal: Goal) -> tuple[Launch, ...]:
    """A server that was begun again after an interruption is another launch."""
    logs: dict[tuple[int, int, str], list[float]] = {}
    for row in rows:
        logs.setdefault((row.trial, row.attempt, row.origin.host), []).append(math.log(row.value(goal) or math.nan))
    return tuple(Launch(host, fmean(values)) for (_, _, host), values in logs.items())


def _host_offsets(plain: Sequence[list[Record]], goal: Goal) -> dict[str, float]:
    """How much faster each host is, on the log, than the mean of the hosts that ran the same plain servers."""
    found: dict[str, list[float]] = {}
    for rows in plain:
        by_host: dict[str, list[float]] = {}
        for launch in _launches([row for row in rows if row.trusted], goal):
            by_host.setdefault(launch.host, []).append(launch.log)
        means = {host: fmean(logs) for host, logs in by_host.items()}
        for host, mean in means.items():
            found.setdefault(host, []).append(mean - fmean(means.values()))
    return {host: fmean(offsets) for host, offsets in found.items()}


def _serious_flags(rows: list[Record]) -> str:
    return ", ".join(sorted({str(flag) for row in rows for flag in row.flags if flag.effect is not Effect.NOTE}))


def _broken_limits(rows: list[Record], goal: Goal) -> str | None:
    broken = []
    for name, limit in goal.limits.items():
        values = [value for row in rows if (value := getattr(row.measurement, name)) is not None]
        if values and fmean(values) > limit:
            broken.append(f"{name} {fmean(values):.4g} is above its limit {limit:g}")
    return ", ".join(broken) or None
