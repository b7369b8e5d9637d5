"""The verdict in one sentence for a person: load points with the same advice together, and what was not tried.

Not here: the judgement (verdict.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from results.answer import Answer
from results.comparison import Basis
from results.coverage import Coverage
from results.gain import metric_named
from sweeps.observation import Goal

SIMULATED = "Simulated, not measured: "
"""How the sentence begins when a performance model answered."""
_ASSUMED = {Basis.ASSUMED, Basis.PLAIN_ASSUMED, Basis.SPECULATIVE_ASSUMED}


def sentence(
    answers: Sequence[Answer], covered: Sequence[Coverage], failures: int, goal: Goal, overall: Answer | None = None
) -> str:
    """`failures` counts the trials that failed; `overall` is about one setting for all load points, if that was asked."""
    if not any(answer.best_speculative for answer in answers):
        return _no_verdict(answers, failures)
    gaps = "".join(f"; {one.name} {one.gap}" for one in covered if one.gap)
    text = "; ".join(_advice(run, _where(run, answers), goal) for run in _runs(answers))
    if all(answer.answer == "worse" and answer.settings is None for answer in answers):
        return f"Do not speculate: {_why_nowhere(answers, covered, goal) or text}{gaps}."
    one = f"; {_advice([overall], 'with one setting for all load points', goal)}" if overall else ""
    return f"{text[0].upper()}{text[1:]}{one}{gaps}."


def as_it_runs(answers: Sequence[Answer], goal: Goal) -> str:
    """Of a server that ran already: its figures, and how they come to be compared."""
    names = list(
        dict.fromkeys(str(answer.best_speculative or answer.best_plain) for answer in answers if _seen(answer))
    )
    figures = ", ".join(f"{_seen(a):.1f} at concurrency {a.concurrency}" for a in answers if _seen(a))
    measured = f"{' and '.join(names)} as it runs: {goal.metric} {figures or 'nothing that counts'}"
    return f"{measured[0].upper()}{measured[1:]}. Nothing was compared; measure a second server as well, and `compare` the two runs."


def _seen(answer: Answer) -> float | None:
    return answer.best_tok_s or answer.plain_tok_s


def _why_nowhere(answers: Sequence[Answer], covered: Sequence[Coverage], goal: Goal) -> str:
    """The one reason for all load points; empty where they differ in it."""
    if any((answer.speedup_high or 0.0) >= 1 for answer in answers):
        barred = not any(answer.may_win for answer in answers)
        return f"no speculative setting may win at any load point ({_note(answers)})" if barred else ""
    best = max(answers, key=lambda answer: answer.speedup or 0.0)
    which = "best launched again" if _judged_on_relaunches(best) else "best"
    return f"at every load point the plain server beat {_measured(covered)} ({which} {_times(best, goal)})"


def _judged_on_relaunches(answer: Answer) -> bool:
    """Whether others, launched once, were passed over for it: then it need not be the fastest that was measured."""
    return answer.num_settings > 1 and answer.confirmations > 0


def _measured(covered: Sequence[Coverage]) -> str:
    """`the 3 settings of EAGLE3 own and the one setting of EAGLE3 public that were measured`."""
    sound = [one for one in covered if one.num_settings]
    if not sound:
        return "every speculative setting that was measured"
    parts = [
        f"the {one.num_settings} settings of {one.name}" if one.num_settings > 1 else f"the one setting of {one.name}"
        for one in sound
    ]
    were = "was" if sum(one.num_settings for one in sound) == 1 else "were"
    return f"{' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))} that {were} measured"


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
        and bool(one.note) == bool(other.note)
        and one.settings == other.settings
        and one.nothing_meets == other.nothing_meets
        and (one.speedup is None) == (other.speedup is None)
    )


def _note(run: Sequence[Answer]) -> str:
    """What they all note, else what the first does."""
    first = run[0]
    alike = all(answer.note == first.note for answer in run)
    return f"{'' if alike else f'e.g. at concurrency {first.concurrency}: '}{first.note.rstrip('.')}"


def _advice(run: list[Answer], where: str, goal: Goal) -> str:
    first, note = run[0], _note(run)
    if first.nothing_meets:
        return f"{where} nothing meets {first.nothing_meets} ({note})"
    if first.settings is not None and first.speedup is not None and note:
        return f"speculate with {first.settings} {where} ({_intervals(run, goal)}): {note}"
    if first.answer == "better":
        return f"speculate with {first.settings} {where} ({_intervals(run, goal)})"
    if first.answer == "worse":
        return f"{where} use the plain server ({note or _came_to(run, goal)})"
    if first.speedup is None:
        return f"{where} there is no answer ({note})"
    advice = note or "the plain server is the safe choice"
    return f"{where} we cannot tell ({_intervals(run, goal, named=True)}): {advice}"


def _came_to(run: list[Answer], goal: Goal) -> str:
    """What the figures are of is said once where it is the same at all load points."""
    if len({_best_of(answer) for answer in run}) == 1:
        return f"{_best_of(run[0])} came to {_each(run, lambda a: _times(a, goal))}"
    return _each(run, lambda a: f"{_best_of(a)} came to {_times(a, goal)}")


def _best_of(answer: Answer) -> str:
    if answer.num_settings == 1:
        return "the one speculative setting measured"
    if _judged_on_relaunches(answer):
        return f"of {answer.num_settings} speculative settings the best that was launched again"
    return f"the best of {answer.num_settings} speculative settings"


def _where(run: list[Answer], answers: Sequence[Answer]) -> str:
    first, last = run[0].concurrency, run[-1].concurrency
    if len(run) == 1:
        return f"at concurrency {first}"
    if len(run) == len(answers):
        return "at every load point"
    return f"up to concurrency {last}" if run[0] is answers[0] else f"from concurrency {first} to {last}"


def _each(run: list[Answer], text: Callable[[Answer], str]) -> str:
    return ", ".join(text(a) + (f" at {a.concurrency}" if len(run) > 1 else "") for a in run)


def _intervals(run: list[Answer], goal: Goal, *, named: bool = False) -> str:
    """And how little they rest on; that and the name are said once where they are the same at all load points."""
    one_name = len({answer.best_speculative for answer in run}) == 1
    one_doubt = len({_rests_on(answer) for answer in run}) == 1

    def one(answer: Answer) -> str:
        name = "" if one_name or not named else f"{answer.best_speculative} "
        doubt = "" if one_doubt else _rests_on(answer)
        return f"{name}{_interval(answer, goal)}{f' ({doubt})' if doubt else ''}"

    name = f"{run[0].best_speculative} " if one_name and named else ""
    doubt = f"; {_rests_on(run[0])}" if one_doubt and _rests_on(run[0]) else ""
    return f"{name}{_each(run, one)}{doubt}"


def _rests_on(answer: Answer) -> str:
    """What makes an interval worth little; empty where nothing does."""
    if answer.speedup is None:
        return ""
    once = "launched once" if answer.launches == 1 else ""
    assumed = f"interval {answer.basis}" if answer.basis in _ASSUMED else ""
    return ", ".join(filter(None, (once, assumed)))


def _times(answer: Answer, goal: Goal) -> str:
    return f"{answer.speedup or 0:.2f}×{metric_named(goal, answer.speedup)}"


def _interval(answer: Answer, goal: Goal) -> str:
    if answer.speedup is None:
        return "no speedup known"
    return f"{_times(answer, goal)} [{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]"
