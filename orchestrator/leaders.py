"""Leaders: the best so far at each load point of a sweep that runs, and what the report of one that ended says there.

Not here: the verdict, which knows its doubt (results/verdict.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from orchestrator.rows import Row
from results.rundir import RunDir
from results.sample import geometric, judged_by
from sweeps.observation import Goal
from sweeps.settings import Settings


class Best(NamedTuple):
    concurrency: int
    speculative: str | None
    """Settings key; None: none was measured here, or none that was may win."""
    speedup: float | None
    """Over the best plain server; None where one of the two is missing."""
    nothing: str = ""
    """Why there is no speculative one, for a person; else empty."""


class Reported(NamedTuple):
    """What a run's report says of a load point."""

    concurrency: int
    answer: str
    """better, worse, cannot tell or not compared."""
    use: Settings | None
    """The speculative settings to run; None: the plain server, or `nothing`."""
    speculative: Settings | None
    """The best that may win, whether it is to be run or not."""
    speedup: float | None
    """Of that over the best plain server."""
    nothing: str
    """Why there is no such one, for a person; else empty."""
    known: bool
    """Whether it is known what to run."""


def best_so_far(rows: Iterable[Row], goal: Goal) -> list[Best]:
    """Per load point, by means over the launches that the verdict counts; what breaks a limit is left out.

    Where a setting was launched again the verdict is about such a one; only a first launch that is clearly faster goes before
    it there, which takes intervals to tell.
    """
    found: dict[int, dict[tuple[bool, str], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.point is not None and goal.counts(row.point.concurrency):
            found[row.point.concurrency][row.speculative, row.key].append(row)
    return [_best(concurrency, here, goal) for concurrency, here in sorted(found.items())]


def reported(run: RunDir) -> tuple[str, list[Reported]] | None:
    """The verdict's sentence and what it says of each load point, as the run's report has them.

    The report knows its doubt, which `best_so_far` does not.  None: there is no best.yaml that could be read.
    """
    try:
        found = yaml.safe_load(run.best.read_bytes())
        return str(found["verdict"]), [_reported(answer) for answer in found["answers"]]
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return None


def _reported(answer: Mapping[str, Any]) -> Reported:
    use = None if answer["settings"] == "baseline" else Settings.from_dict(answer["settings"])
    other, may_win, unmet = answer.get("best_speculative"), answer.get("may_win", True), answer.get("nothing_meets")
    best = use or (Settings.from_dict(other) if other and may_win else None)
    measured = "no speculative setting may win" if other else "no speculative setting was measured"
    nothing = f"nothing meets {unmet}" if unmet else "" if best else measured
    speedup = answer["speedup"] if best else None
    known = not unmet and bool(use or answer["command"] or answer["speedup"])
    return Reported(answer["concurrency"], answer["answer"], use, best, speedup, nothing, known)


def _best(concurrency: int, here: Mapping[tuple[bool, str], Sequence[Row]], goal: Goal) -> Best:
    sound = {who: kept for who, rows in here.items() if (kept := [row for row in rows if row.value is not None])}
    picked = sum(speculative for speculative, _ in sound) > 1
    logs: dict[bool, dict[str, float]] = {True: {}, False: {}}
    proven: dict[str, float] = {}
    within: dict[bool, list[float]] = {True: [], False: []}
    broken: list[str] = []
    for (speculative, key), rows in sound.items():
        counted = judged_by(rows, lambda row: row.launch, picked=picked and speculative)
        log = fmean(math.log(row.value or math.nan) for row in counted)
        above = _broken(counted, goal)
        broken += above if speculative else []
        within[speculative] += [] if above else [log]
        if not speculative or not above:
            logs[speculative][key] = log
            if speculative and all(row.launch > 0 for row in counted):
                proven[key] = log
    plain = max(within[False] or logs[False].values(), default=None)
    winner = _winner(logs[True], proven, plain)
    if winner is None:
        return Best(concurrency, None, None, _nothing(sum(speculative for speculative, _ in here), broken))
    return Best(concurrency, winner, None if plain is None else math.exp(logs[True][winner] - plain))


def _nothing(measured: int, broken: Sequence[str]) -> str:
    if not measured:
        return "nothing speculative measured yet"
    why = " and ".join(dict.fromkeys(broken)) or "flags bar their rows"
    return f"no speculative setting may win so far, {measured} measured ({why})"


def _winner(logs: Mapping[str, float], proven: Mapping[str, float], plain: float | None) -> str | None:
    """The fastest that was launched again, but not where that looks slower than the plain server and another faster."""
    fastest, best = (max(found, key=lambda key: found[key], default=None) for found in (logs, proven))
    if fastest is None or best is None:
        return fastest
    return fastest if plain is not None and logs[fastest] > plain >= proven[best] else best


def _broken(rows: Sequence[Row], goal: Goal) -> list[str]:
    """The limits that some settings break."""
    found = []
    for place, (name, limit) in enumerate(goal.limits.items()):
        values = [value for row in rows if (value := row.limited[place]) is not None]
        if values and geometric(values) > limit:
            found.append(f"{name} is above its limit {limit:g}")
    return found
