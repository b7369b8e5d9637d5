"""Contest: all samples of one load point, the plain servers' too, and who of them wins.

The winner is the fastest setting that may win, told by its relaunches where it has some: the fastest of many single shots
is mostly the luckiest, so a single shot goes before a relaunched setting only where it is clearly faster.  Of settings that
cannot be told apart the simplest within one standard error wins (Breiman et al., Classification and Regression Trees, §3.4).

Not here: how an interval comes about (comparison.py), all load points together (verdict.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from results.answer import Answer, Contender, Outcome
from results.comparison import EXPERIENCE, Basis, Difference, Spread, difference, spread
from results.measurement import metrics
from results.sample import Sample, best_plain
from results.why import taken_apart
from sweeps.observation import Goal
from sweeps.settings import Settings

CURIOSITY = 0.25
"""A leader is relaunched even where its answer looks closed: it was picked for being fast, so it looks faster than it is."""
WORTH_TELLING = 0.05
"""A rival is relaunched as long as it may be faster than the winner by more than this, on the log."""
SECOND_CHANCES = 2
"""Relaunches of a plain server with flags that keep it from being compared with: without one there is no answer."""
NO_LOSS = 0.03
"""A simpler setting that cannot be told from the fastest wins unless it looks slower by more than this, on the log."""


@dataclass(frozen=True)
class Contest:
    """All samples of one load point and the comparisons between them."""

    concurrency: int
    samples: tuple[Sample, ...]
    """Fastest first."""
    throughput: bool
    """Whether the goal's metric is one, so that a speedup can be taken apart into tokens and time."""
    spreads: Mapping[bool, Spread]
    goal: Goal

    @classmethod
    def of(cls, concurrency: int, here: Sequence[Sample], everything: Sequence[Sample], goal: Goal) -> Contest:
        """Where nothing was launched twice at this load point, the spread comes from all of them."""
        spreads = {}
        for kind in (True, False):
            own = spread(here, speculative=kind)
            spreads[kind] = (
                own if own.degrees else dataclasses.replace(spread(everything, speculative=kind), here=False)
            )
        throughput = concurrency > 0 and metrics()[goal.metric].unit == "tokens/s"
        return cls(concurrency, tuple(sorted(here, key=lambda sample: -sample.log)), throughput, spreads, goal)

    def _value(self, sample: Sample) -> float:
        """Of the goal's metric, in its own unit."""
        return self.goal.merit(math.exp(sample.log))

    def _over(self, one: Sample, other: Sample, among: int = 1) -> Difference:
        return difference(one, other, self.spreads, among)

    def _gain(self, sample: Sample, plain: Sample) -> Difference:
        """Over the plain server, its having been picked taken into account."""
        return self._over(sample, plain, self._among(sample))

    def _among(self, sample: Sample) -> int:
        """How many settings `sample` could have been picked from: those with relaunches, or with none, as it is."""
        return max(1, self._num_alike[sample.confirmed])

    @cached_property
    def _num_alike(self) -> Counter[bool]:
        return Counter(candidate.confirmed for candidate in self.candidates)

    @cached_property
    def plain(self) -> Sample | None:
        return best_plain(self.samples)

    @cached_property
    def _sound_plain(self) -> tuple[dict[str, Sample], dict[str, Sample]]:
        """By what ran and by what was asked, the fastest of each."""
        sound = [sample for sample in reversed(self.samples) if not sample.speculative and sample.trusted]
        return {sample.key: sample for sample in sound}, {sample.asked.key: sample for sample in sound}

    @cached_property
    def _unsound_plain(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.speculative and not sample.trusted]

    @cached_property
    def candidates(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.speculative and sample.cannot_win is None]

    @property
    def num_settings(self) -> int:
        return sum(sample.speculative and sample.trusted for sample in self.samples)

    def _tied(self, leader: Sample) -> list[Sample]:
        if leader.key not in self._ties:
            others = [sample for sample in self.candidates if sample is not leader]
            self._ties[leader.key] = [one for one in others if (gap := self._over(leader, one)).low <= 0 <= gap.high]
        return self._ties[leader.key]

    @cached_property
    def _ties(self) -> dict[str, list[Sample]]:
        """Key of a sample → those that cannot be told from it, as far as it was asked."""
        return {}

    def winner(self) -> Sample | None:
        """The best speculative setting that may win, the winner's curse taken into account."""
        leader = self._leader()
        if leader is None or not leader.confirmed:
            return leader
        equals = [
            sample
            for sample in self._tied(leader)
            if sample.confirmed and leader.log - sample.log <= min(self._over(leader, sample).error, NO_LOSS)
        ]
        return min(
            [leader, *filter(self._as_far_ahead_as(leader), equals)], key=lambda sample: _complexity(sample.asked)
        )

    def _leader(self) -> Sample | None:
        """The fastest relaunched one, unless a single shot is clearly faster; the fastest, where none was relaunched.

        A single shot that looks faster than the plain server is not passed over for one that looks slower.
        """
        fastest = next(iter(self.candidates), None)
        proven = next((sample for sample in self.candidates if sample.confirmed), None)
        if fastest is None or proven is None or fastest is proven:
            return fastest
        clearly = self._over(fastest, proven, self._among(fastest)).low > 0
        return proven if not clearly and self._as_far_ahead_as(fastest)(proven) else fastest

    def _as_far_ahead_as(self, leader: Sample) -> Callable[[Sample], bool]:
        """Whether a sample looks faster than the plain server wherever `leader` does."""
        plain = self.plain
        ahead = plain is not None and leader.log > plain.log
        return lambda sample: not ahead or plain is None or sample.log > plain.log

    def answer(self) -> Answer:
        plain, best = self.plain, self.winner()
        if best is None:
            return self._answer_without_candidate()
        answer = dataclasses.replace(self._compared(best), ties=tuple(sample.settings for sample in self._tied(best)))
        if plain is None:
            return dataclasses.replace(answer, note="The plain server has no sound measurement here, so there is no speedup.")  # fmt: skip
        if plain.cannot_win is not None:
            note = f"The plain server may not win here: {plain.cannot_win}."
            return dataclasses.replace(answer, settings=best.settings, note=note)
        return dataclasses.replace(answer, settings=best.settings if answer.answer == "better" else None)

    def _answer_without_candidate(self) -> Answer:
        """No speculative setting may win: none was measured, or each is flagged or breaks a limit."""
        plain = self.plain
        best = next((sample for sample in self.samples if sample.speculative and sample.valid), None)
        if best is None:
            invalid = any(sample.speculative for sample in self.samples)
            note = f"No speculative setting {'has a valid measurement' if invalid else 'was measured'}."
            note = note if self.samples else "Nothing was measured."
            return dataclasses.replace(self._of_plain(), note=note, nothing_meets=self._nothing_meets())
        answer = dataclasses.replace(self._compared(best), may_win=False, nothing_meets=self._nothing_meets())
        note = f"No speculative setting may win here; the fastest is {best.settings}, but: {best.cannot_win}."
        if plain is not None and plain.cannot_win is not None:
            note = f"{note} Neither may the plain server: {plain.cannot_win}."
            return dataclasses.replace(answer, answer="cannot tell", note=note)
        breaks_a_limit = plain is not None and best.trusted
        outcome: Outcome = "worse" if breaks_a_limit or answer.answer == "worse" else "cannot tell"
        return dataclasses.replace(answer, answer=outcome, note=note)

    def _nothing_meets(self) -> str:
        """The limits that each sound sample breaks; all limits, where each breaks another; empty where one keeps them."""
        sound = [sample for sample in self.samples if sample.trusted]
        if not sound or any(sample.cannot_win is None for sample in sound):
            return ""
        limits = self.goal.limits
        common = [n for n, limit in limits.items() if all((sample.mean(n) or 0.0) > limit for sample in sound)]
        return " and ".join(f"{name} ≤ {limits[name]:g}" for name in common or limits)

    def _of_plain(self) -> Answer:
        """What is known of the plain server; everything speculative still open."""
        plain = self.plain
        if plain is None:
            return Answer(self.concurrency, "cannot tell", None, num_settings=self.num_settings)
        return Answer(
            self.concurrency, "cannot tell", None, best_plain=plain.settings, plain_tok_s=self._value(plain),
            plain_launches=plain.launches, plain_ttft_p50_ms=plain.mean("ttft_p50_ms"), num_settings=self.num_settings,
        )  # fmt: skip

    def _compared(self, best: Sample) -> Answer:
        """`best` against the plain server; `settings` is still open."""
        plain = self.plain
        answer = dataclasses.replace(
            self._of_plain(), best_speculative=best.settings, best_tok_s=self._value(best), launches=best.launches,
            confirmations=len(best.counted) if best.confirmed else 0, among=self._among(best),
            acceptance_length=best.mean("acceptance_length"),
            lossless_argmax_share=best.mean("lossless_argmax_share"), ttft_p50_ms=best.mean("ttft_p50_ms"),
        )  # fmt: skip
        if plain is None:
            return answer
        ratio = self._gain(best, plain)
        return dataclasses.replace(
            answer, answer="better" if ratio.low > 0 else "worse" if ratio.high < 0 else "cannot tell",
            speedup=math.exp(ratio.log), speedup_low=math.exp(ratio.low), speedup_high=math.exp(ratio.high),
            speedup_same=self._speedup_same(best), basis=ratio.basis, why=taken_apart(best, plain, self.samples) if self.throughput else None,
        )  # fmt: skip

    def _speedup_same(self, sample: Sample) -> float | None:
        """Over the plain server with the same values: as run where such a one ran, else as asked."""
        as_run, as_asked = self._sound_plain
        same = as_run.get(sample.settings.plain().key) or as_asked.get(sample.asked.plain().key)
        return math.exp(sample.log - same.log) if same is not None else None

    def contenders(self) -> tuple[Contender, ...]:
        return tuple(self._contender(sample) for sample in self.samples)

    def _contender(self, sample: Sample) -> Contender:
        plain = self.plain
        ratio = None if plain is None else self._gain(sample, plain)
        if sample is plain:
            ratio = Difference(0.0, 0.0, 0.0, Basis.MEASURED)
        return Contender(
            settings=sample.settings, asked=sample.asked, concurrency=self.concurrency, tok_s=self._value(sample),
            launches=sample.launches,
            speedup=math.exp(ratio.log) if ratio else None,
            speedup_low=math.exp(ratio.low) if ratio else None,
            speedup_high=math.exp(ratio.high) if ratio else None,
            speedup_same=self._speedup_same(sample), acceptance_length=sample.mean("acceptance_length"),
            ttft_p50_ms=sample.mean("ttft_p50_ms"), cannot_win=sample.cannot_win,
            flags=tuple(sorted({str(flag) for row in sample.rows for flag in row.flags})),
        )  # fmt: skip

    def relaunch_gains(self) -> Iterator[tuple[Sample, float]]:
        """For each finalist of an open load point: variance that one more launch takes away × how open its comparison is."""
        plain, winner = self.plain, self.winner()
        if winner is None:
            return
        if plain is None:
            yield from ((one, self._shrinks(one)) for one in self._unsound_plain[:1] if one.launches <= SECOND_CHANCES)
            return
        rivals = [rival for rival in self._tied(winner) if self._over(rival, winner).high > WORTH_TELLING]
        if self._decided(winner, plain) and not (rivals and self._gain(winner, plain).low > 0):
            return
        doubt = CURIOSITY + self._gain(winner, plain).doubt
        yield winner, self._shrinks(winner) * doubt
        yield plain, self._shrinks(plain) * doubt
        for rival in rivals:
            if self._over(rival, plain).high > 0:
                yield rival, self._shrinks(rival) * self._over(winner, rival).doubt

    def _decided(self, winner: Sample, plain: Sample) -> bool:
        """The interval lies on one side, and where it says `better`, by relaunches."""
        gain = self._gain(winner, plain)
        return gain.high < 0 or (gain.low > 0 and winner.confirmed and winner.launches > 1)

    def _shrinks(self, sample: Sample) -> float:
        """A picked setting's first launch does not count once it is relaunched."""
        sd = self.spreads[sample.speculative].with_experience(EXPERIENCE[sample.speculative]).sd
        now = len(sample.counted)
        return sd**2 * (1 / now - 1 / (now + 1)) if sample.confirmed else sd**2 / 2


def _complexity(settings: Settings) -> tuple[bool, int, int]:
    """A chain is simpler than a tree, fewer draft tokens than more."""
    tree = (settings.eagle_topk or 1) > 1
    return tree, settings.num_draft_tokens or 0, settings.num_steps or 0
