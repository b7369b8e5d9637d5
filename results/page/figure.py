"""Chart: a figure in Plotly's own form with its title, and what all figures of a page share.

Colours that depend on light or dark are the page's (page.js); those of drafters are here, and the same in every chart.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from results.acceptance import Pair
from results.coverage import named, pair_of
from sweeps.settings import Settings

PALETTE = ("#2f7fc9", "#e0812b", "#2c9c69", "#9a69c4", "#d0505c", "#1f9aa8", "#b5862a", "#c65f9e")
"""Told apart on white and on black, also by most who confuse red and green."""
PLAIN = "#8b929c"
MOST_POINTS = 600
"""Marks of one kind in a chart: more cannot be seen, and make the page slow."""


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    lead: str
    """How to read it."""
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    min_width: int = 0
    """Pixels below which it scrolls within its frame."""

    @property
    def figure(self) -> dict[str, Any]:
        return {"data": list(self.data), "layout": self.layout}

    def titled(self, simulated: bool) -> Chart:
        """The same, called simulated in its title if it is."""
        return dataclasses.replace(self, title=f"{self.title} (simulated)") if simulated else self


class Colours:
    """A colour for each algorithm and drafter, in the order in which they are named here."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._order = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}

    def of(self, settings: Settings) -> str:
        return self.of_pair(pair_of(settings)) if settings.speculative else PLAIN

    def of_pair(self, pair: Pair) -> str:
        return PALETTE[self._order.setdefault(pair, len(self._order)) % len(PALETTE)]


def label(text: object) -> str:
    """Text for a chart: Plotly reads tags in it, so they are spelled out."""
    return html.escape(str(text), quote=False)


def name_of(pair: Pair) -> str:
    return label(named(pair))


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "automargin": True, **more}


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {
        "xaxis": x, "yaxis": y, "height": 360, "margin": {"l": 8, "r": 12, "t": 24, "b": 8}, "dragmode": False,
        "hovermode": "closest", "legend": {"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return base | more


def thinned(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """The first half of `most`, and of the rest every so many."""
    if len(items) <= most:
        return list(items)
    head, rest = items[: most // 2], items[most // 2 :]
    step = len(rest) / (most - len(head))
    return [*head, *(rest[int(index * step)] for index in range(most - len(head)))]
