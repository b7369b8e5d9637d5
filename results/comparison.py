"""Comparison: how far two settings differ at one load point, and how sure that is.

A `Sample` is all that was seen of one settings at one concurrency; a `Spread` is how much launches of the same settings
differ; a `Difference` is a log ratio with its 95 % interval:

- The launch is the unit of replication: repeats on one server share its luck, so they are averaged first.
- A setting that was relaunched because it looked best is judged by its relaunches alone: its first launch is what picked
  it, and the first of many is mostly the luckiest.  Where none was relaunched the interval is simultaneous over all of
  which it was the best (`among`), as it is over the relaunched ones.
- The spread between launches is pooled over all settings launched more than once at that concurrency; over all
  concurrencies when there is none at this one.  Speculative and plain servers have pools of their own: on an H200 the
  speed of a single speculative stream moved by ±25 % between launches at identical acceptance, the plain server's by
  ±1.5 %.
- A spread seen on few relaunches is worth little, so experience weighs in as if it were some relaunches more (`EXPERIENCE`,
  a scaled inverse χ² prior: Gelman et al., Bayesian Data Analysis, §2.6); with many it no longer counts.  Two pools make a
  Welch interval (degrees of freedom after Satterthwaite, Student's t).  A `Basis` says what an interval rests on.
- Hosts differ: launches are cleared of how much faster their host ran the same plain servers than the other hosts did.

How often such intervals hold the truth is measured by benchmarks/verdict.py.  Not here: who wins (verdict.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from statistics import fmean

from results.measurement import Effect, Flag, worst
from results.record import Record
from sweeps.observation import Goal
from sweeps.settings import Settings

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
class Launch:
    host: str
    log: float
    """Mean of the metric's log over the repeats."""
    ordinal: int = 0
    """Among launches of the same settings; from 1 on it is a relaunch."""
    server: tuple[int, int] = (0, 0)
    """Trial and attempt: the same at all load points of a launch."""
    offset: float = 0.0
    """How much faster, on the log, its host is than the others."""

    @property
    def cleared(self) -> float:
        """Of its host's own speed."""
        return self.log - self.offset


@dataclass(frozen=True)
class Sample:
    """The rows of one settings (as run) at one concurrency that count, a mean a launch."""

    settings: Settings
    rows: tuple[Record, ...]
    by_launch: tuple[Launch, ...]
    counted: tuple[Launch, ...]
    """Those it is judged by: without the launch that picked it, when it was relaunched since."""
    log: float
    """Mean over the counted launches, each cleared of its host's own speed."""
    confirmed: bool
    """Its first launch picked it from none, or does not count."""
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


def samples(records: Iterable[Record], goal: Goal) -> dict[int, tuple[Sample, ...]]:
    """Concurrency → its samples, for all load points that count; rows that show nothing plausible are left out."""
    found: dict[int, dict[str, list[Record]]] = {}
    for record in _output_changed(list(records)):
        if record.point and goal.counts(record.point.concurrency) and record.value(goal) is not None:
            here = found.setdefault(record.point.concurrency, {})
            here.setdefault(record.settings.key, []).append(record)
    return {concurrency: _samples(list(here.values()), goal) for concurrency, here in sorted(found.items())}


def _output_changed(records: Sequence[Record]) -> list[Record]:
    """What one launch of some settings said wrong, all of them may say wrong: the flag is on all their rows."""
    changed = {record.settings.key for record in records if Flag.OUTPUT_CHANGED in record.flags}
    flagged = (
        replace(record, flags=(*record.flags, Flag.OUTPUT_CHANGED))
        if record.settings.key in changed and Flag.OUTPUT_CHANGED not in record.flags
        else record
        for record in records
    )
    return list(flagged)


def best_plain(here: Iterable[Sample]) -> Sample | None:
    """Of the samples of one load point: the fastest plain server that may win, or when none keeps the limits the fastest
    of those without serious flags; None when there is no such one."""
    sound = sorted((sample for sample in here if not sample.speculative and sample.trusted), key=lambda one: -one.log)
    return next((sample for sample in sound if sample.cannot_win is None), next(iter(sound), None))


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
    shares: dict[bool, float] = {}
    for sample in (one, other):
        shares[sample.speculative] = shares.get(sample.speculative, 0.0) + 1 / len(sample.counted)
    known = {kind: spreads[kind].with_experience(EXPERIENCE[kind]) for kind in shares}
    error = math.sqrt(sum(known[kind].sd ** 2 * share for kind, share in shares.items()))
    half = _quantile(_degrees(shares, known), _tail(among)) * error
    return Difference(one.log - other.log, half, error, _basis({kind: spreads[kind] for kind in shares}, (one, other)))


def _basis(spreads: Mapping[bool, Spread], compared: Sequence[Sample]) -> Basis:
    assumed = {kind for kind, seen in spreads.items() if not seen.degrees}
    if assumed:
        both = Basis.ASSUMED if assumed == set(spreads) else None
        return both or (Basis.SPECULATIVE_ASSUMED if True in assumed else Basis.PLAIN_ASSUMED)
    few = {kind for kind, seen in spreads.items() if seen.degrees < ENOUGH_DEGREES and (kind or len(spreads) == 1)}
    if few:
        once = any(sample.launches == 1 for sample in compared if sample.speculative in few)
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


@lru_cache(maxsize=4096)
def _quantile(degrees: float, tail: float) -> float:
    from scipy.special import stdtrit  # late: it takes a while to import

    return float(stdtrit(degrees, 1 - tail))


def _samples(by_settings: Sequence[list[Record]], goal: Goal) -> tuple[Sample, ...]:
    offsets = _host_offsets([rows for rows in by_settings if not rows[0].settings.speculative], goal)
    chosen_from = sum(rows[0].settings.speculative and any(row.trusted for row in rows) for rows in by_settings)
    return tuple(_sample(rows, goal, offsets, picked=chosen_from > 1) for rows in by_settings)


def _sample(rows: list[Record], goal: Goal, offsets: Mapping[str, float], picked: bool) -> Sample:
    """`picked`: a relaunch among these rows means that this one was chosen from several."""
    trusted = [row for row in rows if row.trusted]
    valid = [row for row in rows if worst(list(row.flags)) is not Effect.INVALID]
    kept = trusted or valid or rows
    launches = tuple(replace(launch, offset=offsets.get(launch.host, 0.0)) for launch in _launches(kept, goal))
    counted, confirmed = _counted(launches, picked and rows[0].settings.speculative)
    return Sample(
        settings=rows[0].settings,
        rows=tuple(kept),
        by_launch=launches,
        counted=counted,
        log=fmean(launch.cleared for launch in counted),
        confirmed=confirmed,
        valid=bool(valid),
        trusted=bool(trusted),
        cannot_win=_broken_limits(kept, goal) if trusted else _serious_flags(kept),
    )


def _counted(launches: tuple[Launch, ...], picked: bool) -> tuple[tuple[Launch, ...], bool]:
    """The launches that one is judged by, and whether the one that picked it is not among them."""
    relaunches = tuple(launch for launch in launches if launch.ordinal > 0)
    return (relaunches, True) if picked and relaunches else (launches, not picked)


def combined(found: Mapping[int, Sequence[Sample]], goal: Goal) -> tuple[Sample, ...]:
    """One a settings that was measured at every load point that counts: the weighted mean of its logs over them.

    Launch by launch, so that luck which the load points of a launch share does not pass for luck of its own.
    """
    weights = {concurrency: goal.weight(concurrency) for concurrency in found if goal.weight(concurrency)}
    total, by_key = sum(weights.values()), {c: {one.key: one for one in found[c]} for c in weights}
    keys = [one.key for one in next(iter(found.values()), ()) if all(one.key in here for here in by_key.values())]
    parts = [{c: by_key[c][key] for c in weights} for key in keys]
    kept = [(part, launches) for part in parts if part and (launches := _joint(part, {c: w / total for c, w in weights.items()}))]  # fmt: skip
    chosen_from = sum(_first(part).speculative and all(one.trusted for one in part.values()) for part, _ in kept)
    return tuple(_combined(part, launches, picked=chosen_from > 1) for part, launches in kept)


def _first(part: Mapping[int, Sample]) -> Sample:
    return next(iter(part.values()))


def _joint(part: Mapping[int, Sample], shares: Mapping[int, float]) -> tuple[Launch, ...]:
    """The launches that were measured at all load points of `part`."""
    by_server = {c: {launch.server: launch for launch in sample.by_launch} for c, sample in part.items()}
    found = []
    for launch in _first(part).by_launch:
        if all(launch.server in servers for servers in by_server.values()):
            here = {c: servers[launch.server] for c, servers in by_server.items()}
            log = sum(shares[c] * one.log for c, one in here.items())
            found.append(replace(launch, log=log, offset=sum(shares[c] * one.offset for c, one in here.items())))
    return tuple(found)


def _combined(part: Mapping[int, Sample], launches: tuple[Launch, ...], picked: bool) -> Sample:
    counted, confirmed = _counted(launches, picked and _first(part).speculative)
    barred = [f"{sample.cannot_win} (at {concurrency})" for concurrency, sample in part.items() if sample.cannot_win]
    return replace(
        _first(part),
        rows=tuple(row for sample in part.values() for row in sample.rows),
        by_launch=launches,
        counted=counted,
        log=fmean(launch.cleared for launch in counted),
        confirmed=confirmed,
        valid=all(sample.valid for sample in part.values()),
        trusted=all(sample.trusted for sample in part.values()),
        cannot_win="; ".join(barred) or None,
    )


def _launches(rows: list[Record], goal: Goal) -> tuple[Launch, ...]:
    """A server that was begun again after an interruption is another launch."""
    logs: dict[tuple[int, int, str, int], list[float]] = {}
    for row in rows:
        server = (row.trial, row.attempt, row.origin.host, row.launch)
        logs.setdefault(server, []).append(math.log(row.value(goal) or math.nan))
    return tuple(
        Launch(host, fmean(values), ordinal, (trial, attempt))
        for (trial, attempt, host, ordinal), values in logs.items()
    )


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
