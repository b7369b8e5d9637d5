"""Verdict: rows in; per load point whether speculation helps, by how much, how sure, and what a relaunch would decide.

Pure: no files, no clock.  `better` means that the whole 95 % interval of the speedup lies above 1, `worse` that it lies
below; anything else is `cannot tell`, and then the plain server stays: a claim needs evidence.

The winner is the fastest setting that may win.  When it was launched once and a setting within its interval was launched
more often, that one is preferred: the fastest of many single shots is mostly the luckiest.

Not here: how an interval comes about (comparison.py), text for a page (report.py), the relaunches (orchestrator/sweep.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from results.comparison import Difference, Sample, Spread, difference, samples, spread
from results.record import Record
from sweeps.observation import Goal
from sweeps.settings import Settings

Outcome = Literal["better", "worse", "cannot tell"]

SIMULATED = "Simulated, not measured: "
"""How the sentence begins when a performance model answered."""
CURIOSITY = 0.25
"""A leader is relaunched even where its answer looks closed: it was picked for being fast, so it looks faster than it is."""


@dataclass(frozen=True)
class Contender:
    """One settings at one load point, as all its launches showed it."""

    settings: Settings
    """As run."""
    asked: Settings
    concurrency: int
    tok_s: float
    """The goal's metric: geometric mean over launches."""
    launches: int
    speedup: float | None
    """Over the best plain server at this load point; None where that was not measured."""
    speedup_low: float | None
    speedup_high: float | None
    speedup_same: float | None
    """Over the plain server with the same values; None where that was not measured."""
    acceptance_length: float | None
    ttft_p50_ms: float | None
    cannot_win: str | None
    """Why not, e.g. the flag or the limit broken; None: it may."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What one load point said."""

    concurrency: int
    answer: Outcome
    """better: the whole interval lies above 1.  worse: below, or nothing speculative may win though the plain server may."""
    settings: Settings | None
    """What to run; None is the plain server, also where we cannot tell."""
    best_speculative: Settings | None = None
    """What `speedup` is about, whether it wins or not; None: no speculative setting was measured."""
    best_plain: Settings | None = None
    """What `speedup` is over; None: the plain server was not measured (or not soundly)."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_same: float | None = None
    plain_tok_s: float | None = None
    best_tok_s: float | None = None
    """Of the goal's metric: output_tok_s unless the goal names another."""
    launches: int = 0
    """Of the best speculative setting."""
    plain_launches: int = 0
    acceptance_length: float | None = None
    ttft_p50_ms: float | None = None
    plain_ttft_p50_ms: float | None = None
    basis: str = ""
    """measured or assumed: where the spread between launches comes from; empty without a speedup."""
    ties: tuple[Settings, ...] = ()
    """Other speculative settings that cannot be told from the best one."""
    note: str = ""
    """What else decided, e.g. a limit that was broken; a sentence or empty."""


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

    @property
    def reached(self) -> bool:
        """Whether at least one load point has a speedup: speculation and the plain server were both measured there."""
        return any(answer.speedup is not None for answer in self.answers)


def judge(records: Sequence[Record], goal: Goal) -> Verdict:
    """The verdict over all rows of a run."""
    standings = _standings(records, goal)
    answers = tuple(standing.answer() for standing in standings)
    simulated = any(record.origin.simulated for record in records)
    failures = sum(not record.measured for record in records)
    return Verdict(
        answers=answers,
        contenders={standing.concurrency: standing.contenders() for standing in standings},
        sentence=(SIMULATED if simulated else "") + _sentence(answers, failures),
        simulated=simulated,
        failures=failures,
        goal=goal,
    )


def finalists(records: Sequence[Record], goal: Goal, count: int) -> list[Settings]:
    """What to relaunch for the final race, as asked: the best plain servers, the leaders and what ties with them.

    First the one whose relaunch would decide most: summed over load points, how much one more launch would shrink the
    variance of a comparison, times how open that comparison is.  Where `count` leaves room for two, a plain server that
    was launched only once is among them: without it no interval is measured.  At most `count`; empty when nothing
    speculative may win, or there is nothing to compare it with.
    """
    worth: dict[str, float] = {}
    known: dict[str, Sample] = {}
    for standing in _standings(records, goal):
        for sample, gain in standing.relaunch_gains():
            worth[sample.key] = worth.get(sample.key, 0.0) + gain
            known.setdefault(sample.key, sample)
    ranked = [known[key] for key in sorted(worth, key=lambda key: -worth[key])]
    chosen = ranked[: max(count, 0)]
    lone_plain = next((sample for sample in ranked if not sample.speculative and sample.launches == 1), None)
    if len(chosen) > 1 and lone_plain and all(sample.speculative for sample in chosen):
        chosen[-1] = lone_plain
    return [sample.asked for sample in chosen]


def _standings(records: Sequence[Record], goal: Goal) -> list[_Standing]:
    """One a load point that counts, by concurrency, also where nothing could be measured; none if that is everywhere."""
    found = samples(records, goal)
    if not found:
        return []
    everything = [sample for here in found.values() for sample in here]
    tried = {record.point.concurrency for record in records if record.point}
    wanted = {concurrency for concurrency in tried if goal.counts(concurrency)} | set(goal.at)
    return [_Standing.of(concurrency, found.get(concurrency, ()), everything) for concurrency in sorted(wanted)]


@dataclass(frozen=True)
class _Standing:
    """All samples of one load point and the comparisons between them."""

    concurrency: int
    samples: tuple[Sample, ...]
    """Fastest first."""
    spreads: Mapping[bool, Spread]

    @classmethod
    def of(cls, concurrency: int, here: Sequence[Sample], everything: Sequence[Sample]) -> _Standing:
        """Where nothing was launched twice at this load point, the spread comes from all of them."""
        spreads = {}
        for kind in (True, False):
            own = spread(here, speculative=kind)
            spreads[kind] = own if own.degrees else spread(everything, speculative=kind)
        return cls(concurrency, tuple(sorted(here, key=lambda sample: -sample.log)), spreads)

    def _over(self, one: Sample, other: Sample) -> Difference:
        return difference(one, other, self.spreads)

    @property
    def plain(self) -> Sample | None:
        """The best plain server that may win; when none keeps the limits, the best of those without serious flags."""
        sound = [sample for sample in self.samples if not sample.speculative and sample.trusted]
        return next((sample for sample in sound if sample.cannot_win is None), next(iter(sound), None))

    @property
    def candidates(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.speculative and sample.cannot_win is None]

    def _tied(self, leader: Sample) -> list[Sample]:
        others = [sample for sample in self.candidates if sample is not leader]
        return [sample for sample in others if (gap := self._over(leader, sample)).low <= 0 <= gap.high]

    def winner(self) -> Sample | None:
        """The best speculative setting that may win, the winner's curse taken into account.

        A leader that looks faster than the plain server is not passed over for one that looks slower.
        """
        leader = next(iter(self.candidates), None)
        if leader is None or leader.launches > 1:
            return leader
        plain = self.plain
        ahead = plain is not None and leader.log > plain.log
        proven = [sample for sample in self._tied(leader) if sample.launches > 1]
        return next((sample for sample in proven if not (ahead and plain and sample.log <= plain.log)), leader)

    def answer(self) -> Answer:
        plain, best = self.plain, self.winner()
        if best is None:
            return self._answer_without_candidate()
        answer = dataclasses.replace(self._compared(best), ties=tuple(sample.settings for sample in self._tied(best)))
        if plain is None:
            note = "The plain server has no sound measurement here, so there is no speedup."
            return dataclasses.replace(answer, settings=best.settings, note=note)
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
            return dataclasses.replace(self._of_plain(), note=note if self.samples else "Nothing was measured.")
        answer = self._compared(best)
        note = f"No speculative setting may win here; the fastest is {best.settings}, but: {best.cannot_win}."
        if plain is not None and plain.cannot_win is not None:
            note = f"{note} Neither may the plain server: {plain.cannot_win}."
            return dataclasses.replace(answer, answer="cannot tell", note=note)
        breaks_a_limit = plain is not None and best.trusted
        outcome: Outcome = "worse" if breaks_a_limit or answer.answer == "worse" else "cannot tell"
        return dataclasses.replace(answer, answer=outcome, note=note)

    def _of_plain(self) -> Answer:
        """What is known of the plain server; everything speculative still open."""
        plain = self.plain
        if plain is None:
            return Answer(self.concurrency, "cannot tell", None)
        return Answer(
            self.concurrency, "cannot tell", None, best_plain=plain.settings, plain_tok_s=math.exp(plain.log),
            plain_launches=plain.launches, plain_ttft_p50_ms=plain.mean("ttft_p50_ms"),
        )  # fmt: skip

    def _compared(self, best: Sample) -> Answer:
        """`best` against the plain server; `settings` is still open."""
        plain = self.plain
        answer = dataclasses.replace(
            self._of_plain(), best_speculative=best.settings, best_tok_s=math.exp(best.log), launches=best.launches,
            acceptance_length=best.mean("acceptance_length"), ttft_p50_ms=best.mean("ttft_p50_ms"),
        )  # fmt: skip
        if plain is None:
            return answer
        ratio = self._over(best, plain)
        return dataclasses.replace(
            answer, answer="better" if ratio.low > 0 else "worse" if ratio.high < 0 else "cannot tell",
            speedup=math.exp(ratio.log), speedup_low=math.exp(ratio.low), speedup_high=math.exp(ratio.high),
            speedup_same=self._speedup_same(best), basis="measured" if ratio.measured else "assumed",
        )  # fmt: skip

    def _speedup_same(self, sample: Sample) -> float | None:
        """Over the plain server with the same values: as run where such a one ran, else as asked."""
        plain = [other for other in self.samples if not other.speculative and other.trusted]
        same = [other for other in plain if other.key == sample.settings.plain().key]
        same = same or [other for other in plain if other.asked.key == sample.asked.plain().key]
        return math.exp(sample.log - same[0].log) if same else None

    def contenders(self) -> tuple[Contender, ...]:
        return tuple(self._contender(sample) for sample in self.samples)

    def _contender(self, sample: Sample) -> Contender:
        plain = self.plain
        ratio = None if plain is None else self._over(sample, plain)
        if sample is plain:
            ratio = Difference(0.0, 0.0, 0.0, measured=True)
        return Contender(
            settings=sample.settings, asked=sample.asked, concurrency=self.concurrency, tok_s=math.exp(sample.log),
            launches=sample.launches,
            speedup=math.exp(ratio.log) if ratio else None,
            speedup_low=math.exp(ratio.low) if ratio else None,
            speedup_high=math.exp(ratio.high) if ratio else None,
            speedup_same=self._speedup_same(sample), acceptance_length=sample.mean("acceptance_length"),
            ttft_p50_ms=sample.mean("ttft_p50_ms"), cannot_win=sample.cannot_win,
            flags=tuple(sorted({str(flag) for row in sample.rows for flag in row.flags})),
        )  # fmt: skip

    def relaunch_gains(self) -> Iterator[tuple[Sample, float]]:
        """For each finalist: variance that one more launch takes away × how open its comparison is."""
        plain, leader = self.plain, next(iter(self.candidates), None)
        if plain is None or leader is None:
            return
        doubt = CURIOSITY + self._over(leader, plain).doubt
        yield leader, self._shrinks(leader) * doubt
        yield plain, self._shrinks(plain) * doubt
        for rival in self._tied(leader):
            if self._over(rival, plain).high > 0:
                yield rival, self._shrinks(rival) * self._over(leader, rival).doubt

    def _shrinks(self, sample: Sample) -> float:
        sd = max(self.spreads[sample.speculative].sd, 1e-6)
        return sd**2 * (1 / sample.launches - 1 / (sample.launches + 1))


def _sentence(answers: Sequence[Answer], failures: int) -> str:
    """The verdict for a person, load points with the same advice together."""
    if not any(answer.best_speculative for answer in answers):
        return _no_verdict(answers, failures)
    if all(answer.answer == "worse" for answer in answers):
        if all((answer.speedup_high or 0.0) < 1 for answer in answers):
            fastest = max(answer.speedup or 0.0 for answer in answers)
            return f"Do not speculate: at every load point the plain server beats every drafter; the best came to {fastest:.2f}×."
        return f"Do not speculate: no speculative setting may win at any load point. {answers[0].note}"
    text = "; ".join(_advice(run, _where(run, answers)) for run in _runs(answers))
    return text[0].upper() + text[1:] + "."


def _no_verdict(answers: Sequence[Answer], failures: int) -> str:
    if any(answer.best_plain for answer in answers):
        failed = f"; {failures} trial{'s' if failures > 1 else ''} failed" if failures else ""
        return f"No verdict: no speculative setting was measured, only the plain server{failed}."
    return "No verdict: every launch failed." if failures else "No verdict: nothing was measured."


def _runs(answers: Sequence[Answer]) -> list[list[Answer]]:
    """Neighbouring load points with the same advice."""
    runs: list[list[Answer]] = []
    for answer in answers:
        if runs and _same_advice(runs[-1][-1], answer):
            runs[-1].append(answer)
        else:
            runs.append([answer])
    return runs


def _same_advice(one: Answer, other: Answer) -> bool:
    return (
        one.answer == other.answer
        and one.settings == other.settings
        and (one.speedup is None) == (other.speedup is None)
    )


def _advice(run: list[Answer], where: str) -> str:
    first = run[0]
    if first.answer == "better":
        return f"speculate with {first.settings} {where} ({_each(run, _interval)})"
    if first.answer == "worse":
        why = first.note.rstrip(".") or _each(
            run, lambda a: f"the best speculative setting came to {a.speedup or 0:.2f}×"
        )
        return f"{where} use the plain server ({why})"
    if first.speedup is None:
        return f"{where} there is no answer ({first.note.rstrip('.')})"
    advice = first.note.rstrip(".") or "the plain server is the safe choice"
    return f"{where} we cannot tell ({_each(run, lambda a: f'{a.best_speculative} {_interval(a)}')}): {advice}"


def _where(run: list[Answer], answers: Sequence[Answer]) -> str:
    first, last = run[0].concurrency, run[-1].concurrency
    if len(run) == 1:
        return f"at concurrency {first}"
    if len(run) == len(answers):
        return "at every load point"
    return f"up to concurrency {last}" if run[0] is answers[0] else f"from concurrency {first} to {last}"


def _each(run: list[Answer], text: Callable[[Answer], str]) -> str:
    return ", ".join(text(a) + (f" at {a.concurrency}" if len(run) > 1 else "") for a in run)


def _interval(answer: Answer) -> str:
    if answer.speedup is None:
        return "no speedup known"
    return f"{answer.speedup:.2f}× [{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]"
