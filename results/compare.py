"""Two runs side by side: what changed from one to the other, per load point, with intervals.

Two drafters, two versions of the engine, two machines: what the runs differ in is named first, then how the plain server,
the best speculative setting, and every setting that both measured changed.  Each run is one experiment: that the hours of
the two differed is in no interval, but the plain servers show it.

Not here: settings of one run against each other (verdict.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from results.acceptance import flagged, ineffective
from results.comparison import Basis, Spread, difference, spread
from results.record import Record
from results.sample import Sample, best_plain, samples
from results.verdict import Verdict, judge
from sweeps.observation import Goal
from sweeps.settings import Settings

What = Literal["plain server", "best speculative", "same settings", "the server"]
"""the server: of two runs that each measured a server that ran already, whether it speculates or not."""
Answer = Literal["faster", "slower", "cannot tell"]


@dataclass(frozen=True)
class Change:
    """From the first run to the second, at one load point."""

    concurrency: int
    what: What
    before: Settings
    after: Settings
    before_value: float
    """Of the goal's metric."""
    after_value: float
    ratio: float
    """after ÷ before."""
    low: float
    high: float
    """Of the 95 % interval."""
    basis: Basis
    before_acceptance_length: float | None
    after_acceptance_length: float | None
    before_speedup: float | None
    """Over the best plain server of its own run."""
    after_speedup: float | None

    @property
    def answer(self) -> Answer:
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "cannot tell"

    def as_dict(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        settings = {"before": self.before.as_dict(), "after": self.after.as_dict()}
        return {**given, **settings, "basis": str(self.basis), "answer": self.answer}


@dataclass(frozen=True)
class Comparison:
    differs: Mapping[str, tuple[str, str]]
    """What the runs differ in, e.g. engine_version → (0.5.17, 0.5.23)."""
    warnings: tuple[str, ...]
    """What makes them hard to compare."""
    changes: tuple[Change, ...]
    """By load point: the plain server, the best speculative setting, then the settings that both measured."""
    metric: str
    """What changes are given in: the second run's."""
    verdicts: tuple[Verdict, Verdict]
    """Each in its own run's goal."""

    @property
    def metrics(self) -> tuple[str, str]:
        """What the speedups of the first run and of the second are of."""
        return self.verdicts[0].goal.metric, self.verdicts[1].goal.metric


def compare(
    before: Sequence[Record],
    after: Sequence[Record],
    goal: Goal,
    after_goal: Goal | None = None,
    workload_keys: Sequence[str] = (),
) -> Comparison:
    """All load points that both runs measured and that both goals count.

    Args:
        goal: The first run's, which alone judges it.
        after_goal: The second run's; None: the same.
        workload_keys: What the workloads were asked to differ in, e.g. `workload.output_tokens: 48 → 12`.
    """
    goals = (goal, goal if after_goal is None else after_goal)
    sides = (_Side.of(before, goals[0], goals[1]), _Side.of(after, goals[1], goals[1]))
    differs = _differs(before, after)
    shared = [load for load in sides[0].samples if load in sides[1].samples]
    changes = [change for load in shared for change in _changes(load, *sides)]
    warnings = (*_goal_warnings(*goals), *_warnings(differs, shared, workload_keys))
    return Comparison(differs, warnings, tuple(changes), goals[1].metric, (sides[0].verdict, sides[1].verdict))


@dataclass(frozen=True)
class _Side:
    verdict: Verdict
    own: Mapping[int, tuple[Sample, ...]]
    """In the run's own goal."""
    samples: Mapping[int, tuple[Sample, ...]]
    """In the goal that changes are given in, at the load points that the own goal counts, too."""
    drafters: frozenset[str | None]

    @classmethod
    def of(cls, rows: Sequence[Record], goal: Goal, shown: Goal) -> _Side:
        """Drafters that guess nothing are flagged first, as in the run's own report."""
        records = flagged(rows, ineffective(rows))
        measured = [record for record in records if record.measured]
        drafters = frozenset(record.asked.drafter for record in measured if record.asked.speculative)
        own = samples(records, goal)
        given = own if shown == goal else {load: s for load, s in samples(records, shown).items() if load in own}
        return cls(judge(records, goal), own, given, drafters)

    def plain(self, load: int) -> Sample | None:
        """The best plain server in the run's own goal."""
        best = best_plain(self.own[load])
        return next((one for one in self.samples[load] if best is not None and one.key == best.key), None)

    def best(self, load: int) -> Sample | None:
        """What the run's own verdict names, whether it wins or not."""
        answer = next(answer for answer in self.verdict.answers if answer.concurrency == load)
        chosen = answer.best_speculative
        return next((one for one in self.samples[load] if chosen is not None and one.key == chosen.key), None)

    def speedup(self, sample: Sample, load: int) -> float | None:
        """In the run's own goal."""
        plain = best_plain(self.own[load])
        own = next((one for one in self.own[load] if one.key == sample.key), None)
        return math.exp(own.log - plain.log) if plain is not None and own is not None else None


def _changes(load: int, before: _Side, after: _Side) -> list[Change]:
    spreads = {kind: _spread(load, before, after, kind) for kind in (True, False)}
    if before.verdict.alone and after.verdict.alone:
        (one, *_), (other, *_) = before.samples[load], after.samples[load]
        return [_change(load, "the server", (one, before), (other, after), spreads)]
    pairs: list[tuple[What, Sample | None, Sample | None]] = [
        ("plain server", before.plain(load), after.plain(load)),
        ("best speculative", before.best(load), after.best(load)),
    ]
    pairs += [("same settings", one, other) for one, other in _same(load, before, after)]
    return [
        _change(load, what, (one, before), (other, after), spreads)
        for what, one, other in pairs
        if one is not None and other is not None
    ]


def _same(load: int, before: _Side, after: _Side) -> Iterable[tuple[Sample, Sample]]:
    """Speculative settings as run that both measured; where each run has one drafter, whatever its name."""
    one_each = len(before.drafters) == len(after.drafters) == 1
    others = {_key(sample, one_each): sample for sample in after.samples[load] if sample.speculative and sample.trusted}
    for sample in before.samples[load]:
        other = others.get(_key(sample, one_each))
        if sample.speculative and sample.trusted and other is not None:
            yield sample, other


def _key(sample: Sample, without_drafter: bool) -> str:
    return sample.settings.replace(drafter=None).key if without_drafter else sample.key


def _spread(load: int, before: _Side, after: _Side, speculative: bool) -> Spread:
    """Of launches in both runs at this load point; where nothing was launched twice, at all."""
    here = spread([*before.samples[load], *after.samples[load]], speculative=speculative)
    if here.degrees:
        return here
    every = [sample for side in (before, after) for found in side.samples.values() for sample in found]
    return replace(spread(every, speculative=speculative), here=False)


def _change(
    load: int, what: What, before: tuple[Sample, _Side], after: tuple[Sample, _Side], spreads: Mapping[bool, Spread]
) -> Change:
    (one, first), (other, second) = before, after
    gap = difference(other, one, spreads)
    return Change(
        concurrency=load, what=what, before=one.settings, after=other.settings, before_value=second.verdict.goal.merit(math.exp(one.log)),
        after_value=second.verdict.goal.merit(math.exp(other.log)), ratio=math.exp(gap.log), low=math.exp(gap.low), high=math.exp(gap.high),
        basis=gap.basis, before_acceptance_length=one.mean("acceptance_length"),
        after_acceptance_length=other.mean("acceptance_length"), before_speedup=first.speedup(one, load),
        after_speedup=second.speedup(other, load),
    )  # fmt: skip


_COMPARED = ("engine", "engine_version", "simulated", "target", "workload", "gpu_name", "driver_version", "host")


def _differs(before: Sequence[Record], after: Sequence[Record]) -> dict[str, tuple[str, str]]:
    facts = {name: (_facts(before, name), _facts(after, name)) for name in _COMPARED}
    facts["drafters"] = (_drafters(before), _drafters(after))
    return {name: pair for name, pair in facts.items() if pair[0] != pair[1]}


def _facts(records: Sequence[Record], name: str) -> str:
    return ", ".join(sorted({str(getattr(record.origin, name)) for record in records if record.measured})) or "none"


def _drafters(records: Sequence[Record]) -> str:
    """With the hash of their configs: two runs may call different drafters by one name."""
    found = {(record.asked.drafter, record.origin.drafter_hash) for record in records if record.asked.drafter}
    return ", ".join(sorted(f"{name} ({known[:8]})" if known else str(name) for name, known in found)) or "none"


def _goal_warnings(before: Goal, after: Goal) -> tuple[str, ...]:
    if before == after:
        return ()
    words = f"The objectives differ: {_told(before)} → {_told(after)}. Each run is judged by its own."
    return (words if before.metric == after.metric else f"{words} Changes are given in {after.metric}.",)


def _told(goal: Goal) -> str:
    at = f" at {', '.join(map(str, goal.at))}" if goal.at else ""
    weights = f", weights {', '.join(f'{load}: {weight:g}' for load, weight in goal.weights.items())}" if goal.weights else ""  # fmt: skip
    price = f", price_per_gpu_hour {goal.price_per_gpu_hour:g}" if goal.price_per_gpu_hour is not None else ""
    return f"{goal.metric}{at}{''.join(f', {name} ≤ {limit:g}' for name, limit in goal.limits.items())}{weights}{price}"


def _warnings(
    differs: Mapping[str, tuple[str, str]], shared: Sequence[int], workload_keys: Sequence[str]
) -> tuple[str, ...]:
    said = []
    if not shared:
        said.append("The runs have no load point in common: nothing can be compared.")
    if "workload" in differs or workload_keys:
        named = "; ".join(workload_keys) or "the prompts themselves"
        said.append(f"The workloads differ, so a change may be the load's doing: {named}.")
    if "simulated" in differs:
        said.append("One of the runs is simulated: its figures are a performance model's.")
    return tuple(said)
