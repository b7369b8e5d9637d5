"""Two charts of what a drafter guesses right: by position, and by category of prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.acceptance import Acceptance, Pair
from results.coverage import pair_of
from results.page.figure import Chart, Colours, axis, label, layout, name_of
from results.record import Record
from results.verdict import Verdict

ENOUGH_STEPS = 200
"""Verify steps below which a share says little."""


def positions_chart(records: Sequence[Record], verdict: Verdict) -> Chart | None:
    pooled: dict[tuple[Pair, bool], list[Sequence[int]]] = defaultdict(list)
    for record in records:
        if (
            record.trusted
            and record.settings.speculative
            and record.measurement
            and record.measurement.acceptance_histogram
        ):
            tree = (record.settings.eagle_topk or 1) > 1
            pooled[pair_of(record.asked), tree].append(record.measurement.acceptance_histogram)
    lines = {key: shares for key, found in pooled.items() if (shares := by_position(found))}
    if not lines:
        return None
    colours = Colours(one.pair for one in verdict.coverage)
    traces = [_line(pair, tree, shares, colours) for (pair, tree), shares in sorted(lines.items(), key=str)]
    return Chart(
        "positions", "Acceptance by position and drafter",
        "How often the n-th drafted token is right when all before it were. Solid: chains (topk 1), where the drafter has one guess; dashed: trees, where it has several.",
        traces, layout(axis("position", dtick=1), axis("share accepted", tickformat=".0%", range=[0, 1])),
    )  # fmt: skip


def categories_chart(found: Mapping[Pair, Mapping[str, Acceptance]], verdict: Verdict) -> Chart | None:
    """`found`: of each algorithm and drafter the acceptance on each category of prompts."""
    told = {pair: {name: one for name, one in here.items() if one.enough} for pair, here in found.items()}
    names = _by_length([here for here in told.values() if here])
    if len(names) < 2:
        return None
    colours = Colours(one.pair for one in verdict.coverage)
    traces = [_bars(pair, here, names, colours) for pair, here in told.items() if here]
    return Chart(
        "categories", "Acceptance by category of prompts",
        "Tokens a step over all settings and load points of a drafter; 1 is nothing guessed. What your traffic is most of decides.",
        traces, layout(axis(""), axis("acceptance length (tokens a step)", rangemode="normal"), barmode="group"),
    )  # fmt: skip


def _by_length(found: Sequence[Mapping[str, Acceptance]]) -> list[str]:
    """Every category, where most is guessed right first."""
    lengths: dict[str, list[float]] = defaultdict(list)
    for here in found:
        for name, one in here.items():
            lengths[name].append(one.length)
    return sorted(lengths, key=lambda name: -max(lengths[name]))


def _bars(pair: Pair, here: Mapping[str, Acceptance], names: Sequence[str], colours: Colours) -> dict[str, Any]:
    """From 1 on, where a step gives what a plain one gives."""
    known = [name for name in names if name in here]
    return {
        "type": "bar", "name": name_of(pair), "x": [label(name) for name in known], "base": 1,
        "y": [round(here[name].length - 1, 4) for name in known], "marker": {"color": colours.of_pair(pair)},
        "text": [f"{here[name].length:.2f} over {here[name].verify_steps:.0f} verify steps" for name in known],
        "textposition": "none", "hovertemplate": "%{x}: %{text}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def by_position(histograms: Iterable[Sequence[int]]) -> list[float]:
    """Entry j-1: of the steps whose first j-1 drafts were right and that drafted a j-th, the share whose j-th was right.

    A launch that drafts less deep says nothing of deeper positions.
    """
    reached: dict[int, int] = defaultdict(int)
    right: dict[int, int] = defaultdict(int)
    for histogram in histograms:
        for position in range(1, len(histogram)):
            reached[position] += sum(histogram[position - 1 :])
            right[position] += sum(histogram[position:])
    shares = []
    for position in sorted(reached):
        if reached[position] < ENOUGH_STEPS:
            break
        shares.append(right[position] / reached[position])
    return shares


def _line(pair: Pair, tree: bool, shares: Sequence[float], colours: Colours) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"{name_of(pair)}, {'trees' if tree else 'chains'}",
        "x": list(range(1, len(shares) + 1)), "y": [round(share, 4) for share in shares],
        "line": {"color": colours.of_pair(pair), "width": 2, "dash": "dash" if tree else "solid"}, "marker": {"size": 7},
        "hovertemplate": "position %{x}: %{y:.1%}<extra>%{fullData.name}</extra>",
    }  # fmt: skip
