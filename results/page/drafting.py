"""The chart of acceptance by position: how often the j-th drafted token is right where those before it were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from results.acceptance import Pair
from results.coverage import pair_of
from results.page.figure import Chart, Colours, axis, layout, name_of
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
