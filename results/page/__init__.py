"""report.html: a run on one page that opens without a network, on a phone or a desk, in light or dark.

In the order of a reader's questions: the verdict, what to run, how it depends on the load, why, what else was tried, what it
cost, what went wrong, where it comes from.  Charts are Plotly's, whose script is in the page once; figures are plain dicts
here, so that writing a page imports no chart library.  Text goes through an escaping template or `figure.label`.

Not here: the tables (results/tables.py), the judgement (results/verdict.py).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.answer import Answer
from results.evidence import Evidence
from results.gain import gain, metric_named
from results.page.cost import cost_chart, pareto_chart
from results.page.drafting import categories_chart, positions_chart
from results.page.figure import Chart
from results.page.knobs import Searched, importance_chart, knobs_chart
from results.page.seen import seen
from results.page.speed import speed_chart
from results.page.timeline import timeline_chart
from results.redaction import redacted
from results.sentence import SIMULATED
from results.summary import Told
from results.verdict import Verdict

SIMULATED_NOTE = "Simulated: a performance model answered, no GPU was measured."
_FOLDER = Path(__file__).parent
_REDACTED = re.compile(r"<(redacted: \w+)>")
_EMPHASIS = (
    (re.compile(r"\*\*(.+?)\*\*"), "strong"),
    (re.compile(r"\*(.+?)\*"), "em"),
    (re.compile(r"`(.+?)`"), "code"),
)


@dataclass(frozen=True)
class Command:
    """What to run for some load points; `words` empty: no command line is known."""

    loads: str
    winner: str
    words: tuple[str, ...]
    """As a shell takes them."""


def page(evidence: Evidence, told: Told, commands: Mapping[str, Sequence[str]], name: str) -> str:
    """The whole HTML, without the secrets of this process's environment.

    `commands`: settings key → command line; `name`: of the config.
    """
    import jinja2

    verdict = evidence.verdict
    charts = [chart.titled(verdict.simulated) for chart in _charts(evidence)]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["emphasis"] = emphasis
    template = environment.from_string(_read("page.html"))
    text = template.render(
        name=name,
        run=evidence.run.name,
        verdict=verdict,
        gain=gain(verdict.goal),
        named=lambda answer: metric_named(verdict.goal, answer.speedup) if answer.speedup is not None else "",
        sentence=verdict.sentence.removeprefix(SIMULATED),
        notes=told.notes,
        simulated=SIMULATED_NOTE if verdict.simulated else "",
        not_finished=told.not_finished,
        commands=_commands(verdict, commands),
        charts={chart.id: chart for chart in charts},
        tables={table.kind: table for table in told.tables},
        facts=told.facts,
        figures=_safe(_json({chart.id: chart.figure for chart in charts})),
    )
    return _with_scripts(_REDACTED.sub(r"&lt;\1&gt;", redacted(text)))


def _with_scripts(text: str) -> str:
    """Style and scripts in their places; put there last, so that no secret that reads like a word of theirs breaks them."""
    scripts = f"<script>{_plotly()}</script>\n<script>{_read('page.js')}</script>"
    return text.replace("<!--style-->", f"<style>{_read('page.css')}</style>", 1).replace("<!--scripts-->", scripts, 1)


def emphasis(text: str) -> Any:
    """Our own Markdown marks of a table's cell as HTML, everything else escaped."""
    import markupsafe

    marked = str(markupsafe.escape(text))
    for pattern, tag in _EMPHASIS:
        marked = pattern.sub(rf"<{tag}>\1</{tag}>", marked)
    return _safe(marked)


def _charts(evidence: Evidence) -> list[Chart]:
    records, verdict = evidence.records, evidence.verdict
    searched = Searched.of(verdict)
    made = (
        speed_chart(verdict), cost_chart(seen(evidence.counted), verdict), pareto_chart(evidence.offers, verdict), positions_chart(records, verdict),
        categories_chart(evidence.by_category, verdict),
        knobs_chart(searched), importance_chart(searched), timeline_chart(evidence.events, records),
    )  # fmt: skip
    return [chart for chart in made if chart is not None]


def _commands(verdict: Verdict, known: Mapping[str, Sequence[str]]) -> list[Command]:
    """Load points with the same winner together, where speculation pays most first."""
    by_winner: dict[str, list[Answer]] = {}
    for answer in verdict.answers:
        if answer.winner is not None:
            by_winner.setdefault(answer.winner.key, []).append(answer)
    groups = sorted(
        by_winner.items(), key=lambda item: -max((a.speedup or 0.0) if a.settings else 0.0 for a in item[1])
    )
    return [
        Command(
            loads=f"concurrency {', '.join(str(answer.concurrency) for answer in answers)}",
            winner=str(answers[0].winner),
            words=tuple(map(shlex.quote, known.get(key, ()))),
        )
        for key, answers in groups
    ]


def _json(value: Any) -> str:
    """JSON that ends no script element, whatever is in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _safe(text: str) -> Any:
    import markupsafe

    return markupsafe.Markup(text)  # noqa: S704 - our own files, and JSON that _json made harmless


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """Plotly's script as its package ships it; found without importing the package."""
    found = find_spec("plotly")
    assert found is not None, "plotly is a dependency of this package"
    assert found.origin is not None
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
