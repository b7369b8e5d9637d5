"""The chart of speedup against concurrency: the best of each drafter with its interval, and where speculation stops paying."""

from __future__ import annotations

import bisect
import math
from typing import Any

from results.acceptance import Pair
from results.answer import Contender, Crossover
from results.gain import gain, gain_explained
from results.page.figure import PLAIN, Chart, Colours, axis, label, layout, name_of
from results.verdict import Verdict

_LEAD = "Above the dashed line speculation pays. Bars are 95 % intervals of the best settings of each drafter."
_SHADE = "The shade is what these intervals leave open of where it stops paying."


def speed_chart(verdict: Verdict) -> Chart | None:
    best = _best(verdict)
    if not best:
        return None
    loads = list(verdict.contenders)
    colours = Colours(one.pair for one in verdict.coverage)
    traces = [
        _line(pair, points, loads, colours, _dodge(index, len(best)))
        for index, (pair, points) in enumerate(best.items())
    ]
    crossing = verdict.crossover
    x = axis("concurrency (streams at once)", tickvals=list(range(len(loads))), ticktext=[str(load) for load in loads])
    named = gain(verdict.goal)
    over = f"{named} over the best plain server" if named == "speedup" else named
    y = axis(over, ticksuffix="×", rangemode="tozero")
    marks = {
        "shapes": [_plain_line(), *_crossing_marks(crossing, loads)],
        "annotations": _crossing_text(crossing, loads),
    }
    return Chart(
        "speed", f"{named[0].upper()}{named[1:]} by load",
        " ".join(filter(None, (_LEAD, gain_explained(verdict.goal), _SHADE if crossing is not None else ""))),
        [*traces, _plain_legend()], layout(x | {"range": [-0.35, len(loads) - 0.65]}, y, **marks),
    )  # fmt: skip


def _best(verdict: Verdict) -> dict[Pair, dict[int, Contender]]:
    """Of each drafter where it has a speedup, the one that speculation pays most with first."""
    every = {
        pair: {load: one for load, one in points.items() if one.speedup is not None}
        for pair, points in verdict.best_by_pair().items()
    }
    known = {pair: points for pair, points in every.items() if points}
    return dict(sorted(known.items(), key=lambda item: -max(one.speedup or 0.0 for one in item[1].values())))


def _line(
    pair: Pair, points: dict[int, Contender], loads: list[int], colours: Colours, offset: float
) -> dict[str, Any]:
    shown = [(loads.index(load), points[load]) for load in loads if load in points]
    low = [(one.speedup or 0.0) - (one.speedup_low or 0.0) for _, one in shown]
    high = [(one.speedup_high or 0.0) - (one.speedup or 0.0) for _, one in shown]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name_of(pair),
        "x": [round(index + offset, 3) for index, _ in shown], "y": [one.speedup for _, one in shown],
        "error_y": {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "thickness": 1.5, "width": 4},
        "line": {"color": colours.of_pair(pair), "width": 2},
        "marker": {"size": 9, "symbol": ["circle" if one.cannot_win is None else "x" for _, one in shown]},
        "text": [_told(one) for _, one in shown], "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _told(one: Contender) -> str:
    interval = f" [{one.speedup_low:.2f}, {one.speedup_high:.2f}]" if one.speedup_low and one.speedup_high else ""
    barred = f"<br>may not win: {label(one.cannot_win)}" if one.cannot_win else ""
    return f"{label(one.settings)}<br>{one.speedup:.2f}×{interval}, launches: {one.launches}{barred}"


def _dodge(index: int, count: int) -> float:
    """Side by side, so that no interval hides another."""
    return (index - (count - 1) / 2) * min(0.08, 0.4 / count)


_PLAIN_LINE = {"color": PLAIN, "dash": "dash", "width": 1.5}


def _plain_line() -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": _PLAIN_LINE}


def _plain_legend() -> dict[str, Any]:
    """Its name stands in the legend: beside the line it would cover points."""
    return {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "name": "plain server", "line": _PLAIN_LINE}


def _at(crossing: float, loads: list[int]) -> float:
    """Where a concurrency between two load points lies on the axis."""
    right = min(max(bisect.bisect_left(loads, crossing), 1), len(loads) - 1)
    left = right - 1
    return left + math.log(crossing / loads[left]) / math.log(loads[right] / loads[left])


def _crossing_marks(crossing: Crossover | None, loads: list[int]) -> list[dict[str, Any]]:
    """A line where it stops paying, and a shade over what the intervals leave open of that."""
    if crossing is None:
        return []
    at = _at(crossing.concurrency, loads)
    low = _at(crossing.low, loads) if crossing.low is not None else -0.35
    high = _at(crossing.high, loads) if crossing.high is not None else len(loads) - 0.65
    whole = {"yref": "paper", "y0": 0, "y1": 1}
    return [
        {"type": "rect", **whole, "x0": low, "x1": high, "fillcolor": PLAIN, "opacity": 0.12, "line": {"width": 0}, "layer": "below"},
        {"type": "line", **whole, "x0": at, "x1": at, "line": {"color": PLAIN, "dash": "dot", "width": 1.5}},
    ]  # fmt: skip


def _crossing_text(crossing: Crossover | None, loads: list[int]) -> list[dict[str, Any]]:
    if crossing is None:
        return []
    text = f"stops paying near {crossing.concurrency:.0f} streams"
    at = _at(crossing.concurrency, loads)
    side = "right" if at > (len(loads) - 1) * 0.6 else "left"
    return [{"x": at, "yref": "paper", "y": 1, "xanchor": side, "yanchor": "bottom", "showarrow": False, "text": text, "font": {"size": 12}}]  # fmt: skip
