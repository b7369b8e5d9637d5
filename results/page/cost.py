"""Two charts of what speculation costs: acceptance length against step time, and all streams' speed against one user's.

A step with speculation takes T where a plain one takes T0, and gives L tokens instead of one: speedup = L ÷ (T/T0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from results.coverage import pair_of
from results.front import Offer, unbeaten
from results.page.figure import PLAIN, Chart, Colours, axis, label, layout, name_of, thinned
from results.page.seen import Seen, plain_tok_s
from results.verdict import Verdict

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down")


def cost_chart(every: Sequence[Seen], verdict: Verdict) -> Chart | None:
    plain = plain_tok_s(every, verdict)
    costs = [
        (one, one.acceptance_length / (one.output_tok_s / plain[one.concurrency]))
        for one in every
        if one.settings.speculative and one.acceptance_length and one.concurrency in plain
    ]
    if not costs:
        return None
    colours, loads = Colours(one.pair for one in verdict.coverage), sorted(plain)
    traces = [_cost_trace(load, [pair for pair in costs if pair[0].concurrency == load], index, colours, plain) for index, load in enumerate(loads)]  # fmt: skip
    most_cost, most_length = max(cost for _, cost in costs), max(one.acceptance_length or 0.0 for one, _ in costs)
    x = axis("step time, times that of the plain server (T/T0)", range=[0, most_cost * 1.1])
    y = axis("acceptance length L (tokens a step)", range=[0.8, max(most_length * 1.1, 2.0)])
    pairs = dict.fromkeys(pair_of(one.settings) for one, _ in costs)
    names = [_legend(name_of(pair), "circle", colours.of_pair(pair)) for pair in pairs]
    names += [_legend(f"at {load}", _symbol(index), PLAIN) for index, load in enumerate(loads)]
    by = "" if verdict.goal.metric == "output_tok_s" else " in output_tok_s, whatever the objective,"
    return Chart(
        "cost", "Why: what a step gives and what it costs",
        f"Speedup{by} is acceptance length divided by step-time cost: each dotted line is one speedup. Up and to the left is better; a drafter that guesses well can still lose by taking too long.",
        [*_rays(most_cost * 1.1, max(most_length * 1.1, 2.0)), *names, *traces], layout(x, y, height=420),
    )  # fmt: skip


def _cost_trace(
    load: int, costs: Sequence[tuple[Seen, float]], index: int, colours: Colours, plain: dict[int, float]
) -> dict[str, Any]:
    shown = thinned(costs, 200)
    return {
        "type": "scatter", "mode": "markers", "showlegend": False,
        "x": [round(cost, 4) for _, cost in shown], "y": [round(one.acceptance_length or 0.0, 4) for one, _ in shown],
        "marker": {
            "symbol": _symbol(index), "size": 9, "opacity": 0.85,
            "color": [colours.of(one.settings) for one, _ in shown], "line": {"width": 0},
        },
        "text": [
            f"{label(one.settings)} at {load}<br>L {one.acceptance_length:.2f} ÷ T/T0 {cost:.2f} = {one.output_tok_s / plain[load]:.2f}×"
            for one, cost in shown
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _symbol(index: int) -> str:
    return SYMBOLS[index % len(SYMBOLS)]


def _legend(name: str, symbol: str, colour: str) -> dict[str, Any]:
    """A trace that only explains."""
    marker = {"symbol": symbol, "color": colour, "size": 9}
    return {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name, "marker": marker}


def _rays(most_cost: float, most_length: float) -> list[dict[str, Any]]:
    """Lines of equal speedup."""
    rays = []
    for speedup in (0.5, 1.0, 1.5, 2.0, 3.0):
        end = min(most_cost, most_length / speedup)
        rays.append({
            "type": "scatter", "mode": "lines+text", "x": [0.8 / speedup, end], "y": [0.8, end * speedup], "showlegend": False,
            "line": {"color": PLAIN, "width": 1.5 if speedup == 1 else 1, "dash": "dash" if speedup == 1 else "dot"},
            "text": ["", f"{speedup:g}×"], "textposition": "bottom left", "textfont": {"size": 11, "color": PLAIN}, "hoverinfo": "skip",
        })  # fmt: skip
    return rays


def pareto_chart(every: Sequence[Offer], verdict: Verdict) -> Chart | None:
    if not every:
        return None
    plain = [one for one in every if not one.settings.speculative]
    speculative = [one for one in every if one.settings.speculative]
    colours = Colours(one.pair for one in verdict.coverage)
    traces = [_cloud(speculative, colours)] if speculative else []
    traces += [_front("best with speculation", unbeaten(speculative), "#2f7fc9")] if speculative else []
    traces += [_front("best plain", unbeaten(plain), PLAIN)] if plain else []
    x = axis("tokens/s that one user sees", rangemode="tozero")
    y = axis("tokens/s per GPU", type="log", **_decades(one.output_tok_s_per_gpu for one in every))
    return Chart(
        "pareto", "Throughput against the speed of one user",
        "Each point is a setting at a load; numbers are concurrency. Further right is faster for a user, further up is cheaper.",
        traces, layout(x, y),
    )  # fmt: skip


def _cloud(every: Sequence[Offer], colours: Colours) -> dict[str, Any]:
    shown = thinned(sorted(every, key=lambda one: -one.output_tok_s_per_gpu))
    return {
        "type": "scatter", "mode": "markers", "name": "other speculative settings", "showlegend": False, **_points(shown),
        "marker": {"size": 7, "opacity": 0.5, "color": [colours.of(one.settings) for one in shown]},
    }  # fmt: skip


def _front(name: str, points: Sequence[Offer], colour: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers+text", "name": name, **_points(points), "line": {"color": colour, "width": 2},
        "marker": {"size": 9, "color": colour}, "texttemplate": _once([str(one.concurrency) for one in points]),
        "textposition": "top right", "textfont": {"size": 11, "color": colour},
    }  # fmt: skip


def _once(words: Sequence[str]) -> list[str]:
    """Each where it first stands, empty where it stands again: points of one load lie close together."""
    return ["" if word in words[:place] else word for place, word in enumerate(words)]


def _points(every: Sequence[Offer]) -> dict[str, Any]:
    return {
        "x": [round(one.user_tok_s, 2) for one in every], "y": [round(one.output_tok_s_per_gpu, 2) for one in every],
        "text": [f"{label(one.settings)} at {one.concurrency}" for one in every],
        "hovertemplate": "%{text}<br>%{x:.1f} tokens/s a user, %{y:.0f} tokens/s a GPU<extra></extra>",
    }  # fmt: skip


def _decades(values: Iterable[float]) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of each power of ten that the values reach."""
    known = list(values)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in ticks]}
