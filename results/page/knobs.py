"""Two charts of the space that was searched: every setting across its knobs, and how much each knob decides.

Not here: proposals (sweeps/sampler.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from results.answer import Contender
from results.gain import gain
from results.page.figure import PALETTE, Chart, axis, label, layout, thinned
from results.verdict import Verdict
from sweeps.settings import Settings, knobs, worded

FEWEST = 6
"""Settings below which nothing is said of the weight of a knob."""
ENOUGH = 20
"""Settings below which the weight of a knob is a hint."""
MOST_LINES = 400
SCALE = [[0, "#5b7fb5"], [0.5, "#9aa0a8"], [1, "#e06a1b"]]
"""Slow to fast, seen on white and on black."""


@dataclass(frozen=True)
class Searched:
    """The speculative settings with a speedup, the best first, and what tells them apart."""

    points: Sequence[Mapping[int, Contender]]
    """Of each settings by concurrency."""
    mean_logs: Sequence[float]
    columns: Mapping[str, Sequence[Any]]
    """Knob or passed argument that differs between them → its value in each."""
    loads: tuple[int, ...]
    called: str
    """`speedup`, or what it is a gain in."""

    @classmethod
    def of(cls, verdict: Verdict) -> Searched:
        found: dict[str, dict[int, Contender]] = defaultdict(dict)
        for load, contenders in verdict.contenders.items():
            for one in contenders:
                if one.settings.speculative and one.speedup:
                    found[one.settings.key][load] = one
        whole = [points for points in found.values() if len(points) == len(verdict.contenders)] or list(found.values())
        ranked = sorted(((_mean_log(points), points) for points in whole), key=lambda item: -item[0])
        settings = [next(iter(points.values())).settings for _, points in ranked]
        columns = {name: values for name, values in _columns(settings) if len(set(values)) > 1}
        return cls(
            [points for _, points in ranked], [mean for mean, _ in ranked], columns, tuple(verdict.contenders), gain(verdict.goal)
        )  # fmt: skip


def knobs_chart(searched: Searched) -> Chart | None:
    count = len(searched.points)
    if count < 2 or not searched.columns:
        return None
    shown = thinned(range(count), MOST_LINES)
    loads = [load for load in searched.loads if all(load in searched.points[i] for i in shown)]
    overall = [round(math.exp(searched.mean_logs[i]), 4) for i in shown]
    dimensions = [_dimension(name, [values[i] for i in shown]) for name, values in searched.columns.items()]
    dimensions += [
        {"label": f"at {load}", "values": [round(searched.points[i][load].speedup or 0.0, 4) for i in shown], "tickformat": ".2f"}
        for load in loads
    ]  # fmt: skip
    title = {"text": searched.called.replace(" in ", "<br>in ")}
    colours = {"color": overall, "colorscale": SCALE, "showscale": True, "colorbar": {"title": title, "thickness": 10}}
    left_out = f" {len(shown)} of {count} settings are drawn." if len(shown) < count else ""
    return Chart(
        "knobs", "Every setting across its knobs",
        f"A line is a setting; its colour is the mean {searched.called} over load points. Drag along an axis to see a part only.{left_out}",
        [{"type": "parcoords", "dimensions": dimensions, "line": colours}],
        {"height": 380, "margin": {"l": 24 + 7 * _widest(dimensions[0]), "r": 24, "t": 56, "b": 24}}, min_width=90 * len(dimensions) + 160,
    )  # fmt: skip


def importance_chart(searched: Searched) -> Chart | None:
    weights = {name: explained(searched.mean_logs, values) for name, values in searched.columns.items()}
    if len(searched.points) < FEWEST or not weights:
        return None
    order = sorted(weights, key=lambda name: weights[name])
    count = len(searched.points)
    few = f" {count} settings are few for that: take it as a hint." if count < ENOUGH else ""
    bars = {
        "type": "bar", "orientation": "h", "x": [round(weights[name], 4) for name in order], "y": [label(name) for name in order],
        "marker": {"color": PALETTE[0]}, "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
    }  # fmt: skip
    return Chart(
        "importance", "What decides",
        f"How much of the difference between settings each knob accounts for, taken alone (share of the variance of log {searched.called}). Knobs that go together share it, so the bars do not add up to one.{few}",
        [bars], layout(axis("", tickformat=".0%", range=[0, 1.02], tickvals=[0, 0.2, 0.4, 0.6, 0.8, 1]), axis(""), height=120 + 34 * len(order), showlegend=False),
    )  # fmt: skip


def explained(values: Sequence[float], groups: Sequence[object]) -> float:
    """Share of the variance of `values` that lies between groups (eta squared, corrected for the number of groups as ε²)."""
    by_group: dict[object, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        by_group[group].append(value)
    mean = fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    free = len(values) - len(by_group)
    if not total or free <= 0:
        return 0.0
    means = {group: fmean(found) for group, found in by_group.items()}
    within = sum((value - means[group]) ** 2 for group, found in by_group.items() for value in found)
    between = total - within
    return max(0.0, (between - (len(by_group) - 1) * within / free) / total)


def _mean_log(points: Mapping[int, Contender]) -> float:
    return fmean(math.log(one.speedup or 1.0) for one in points.values())


def _columns(every: Sequence[Settings]) -> Iterator[tuple[str, list[Any]]]:
    """Every knob and passed argument with its value in each of the settings: numbers, texts, or None."""
    for name in knobs():
        yield name, [_value(getattr(settings, name)) for settings in every]
    passed = [dict(settings.server_args) for settings in every]
    for name in sorted({name for arguments in passed for name in arguments}):
        yield name, [_value(arguments.get(name)) for arguments in passed]


def _value(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or value is None else worded(value)


def _dimension(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Few distinct values, or words, stand at equal distances under their own names."""
    distinct = sorted(
        set(values),
        key=lambda value: (
            not isinstance(value, int | float),
            value if isinstance(value, int | float) else 0,
            str(value),
        ),
    )
    if len(distinct) > 12 and all(isinstance(value, int | float) for value in distinct):
        return {"label": _in_lines(name), "values": list(values)}
    places = {value: place for place, value in enumerate(distinct)}
    return {
        "label": _in_lines(name), "values": [places[value] for value in values], "tickvals": list(places.values()),
        "ticktext": [label("–" if value is None else value) for value in distinct], "range": [-0.2, len(distinct) - 0.8],
    }  # fmt: skip


def _in_lines(name: str, most: int = 12) -> str:
    """A long name in two lines, cut behind an underscore: names of neighbours would run into each other."""
    places = [place + 1 for place, letter in enumerate(name) if letter == "_" and 0 < place < len(name) - 1]
    if len(name) <= most or not places:
        return label(name)
    middle = min(places, key=lambda place: abs(place - len(name) / 2))
    return f"{label(name[:middle])}<br>{label(name[middle:])}"


def _widest(dimension: Mapping[str, Any]) -> int:
    """Letters of the longest text on an axis."""
    return max(
        len(text) for text in (*dimension["label"].split("<br>"), *map(str, dimension.get("ticktext", ["0.00"])))
    )
