"""The chart of what each GPU set did and when, so that waste is seen: launching, measuring, stopping, idle, out of use.

Drawn from the journal (who held which GPUs until when) and the rows (when measuring began and ended).  Hours in which no
driver ran, between an interruption and its resume, are cut out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from results.journal import moment
from results.page.figure import Chart, axis, label, layout
from results.record import Record

STATES = {
    "launching": "#e0a030", "measuring": "#2c9c69", "stopping": "#7fa7c9", "failed": "#d0505c", "out of use": "#7a5ba8", "idle": "#8b929c55",
}  # fmt: skip
"""What a GPU set does → its colour, in the order of the legend."""
UNITS = {"hours": 3600.0, "minutes": 60.0}
"""Of the axis, where it is three of them long; else seconds."""
MOST_SPANS = 1500
CELLS = 400
"""Into so many cells a set's time is cut where there are more spans than can be drawn; a cell shows what filled most of it."""
_Named = tuple[Mapping[str, Any], str]
"""An event and the GPU set that it is about."""


@dataclass(frozen=True)
class Span:
    gpus: str
    state: str
    start_s: float
    """Seconds of driving since the sweep began."""
    end_s: float
    what: str = ""


@dataclass(frozen=True)
class _Clock:
    """Wall clock → seconds in which some driver ran."""

    periods: tuple[tuple[datetime, datetime], ...]

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> _Clock:
        """A driver's time is over when its search is: the report is written then, and says the same whenever it is."""
        periods: list[tuple[datetime, datetime]] = []
        over = False
        for event in events:
            at = moment(event["at"])
            over = over and event["event"] != "sweep_resumed"
            if at is None or over:
                continue
            if not periods or event["event"] == "sweep_resumed":
                periods.append((at, at))
            periods[-1] = (periods[-1][0], max(periods[-1][1], at))
            over = event["event"] == "search_ended"
        return cls(tuple(periods))

    def seconds(self, at: datetime) -> float:
        return sum(max(0.0, (min(at, end) - start).total_seconds()) for start, end in self.periods)

    @property
    def end_s(self) -> float:
        return sum((end - start).total_seconds() for start, end in self.periods)

    @property
    def resumed_s(self) -> list[float]:
        return [self.seconds(start) for start, _ in self.periods[1:]]


def timeline_chart(events: Sequence[Mapping[str, Any]], records: Sequence[Record]) -> Chart | None:
    clock, spans = _Clock.of(events), spans_of(events, records)
    if not spans:
        return None
    unit, per = next(((unit, per) for unit, per in UNITS.items() if clock.end_s > 3 * per), ("seconds", 1.0))
    drawn = spans if len(spans) <= MOST_SPANS else _coarse(spans, clock.end_s)
    sets = sorted({span.gpus for span in spans}, reverse=True)
    traces = [_bars(state, [span for span in drawn if span.state == state], per) for state in STATES]
    x = axis(f"{unit} in which the sweep was driven", range=[0, clock.end_s / per])
    lines = [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at / per, "x1": at / per, "line": {"color": "#8b929c", "dash": "dot", "width": 1.5}}
        for at in clock.resumed_s
    ]  # fmt: skip
    resumed = " Dotted lines: resumed after an interruption." if lines else ""
    return Chart(
        "timeline", "What the GPUs did", f"{_shares(spans)}.{resumed}", [trace for trace in traces if trace["x"]],
        layout(x, axis("", categoryarray=[label(name) for name in sets], categoryorder="array"), height=170 + 34 * len(sets), barmode="overlay", shapes=lines),
    )  # fmt: skip


def spans_of(events: Sequence[Mapping[str, Any]], records: Sequence[Record]) -> list[Span]:
    """Every GPU set's time from the first launch to the end of the last search, by set and time."""
    clock, named = _Clock.of(events), _named(events, records)
    busy = _busy(named, records, clock)
    quarantined = _quarantined(named, clock)
    begins = min((span.start_s for spans in busy.values() for span in spans), default=0.0)
    spans: list[Span] = []
    for gpus, own in sorted(busy.items()):
        own.sort(key=lambda span: span.start_s)
        ends = max(span.end_s for span in own)
        spans += [*own, *_idle(gpus, own, begins)]
        if (left := quarantined.get(gpus)) is not None and left >= ends - 1:
            spans.append(Span(gpus, "out of use", ends, clock.end_s, "what its server left behind did not go away"))
        elif clock.end_s > ends:
            spans.append(Span(gpus, "idle", ends, clock.end_s))
    return [span for span in spans if span.end_s > span.start_s]


def _named(events: Sequence[Mapping[str, Any]], records: Sequence[Record]) -> list[_Named]:
    """Each with its GPU set; where there are several hosts the name says on which of them the trial was last launched."""
    hosts, found = {record.trial: record.origin.host for record in records}, []
    for event in events:
        if event["event"] == "launched" and "trial" in event:
            hosts[event["trial"]] = str(event.get("host"))
        found.append(hosts.get(event.get("trial", -1), ""))
    several = len({host for host in found if host}) > 1
    return [(event, _set_name(event, host if several else "")) for event, host in zip(events, found, strict=True)]


def _busy(named: Iterable[_Named], records: Sequence[Record], clock: _Clock) -> dict[str, list[Span]]:
    rows: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        rows[record.trial].append(record)
    found: dict[str, list[Span]] = defaultdict(list)
    for event, name in named:
        at, held_s = moment(event["at"]), event.get("held_s")
        if event["event"] != "trial_ended" or at is None or not isinstance(held_s, int | float) or held_s <= 0:
            continue
        found[name] += _launch(name, at - timedelta(seconds=held_s), at, rows.get(event.get("trial", -1), []), clock)
    return found


def _launch(gpus: str, start: datetime, end: datetime, rows: Sequence[Record], clock: _Clock) -> list[Span]:
    """One launch, cut at the first and after the last load point that it measured."""
    own = [row for row in rows if start <= row.started_at <= end]
    what = label(f"trial {rows[0].trial}: {rows[0].asked}") if rows else ""
    measured = [row for row in own if row.measured]
    if not measured:
        failed = any(not row.measured for row in own)
        return [Span(gpus, "failed" if failed else "launching", clock.seconds(start), clock.seconds(end), what)]
    first = clock.seconds(min(row.started_at for row in measured))
    last = max(
        clock.seconds(row.started_at) + ((row.measurement.measure_s if row.measurement else None) or 0.0)
        for row in measured
    )
    begin, over = clock.seconds(start), clock.seconds(end)
    last = min(last, over)
    return [
        Span(gpus, "launching", begin, first, what), Span(gpus, "measuring", first, last, what),
        Span(gpus, "stopping", last, over, what),
    ]  # fmt: skip


def _idle(gpus: str, own: Sequence[Span], begins: float) -> list[Span]:
    edges = [(begins, begins), *((span.start_s, span.end_s) for span in own)]
    return [Span(gpus, "idle", before[1], after[0]) for before, after in pairwise(edges) if after[0] - before[1] > 0.5]


def _quarantined(named: Iterable[_Named], clock: _Clock) -> dict[str, float]:
    found = {}
    for event, name in named:
        if event["event"] == "left_behind" and (at := moment(event["at"])) is not None:
            found[name] = clock.seconds(at)
    return found


def _set_name(event: Mapping[str, Any], host: str) -> str:
    gpus = event.get("gpus")
    ids = ", ".join(map(str, gpus)) if isinstance(gpus, list) and gpus else ""
    return " ".join(filter(None, (host, f"GPU {ids}" if ids else "no GPU")))


def _shares(spans: Iterable[Span]) -> str:
    """`measuring 24 %, launching 61 %, …` of all GPU sets' time."""
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.state] += span.end_s - span.start_s
    total = sum(seconds.values()) or 1.0
    return "Of the time of all GPU sets: " + ", ".join(
        f"{state} {seconds[state] / total:.0%}" for state in STATES if seconds[state]
    )


def _coarse(spans: Sequence[Span], end_s: float) -> list[Span]:
    """The same, each set in CELLS cells that show what filled most of them, neighbours of one state joined."""
    cell_s = end_s / CELLS
    filled: dict[str, list[dict[str, float]]] = defaultdict(lambda: [defaultdict(float) for _ in range(CELLS)])
    for span in spans:
        cells = filled[span.gpus]
        for index in range(int(span.start_s / cell_s), min(CELLS, int(span.end_s / cell_s) + 1)):
            inside = min(span.end_s, (index + 1) * cell_s) - max(span.start_s, index * cell_s)
            cells[index][span.state] += max(0.0, inside)
    joined: list[Span] = []
    for gpus, cells in filled.items():
        for index, cell in enumerate(cells):
            if not any(cell.values()):
                continue
            state, start = max(cell, key=lambda name: cell[name]), index * cell_s
            if joined and (joined[-1].gpus, joined[-1].state) == (gpus, state) and abs(joined[-1].end_s - start) < 1e-6:
                start = joined.pop().start_s
            joined.append(Span(gpus, state, start, (index + 1) * cell_s))
    return joined


def _bars(state: str, spans: Sequence[Span], per: float) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": state, "marker": {"color": STATES[state]},
        "y": [label(span.gpus) for span in spans], "base": [round(span.start_s / per, 4) for span in spans],
        "x": [round((span.end_s - span.start_s) / per, 4) for span in spans],
        "text": [f"{span.what}<br>{state} {span.end_s - span.start_s:.0f} s" if span.what else f"{state} {span.end_s - span.start_s:.0f} s" for span in spans],
        "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
