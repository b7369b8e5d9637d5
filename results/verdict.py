"""Verdict: rows in; per load point whether speculation helps, by how much, how sure, and what a relaunch would decide.

Pure: no files, no clock.  `better` means that the whole 95 % interval of the speedup lies above 1, `worse` that it lies
below; anything else is `cannot tell`, and then the plain server stays: a claim needs evidence.

Not here: who wins at one load point (contest.py), how an interval comes about (comparison.py), what was tried at all
(coverage.py), the words (sentence.py), the page (summary.py), the relaunches (orchestrator/schedule.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.acceptance import Pair
from results.answer import Answer as Answer
from results.answer import Contender as Contender
from results.answer import Crossover
from results.contest import Contest
from results.coverage import Coverage, coverage, pair_of
from results.record import Record
from results.sample import Sample, combined, samples
from results.sentence import SIMULATED, as_it_runs, sentence
from results.why import crossover
from sweeps.observation import Goal
from sweeps.settings import Settings


@dataclass(frozen=True)
class Verdict:
    answers: tuple[Answer, ...]
    """One a load point that counts, by concurrency."""
    contenders: Mapping[int, tuple[Contender, ...]]
    """Concurrency → all settings measured there, the plain ones too, fastest first."""
    sentence: str
    simulated: bool
    failures: int = 0
    """Rows that failed."""
    goal: Goal = field(default_factory=Goal)
    coverage: tuple[Coverage, ...] = ()
    """One a drafter of the space (with its algorithm), also of those that were never launched."""
    overall: Answer | None = None
    """Of one setting for all load points that count, by their weighted mean (its concurrency is 0); None with one load point."""
    crossover: Crossover | None = None
    """Where speculation stops paying; None where it pays at every load point, or at none."""
    cause: str | None = None
    """What failed most and what to do about it, one line; None when nothing failed."""
    alone: bool = False
    """Whether a server that ran already was measured, which is all that was asked: there is nothing to compare it with."""

    @property
    def reached(self) -> bool:
        """Whether at least one load point has a speedup: speculation and the plain server were both measured there."""
        return any(answer.speedup is not None for answer in self.answers)

    def best_by_pair(self) -> dict[Pair, dict[int, Contender]]:
        """Algorithm and drafter, as asked → concurrency → the best of their settings there.

        That is what the answer names, where it is one of them; else the fastest that may win, and where none may the fastest.
        """
        named = {answer.concurrency: answer.best_speculative for answer in self.answers}
        best: dict[Pair, dict[int, Contender]] = {}
        for concurrency, contenders in self.contenders.items():
            speculative = [one for one in contenders if one.settings.speculative]
            for one in sorted(
                speculative, key=lambda one: (one.settings != named.get(concurrency), one.cannot_win is not None)
            ):
                best.setdefault(pair_of(one.asked), {}).setdefault(concurrency, one)
        return best


def judge(records: Sequence[Record], goal: Goal, pairs: Iterable[Pair] = (), begun: Iterable[Settings] = ()) -> Verdict:
    """The verdict over all rows of a run.

    `pairs` are the algorithms and drafters that the space holds (coverage.pairs_of), `begun` the settings of all launches
    that were begun: what was not tried is named.
    """
    found = samples(records, goal)
    contests = _contests(records, goal, found)
    answers = tuple(contest.answer() for contest in contests)
    alone = any(one.origin.engine == "attached" and one.measured for one in records)
    if alone:
        answers = tuple(replace(answer, answer="not compared", note="") for answer in answers)
    together = _together(found, goal)
    overall = together.answer() if together and len(answers) > 1 and not alone else None
    simulated = any(record.origin.simulated for record in records)
    failures = sum(not record.measured for record in records)
    covered = coverage(records, found, pairs, begun)
    return Verdict(
        answers=answers,
        contenders={contest.concurrency: contest.contenders() for contest in contests},
        sentence=(SIMULATED if simulated else "")
        + (
            as_it_runs(answers, goal)
            if alone
            else sentence(answers, covered, failures, goal, overall if goal.weights else None)
        ),
        simulated=simulated,
        failures=failures,
        goal=goal,
        coverage=covered,
        overall=overall,
        crossover=crossover(answers),
        cause=dominant_cause(records),
        alone=alone,
    )


def dominant_cause(records: Iterable[Record]) -> str | None:
    """What failed most, in the words of its first failure, and what to do, in one line; None when nothing failed.

    A broken environment goes before all else: it ends a sweep.
    """
    failed = [record.failure for record in records if record.failure is not None]
    if not failed:
        return None
    counts = Counter(failure.kind for failure in failed)
    first = max(failed, key=lambda failure: (failure.kind.blame == "environment", counts[failure.kind]))
    count, total = counts[first.kind], len(failed)
    share = (
        f"{count} of {total} failures"
        if count < total
        else "The one failure"
        if total == 1
        else f"All {total} failures"
    )
    return f"{share}: {first.kind} (stage {first.stage}): {first.cause_in_short()} What to do: {first.kind.remedy}"


Chance = Callable[[Settings, int], float]
"""Of some settings, as asked, at a concurrency: how likely they are the best there."""
LEAST_CHANCE = 0.05
"""That any finalist has: what says otherwise is a model."""


def _alike(*_: object) -> float:
    return 1.0


def finalists(records: Sequence[Record], goal: Goal, count: int, chance: Chance = _alike) -> list[Settings]:
    """What to relaunch next, as asked, at most `count`; empty when every load point is decided, or none can be.

    What decides most comes first: summed over the load points that are open, how much one more launch would shrink the
    variance of a comparison, times how open that comparison is, times the `chance` that it is the best (1 where nobody
    knows).  Each open load point's winner goes before all rivals.
    Where `count` leaves room for two, a plain server is among them, the last: it re-scores what the others said.  A plain
    server whose flags keep it from being compared with comes before all speculative ones of its load point.
    """
    worth: dict[str, float] = {}
    known: dict[str, Sample] = {}
    winners: set[str] = set()
    for contest in _raced(records, goal):
        for place, (sample, gain) in enumerate(contest.relaunch_gains()):
            hope = max(chance(sample.asked, contest.concurrency), LEAST_CHANCE) if sample.speculative else 1.0
            worth[sample.key] = worth.get(sample.key, 0.0) + gain * hope
            known.setdefault(sample.key, sample)
            winners |= {sample.key} if place == 0 else set()
    ranked = [known[key] for key in sorted(worth, key=lambda key: (key not in winners, -worth[key]))]
    others = [sample for sample in ranked if sample.speculative]
    plain = [sample for sample in ranked if not sample.speculative][: 1 if count > 1 or not others else 0]
    return [sample.asked for sample in (*others[: max(count - len(plain), 0)], *plain)]


def race_pass(records: Sequence[Record], goal: Goal, room: int, number: int, chance: Chance = _alike) -> list[Settings]:
    """The launches of the race's pass `number` (from 0), in their order, at most `room`; empty when the race is over.

    There and back (A-B-B-A): every other pass is run in the other direction, so that what drifts over the race drifts
    alike for all.  Where `room` does not suffice for a way back, each load point's winner is relaunched once.
    """
    there = finalists(records, goal, min(room, max(_open_winners(records, goal) + 1, room // 2)), chance)
    return there if number % 2 == 0 else there[::-1]


def _open_winners(records: Sequence[Record], goal: Goal) -> int:
    found = (next(contest.relaunch_gains(), None) for contest in _raced(records, goal))
    return len({first[0].key for first in found if first is not None})


def _contests(records: Sequence[Record], goal: Goal, found: Mapping[int, tuple[Sample, ...]]) -> list[Contest]:
    """One a load point that counts, by concurrency, also where nothing could be measured; none if that is everywhere."""
    if not found:
        return []
    everything = [sample for here in found.values() for sample in here]
    tried = {record.point.concurrency for record in records if record.point}
    wanted = {concurrency for concurrency in tried if goal.counts(concurrency)} | set(goal.at)
    return [Contest.of(concurrency, found.get(concurrency, ()), everything, goal) for concurrency in sorted(wanted)]


def _together(found: Mapping[int, tuple[Sample, ...]], goal: Goal) -> Contest | None:
    """One setting for all load points that count; None where none was measured at all of them."""
    every = combined(found, goal)
    return Contest.of(0, every, every, goal) if every else None


def _raced(records: Sequence[Record], goal: Goal) -> list[Contest]:
    """Where weights are given, one setting is to serve all load points: then that is what the race decides."""
    found = samples(records, goal)
    together = _together(found, goal) if goal.weights else None
    return [together] if together else _contests(records, goal, found)
