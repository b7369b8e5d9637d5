"""best.yaml: the answers for a program, and a config that runs again.

Not here: the script for a person (launch.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from results.answer import Answer, Contender
from results.serve import schedule
from results.verdict import Verdict
from sweeps.settings import Settings, knobs
from sweeps.space import Held, written


def best_yaml(verdict: Verdict, conf: Mapping[str, Any], commands: Mapping[str, Sequence[str]]) -> str:
    """`conf:`, runnable as `conf=best.yaml`, `answers:` per load point, and `schedule:`, what to run at any load.

    `conf:` holds the best single setting for all load points, and a comment says what it does at each.  Where the objective
    weighs its load points, `overall:` says how sure that is.
    What holds no other list is on one line.
    `commands`: settings key → command line.
    """
    document = {
        "simulated": verdict.simulated,
        "verdict": verdict.sentence,
        "conf": _held_to(_best_settings(verdict), conf),
        "answers": [_answer_entry(answer, commands) for answer in verdict.answers],
        **({"overall": _overall_entry(overall, commands)} if (overall := _one_for_all(verdict)) else {}),
        "schedule": schedule(verdict.answers),
    }
    text = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=None
    )
    return f"{_about_conf(verdict)}{text}"


def _about_conf(verdict: Verdict) -> str:
    """A comment that says what `conf:` runs and what that does at each load point; empty with fewer than two."""
    best = _best_settings(verdict)
    if best is None or len(verdict.answers) < 2:
        return ""
    found = {one.concurrency: one for here in verdict.contenders.values() for one in here if one.settings == best}
    each = [_speed_at(answer.concurrency, found.get(answer.concurrency)) for answer in verdict.answers]
    what = "the best single server for all load points" if verdict.overall else "the best where speculation pays most"
    return f"# conf: runs {best}, {what}: {', '.join(each)} (answers: has the best of each).\n"


def _speed_at(concurrency: int, one: Contender | None) -> str:
    if one is None or one.speedup is None:
        return f"not known at concurrency {concurrency}"
    barred = f" but may not win ({' '.join(one.cannot_win.split())})" if one.cannot_win else ""
    return f"{one.speedup:.2f}x at concurrency {concurrency}{barred}"


class _Dumper(yaml.SafeDumper):
    """Without anchors: the same list twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the dumper's own signature
        return True


def _answer_entry(answer: Answer, commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """`best_speculative` only where it is not what to run, `may_win` only where that may not, `nothing_meets` where even the
    plain server breaks a limit."""
    winner = answer.winner
    entry = {
        "concurrency": answer.concurrency,
        "answer": answer.answer,
        "speedup": _rounded(answer.speedup),
        "speedup_low": _rounded(answer.speedup_low),
        "speedup_high": _rounded(answer.speedup_high),
        "basis": str(answer.basis) if answer.basis else None,
        "settings": _given(answer.settings) if answer.settings else "baseline",
    }
    if answer.best_speculative and answer.best_speculative != answer.settings:
        entry["best_speculative"] = _given(answer.best_speculative)
    if not answer.may_win:
        entry["may_win"] = False
    if answer.nothing_meets:
        entry["nothing_meets"] = answer.nothing_meets
    return entry | {"command": list(commands.get(winner.key, ())) if winner else []}


def _overall_entry(answer: Answer, commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {name: value for name, value in _answer_entry(answer, commands).items() if name != "concurrency"}


def _one_for_all(verdict: Verdict) -> Answer | None:
    """What was found of one setting for all load points, where that is what was asked."""
    return verdict.overall if verdict.goal.weights else None


def _given(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.as_dict().items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _best_settings(verdict: Verdict) -> Settings | None:
    """The best single one for all load points, the plain server where none is better; None: no verdict.

    Where there is none for all: the winner of the load point where speculation pays most, else the plain server that won.
    """
    if verdict.overall is not None and verdict.overall.winner is not None:
        return verdict.overall.winner
    winning = [answer for answer in verdict.answers if answer.settings is not None]
    if winning:
        return max(winning, key=lambda answer: answer.speedup or 0.0).settings
    return next((answer.best_plain for answer in verdict.answers if answer.best_plain), None)


def _held_to(settings: Settings | None, conf: Mapping[str, Any]) -> dict[str, Any]:
    """`conf` with every knob of its space held to the value in `settings`; a knob that has none there is left out.

    Whom to notify is whoever ran the sweep's, perhaps with a secret address: it is not passed on.
    """
    conf = {name: value for name, value in conf.items() if name != "notify"}
    if settings is None:
        return conf
    held = {name: getattr(settings, name) for name in conf.get("space") or {} if name in knobs()}
    space = {"algorithm": settings.algorithm} | {name: value for name, value in held.items() if value is not None}
    changed: dict[str, Any] = {**conf, "space": space}
    if conf.get("server_args"):
        known = dict(settings.server_args)
        changed["server_args"] = {
            name: written(Held(known[name])) if name in known else value for name, value in conf["server_args"].items()
        }
    return changed
