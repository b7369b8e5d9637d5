"""Sample: all that was seen of one settings at one concurrency, a mean a launch, and whether it may win.

- The launch is the unit of replication: repeats on one server share its luck, so they are averaged first.
- A setting that was relaunched because it looked best is judged by its relaunches alone: its first launch is what picked
  it, and the first of many is mostly the luckiest.
- In a replay one recorded launch may answer several; they are one launch.
- Hosts differ: launches are cleared of how much faster their host ran the same plain servers than the other hosts did.

Not here: how far two of them differ (comparison.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import NamedTuple, TypeVar

from results.measurement import Effect, Flag, worst
from results.record import Record
from sweeps.observation import Goal
from sweeps.settings import Settings


@dataclass(frozen=True)
class Launch:
    host: str
    log: float
    """Mean of the metric's log over the repeats."""
    ordinal: int = 0
    """Among launches of the same settings; from 1 on it is a relaunch."""
    trial: int = 0
    """The same at all load points of a launch, and of its other attempts, which share them."""
    offset: float = 0.0
    """How much faster, on the log, its host is than the others."""

    @property
    def cleared(self) -> float:
        """Of its host's own speed."""
        return self.log - self.offset


One = TypeVar("One")


class Side(NamedTuple):
    """All that the doubt of a difference depends on, of one of both samples."""

    speculative: bool
    counted: int
    """Launches it is judged by."""
    once: bool
    """Launched but once."""


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

    @cached_property
    def speculative(self) -> bool:
        return self.settings.speculative

    @property
    def launches(self) -> int:
        return len(self.by_launch)

    @cached_property
    def side(self) -> Side:
        return Side(self.speculative, len(self.counted), self.launches == 1)

    @cached_property
    def judged(self) -> tuple[Record, ...]:
        """The rows of the counted launches."""
        return _of_launches(self.rows, self.counted)

    def mean(self, metric: str) -> float | None:
        """Over the counted launches, as `log` is."""
        return mean(self.judged, metric)


def mean(rows: Iterable[Record], metric: str) -> float | None:
    """The one kind of mean there is of launches, each launch's repeats averaged first; None where no row has the metric."""
    by_launch: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if (value := getattr(row.measurement, metric)) is not None:
            by_launch.setdefault((row.trial, row.attempt), []).append(value)
    return geometric([geometric(values) for values in by_launch.values()]) if by_launch else None


def geometric(values: Sequence[float]) -> float:
    """The geometric mean, arithmetic where a value is no positive number; of equal values exactly those, so that what is at a limit is not above it."""
    if len(set(values)) == 1:
        return values[0]
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else fmean(values)


def _of_launches(rows: Iterable[Record], launches: Iterable[Launch]) -> tuple[Record, ...]:
    trials = {launch.trial for launch in launches}
    return tuple(row for row in rows if row.trial in trials)


def samples(records: Iterable[Record], goal: Goal) -> dict[int, tuple[Sample, ...]]:
    """Concurrency → its samples, for all load points that count; rows that show nothing plausible are left out."""
    found: dict[int, dict[str, list[Record]]] = {}
    for record in _output_changed(_answered_once(records)):
        if record.point and goal.counts(record.point.concurrency) and record.value(goal) is not None:
            here = found.setdefault(record.point.concurrency, {})
            here.setdefault(record.settings.key, []).append(record)
    return {concurrency: _samples(list(here.values()), goal) for concurrency, here in sorted(found.items())}


def best_plain(here: Iterable[Sample]) -> Sample | None:
    """Of the samples of one load point: the fastest plain server that may win, or when none keeps the limits the fastest
    of those without serious flags; None when there is no such one."""
    sound = sorted((sample for sample in here if not sample.speculative and sample.trusted), key=lambda one: -one.log)
    return next((sample for sample in sound if sample.cannot_win is None), next(iter(sound), None))


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


def repeats_recorded(records: Iterable[Record]) -> Iterator[bool]:
    """Of each row whether an earlier one holds the same figures: those of one recorded launch, which a replay gave twice."""
    seen = set()
    for record in records:
        one = (record.asked.key, record.origin.recorded, record.point)
        yield record.origin.recorded is not None and one in seen
        seen.add(one)


def _answered_once(records: Iterable[Record]) -> list[Record]:
    known = list(records)
    return [record for record, again in zip(known, repeats_recorded(known), strict=True) if not again]


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


def _samples(by_settings: Sequence[list[Record]], goal: Goal) -> tuple[Sample, ...]:
    offsets = _host_offsets([rows for rows in by_settings if not rows[0].settings.speculative], goal)
    chosen_from = sum(rows[0].settings.speculative and any(row.trusted for row in rows) for rows in by_settings)
    return tuple(_sample(rows, goal, offsets, picked=chosen_from > 1) for rows in by_settings)


def _sample(rows: list[Record], goal: Goal, offsets: Mapping[str, float], picked: bool) -> Sample:
    """`picked`: a relaunch among these rows means that this one was chosen from several."""
    trusted = [row for row in rows if row.trusted]
    valid = [row for row in rows if worst(list(row.flags)) is not Effect.INVALID]
    kept = trusted or valid or rows
    launches = _launches(kept, goal, offsets)
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
        cannot_win=_broken_limits(_of_launches(kept, counted), goal) if trusted else _serious_flags(kept),
    )


def judged_by(found: Sequence[One], ordinal: Callable[[One], int], *, picked: bool) -> tuple[One, ...]:
    """Of launches of some settings (or their rows) those that count: the relaunches alone, where there are some and the
    settings were `picked` from several."""
    relaunches = tuple(one for one in found if ordinal(one) > 0)
    return relaunches if picked and relaunches else tuple(found)


def counted_rows(records: Iterable[Record]) -> list[tuple[Record, ...]]:
    """Of each settings at each load point, also those that do not count in the goal, the trusted rows that it is judged by."""
    found: dict[int, dict[str, list[Record]]] = {}
    for record in _output_changed(_answered_once(records)):
        if record.point is not None and record.trusted and record.measurement and record.measurement.output_tok_s:
            found.setdefault(record.point.concurrency, {}).setdefault(record.settings.key, []).append(record)
    return [rows for here in found.values() for rows in _judged(list(here.values()))]


def _judged(by_settings: Sequence[list[Record]]) -> Iterator[tuple[Record, ...]]:
    picked = sum(rows[0].settings.speculative for rows in by_settings) > 1
    for rows in by_settings:
        yield judged_by(rows, lambda row: row.launch, picked=picked and rows[0].settings.speculative)


def _counted(launches: tuple[Launch, ...], picked: bool) -> tuple[tuple[Launch, ...], bool]:
    """The launches that one is judged by, and whether the one that picked it is not among them."""
    counted = judged_by(launches, lambda launch: launch.ordinal, picked=picked)
    return counted, not picked or all(launch.ordinal > 0 for launch in counted)


def _first(part: Mapping[int, Sample]) -> Sample:
    return next(iter(part.values()))


def _joint(part: Mapping[int, Sample], shares: Mapping[int, float]) -> tuple[Launch, ...]:
    """The launches that were measured at all load points of `part`; all attempts of a trial are one."""
    by_trial = {c: {launch.trial: launch for launch in sample.by_launch} for c, sample in part.items()}
    found = []
    for launch in _first(part).by_launch:
        if all(launch.trial in launches for launches in by_trial.values()):
            here = {c: launches[launch.trial] for c, launches in by_trial.items()}
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


def _launches(rows: list[Record], goal: Goal, offsets: Mapping[str, float]) -> tuple[Launch, ...]:
    """A server that was begun again after an interruption is another launch."""
    logs: dict[tuple[int, int, str, int], list[float]] = {}
    for row in rows:
        server = (row.trial, row.attempt, row.origin.host, row.launch)
        logs.setdefault(server, []).append(math.log(row.value(goal) or math.nan))
    return tuple(
        Launch(host, fmean(values), ordinal, trial, offsets.get(host, 0.0))
        for (trial, _, host, ordinal), values in logs.items()
    )


def _host_offsets(plain: Sequence[list[Record]], goal: Goal) -> dict[str, float]:
    """How much faster each host is, on the log, than the mean of the hosts that ran the same plain servers."""
    found: dict[str, list[float]] = {}
    for rows in plain:
        by_host: dict[str, list[float]] = {}
        for launch in _launches([row for row in rows if row.trusted], goal, {}):
            by_host.setdefault(launch.host, []).append(launch.log)
        means = {host: fmean(logs) for host, logs in by_host.items()}
        for host, mean in means.items():
            found.setdefault(host, []).append(mean - fmean(means.values()))
    return {host: fmean(offsets) for host, offsets in found.items()}


def _serious_flags(rows: list[Record]) -> str:
    return ", ".join(sorted({str(flag) for row in rows for flag in row.flags if flag.effect is not Effect.NOTE}))


def _broken_limits(rows: Sequence[Record], goal: Goal) -> str | None:
    broken = []
    for name, limit in goal.limits.items():
        value = mean(rows, name)
        if value is not None and value > limit:
            broken.append(f"{name} {value:.4g} is above its limit {limit:g}")
    return ", ".join(broken) or None
