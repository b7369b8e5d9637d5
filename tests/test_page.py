"""report.html: one file that opens anywhere, in which every chart has marks and every text can be read."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from results.page.drafting import by_position
from results.page.figure import thinned
from results.page.knobs import Searched, explained, importance_chart
from results.page.timeline import MOST_SPANS, spans_of, timeline_chart
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from results.verdict import judge
from sweeps.observation import Goal
from tests.fakes.browser import BROWSER, WHY_NOT, Page, browser
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, STARTED, WIDE, failure, measured

CONF: dict[str, Any] = {"space": {"algorithm": ["none", "EAGLE3"], "drafter": ["own", "public"]}}
CHARTS = ["speed", "cost", "pareto", "positions", "categories", "knobs", "importance", "timeline"]
MARKS = {
    "speed": ".scatterlayer .point", "cost": ".scatterlayer .point", "pareto": ".scatterlayer .point", "positions": ".scatterlayer .point",
    "categories": ".barlayer .point",
    "knobs": ".parcoords .axis-title", "importance": ".barlayer .point", "timeline": ".barlayer .point",
}  # fmt: skip
"""What must be there where a chart was drawn."""
CONTRAST = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const ratio = (colour) => { const l = light(colour); return (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05); };
  const words = [...document.querySelectorAll("h1, h2, .lead, th, td, dt, dd, .eyebrow, .xtick text, .ytick text, .legendtext, .axis-title")];
  return words.filter((one) => one.textContent.trim()).map((one) => {
    const style = getComputedStyle(one);
    return [one.textContent.trim().slice(0, 40), ratio(one instanceof SVGElement ? style.fill : style.color), parseFloat(style.fontSize)];
  }).filter(([, contrast, size]) => contrast < 4.5 || size < 10.5);
})()
"""
"""Texts whose contrast with the ground is below 4.5 (WCAG AA), or that are too small."""
BUTTONS_COVER = """
[...document.querySelectorAll("[data-copy]")].some((button) => {
  const of = (one) => one.getBoundingClientRect(), own = of(button), command = button.closest(".command");
  return [...command.querySelectorAll("pre, .lead > span")].some((one) =>
    of(one).left < own.right && own.left < of(one).right && of(one).top < own.bottom && own.top < of(one).bottom);
})
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


CATEGORIES = json.dumps({"chat": [200, 100, 50, 40], "code": [100, 100, 50, 50], "<b>": [1, 0, 2]})


def rows(drafter: str = "own", **more: Any) -> list[Record]:
    """Seven settings and the plain server at three load points; speculation pays up to 8 and loses at 32."""
    own = EAGLE3.replace(drafter=drafter)
    chains = [own.replace(num_steps=steps, num_draft_tokens=steps + 1) for steps in (1, 2, 4, 5)]
    settings = [PLAIN, own, WIDE.replace(drafter=drafter), PUBLIC, *chains]
    gain = {1: 2.0, 8: 1.4, 32: 0.7}
    return [
        measured(
            one, 100.0 * concurrency**0.8 * (gain[concurrency] - 0.07 * trial if one.speculative else 1.0), trial=trial,
            concurrency=concurrency, user_tok_s=100.0 / concurrency**0.2 * (2.0 - 0.1 * trial if one.speculative else 1.0),
            **({"acceptance_length": 2.6 - 0.1 * trial, "acceptance_histogram": [300, 200, 100, 90], "acceptance_by_category": CATEGORIES} if one.speculative else {}), **more,
        )
        for concurrency in gain
        for trial, one in enumerate(settings)
    ]  # fmt: skip


def written(run: RunDir, records: list[Record], goal: Goal | None = None) -> str:
    run.journal.note("sweep_started", conf="test")
    started = STARTED.isoformat()
    lines = [
        {"at": started, "event": "sweep_started", "conf": "test"},
        *(
            {"at": f"2026-01-02T03:{6 + trial:02d}:00+00:00", "event": "trial_ended", "trial": trial, "held_s": 58.0, "gpus": ["0"]}
            for trial in range(8)
        ),
    ]  # fmt: skip
    run.journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(run, records, goal or Goal(), CONF, name="test")
    return run.report.read_text()


def figures(page: str) -> dict[str, Any]:
    """The figures in a page, as its script reads them."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    figures: dict[str, Any] = json.loads(found.group(1))
    return figures


def visible(page: str) -> str:
    """What a person reads outside the charts."""
    return html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", "", page, flags=re.DOTALL))


def in_browser(tmp_path: Path, look: Callable[[Page], Coroutine[Any, Any, None]]) -> None:
    async def looked() -> None:
        async with browser(tmp_path / "profile") as page:
            await look(page)

    asyncio.run(looked())


def test_every_figure_is_one_that_plotly_takes(run: RunDir) -> None:
    """The dicts are written without Plotly, and its own checks of every name and value pass on them."""
    found = figures(written(run, rows()))
    assert list(found) == CHARTS
    for figure in found.values():
        go.Figure(figure)


def test_a_page_asks_for_nothing_from_elsewhere(run: RunDir) -> None:
    """Scripts and styles are in it, and its own policy forbids the rest."""
    page = written(run, rows())
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", page)
    assert page.count("/**\n* plotly.js v") == 1


def test_a_page_goes_from_the_verdict_to_where_it_comes_from(run: RunDir) -> None:
    """In the order of a reader's questions."""
    verdict = judge(rows(), Goal())
    page = written(run, [*rows(), failure(WIDE, trial=30)])
    titles = re.findall(r"<h[12]>(.*?)</h[12]>", page)
    assert html.unescape(titles[0]).startswith(verdict.sentence.removesuffix("."))
    order = ["What to run", "Speedup by load", "Why: ", "Throughput", "Acceptance by position", "Acceptance by category", "Drafters", "Every setting", "What decides", "What the GPUs did", "What failed", "Where this comes from"]  # fmt: skip
    places = [next(i for i, title in enumerate(titles) if title.startswith(start)) for start in order]
    assert places == sorted(places)
    assert "--speculative-algorithm" in visible(page)


def test_simulated_is_said_at_the_top_and_in_every_chart_s_title(run: RunDir) -> None:
    """A picture of one chart that is passed on says it too."""
    page = written(run, rows(simulated=True))
    headings = re.findall(r'<section class="chart".*?<h2>(.*?)</h2>', page, re.DOTALL)
    assert len(headings) == len(CHARTS)
    assert all(title.endswith("(simulated)") for title in headings)
    assert visible(page).index("Simulated: a performance model answered") < visible(page).index("What to run")
    assert "(simulated)" not in written(run, rows())


def test_no_text_of_a_person_becomes_markup(run: RunDir) -> None:
    """A drafter named like a script and a failure that holds one are text, in the page and in the figures."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    page = written(run, [*rows(evil), failure(WIDE, trial=30, message=f"broke: {evil} &amp; ]]> -->")])
    assert "<script>alert" not in page
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert f"EAGLE3 {evil}" in visible(page)
    assert "&lt;script&gt;alert(1)" in figures(page)["speed"]["data"][0]["name"]


def test_a_secret_is_taken_out_and_breaks_no_script(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it stands in what a run says; a secret that happens to be a word of JavaScript does not ruin the page."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("ODD_KEY", "function")
    page = written(run, [*rows(), failure(WIDE, trial=30, message="no access with hf_0123456789")])
    assert "hf_0123456789" not in page
    assert "no access with <redacted: HF_TOKEN>" in visible(page)
    assert "function draw(" in page


def test_a_run_without_rows_has_a_page(run: RunDir) -> None:
    """No chart but that of the GPUs' time, and the sentence with its cause."""
    page = written(run, [])
    assert list(figures(page)) == ["timeline"]
    assert "No verdict: nothing was measured." in visible(page)
    page = written(run, [failure(EAGLE3, trial=0, message="no config.json")])
    assert "no config.json" in visible(page)


@pytest.mark.skipif(BROWSER is None, reason=WHY_NOT)
def test_a_page_is_whole_in_a_real_browser(run: RunDir, tmp_path: Path) -> None:
    """Wide and as narrow as a phone, light and dark: no complaint, every chart has marks, no sideways scrolling, text is legible."""
    evil = "<script>alert(1)</script>"
    written(run, [*rows(evil), failure(WIDE, trial=30)])

    async def look(page: Page) -> None:
        for width, dark in ((1200, False), (390, True)):
            await page.look(width, dark=dark)
            await page.open(run.report)
            await page.evaluate("drawAll().then(() => true)")
            for chart, marks in MARKS.items():
                assert await page.evaluate(f"document.querySelectorAll('#{chart} {marks}').length") > 0, (chart, width)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate(CONTRAST) == []
            assert await page.evaluate(BUTTONS_COVER) is False
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(255, 255, 255)") is not dark
        assert evil in await page.evaluate("document.querySelector('#speed .legendtext').textContent")
        await page.look(390, dark=False)
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert await page.evaluate(CONTRAST) == []
        assert page.errors == []
        assert [address for address in page.requests if not address.startswith(("file:", "data:", "blob:"))] == []

    in_browser(tmp_path, look)


def test_charts_and_tables_name_the_metric_of_the_objective(run: RunDir) -> None:
    """What is no throughput is called no speedup, but where a speedup is taken apart, which says what it is of."""
    page = written(run, rows(), Goal(maximize="user_tok_s"))
    assert figures(page)["speed"]["layout"]["yaxis"]["title"]["text"] == "gain in user_tok_s"
    assert figures(page)["knobs"]["data"][0]["line"]["colorbar"]["title"]["text"] == "gain<br>in user_tok_s"
    text = visible(page)
    assert "A gain of 1.2 is user_tok_s 1.2 times higher than the best plain server's." in text
    assert "All settings, by mean gain in user_tok_s over the best plain server" in text
    said = [line for line in text.splitlines() if "speedup" in line.lower()]
    assert all("in output_tok_s, whatever the objective" in line for line in said), said


def test_where_speculation_stops_paying_is_drawn(run: RunDir) -> None:
    """A line between the load points around it, with what the intervals leave open as a shade."""
    layout = figures(written(run, rows()))["speed"]["layout"]
    crossing = judge(rows(), Goal()).crossover
    assert crossing is not None
    assert 8 < crossing.concurrency < 32
    (line,) = [one for one in layout["shapes"] if one["type"] == "line" and one.get("yref") == "paper"]
    assert 1 < line["x0"] == line["x1"] < 2
    assert sum(one["type"] == "rect" for one in layout["shapes"]) == 1
    assert layout["annotations"][0]["text"] == f"stops paying near {crossing.concurrency:.0f} streams"


def test_acceptance_by_position_counts_only_launches_that_draft_so_deep() -> None:
    """Of 1000 steps of the deep launch 600 have the first right, and 300 of these the second; the shallow one adds to the first."""
    assert by_position([[400, 300, 300]]) == [0.6, 0.5]
    assert by_position([[400, 300, 300], [600, 400]]) == [0.5, 0.5]
    assert by_position([[4, 3, 3]]) == []


def test_acceptance_by_category_is_drawn_from_where_nothing_is_guessed(run: RunDir) -> None:
    """The category where most is right first; one with too few verify steps to tell is left to the table."""
    found = figures(written(run, rows()))["categories"]["data"]
    assert [trace["name"] for trace in found] == ["EAGLE3 own", "EAGLE3 public"]
    assert (found[0]["x"], found[0]["base"]) == (["code", "chat"], 1)
    assert found[0]["y"] == [pytest.approx(350 / 300, abs=1e-4), pytest.approx(320 / 390, abs=1e-4)]


def test_a_knob_explains_what_its_values_tell_apart() -> None:
    """All, nothing, and nothing again where chance alone makes groups."""
    assert explained([1, 1, 2, 2], ["a", "a", "b", "b"]) == pytest.approx(1.0)
    assert explained([1, 2, 1, 2], ["a", "a", "b", "b"]) == 0.0
    assert explained([1.0, 2.0, 3.0], ["a", "b", "c"]) == 0.0


def test_what_one_knob_decides_alone_ends_inside_the_chart() -> None:
    """A bar of all of it is drawn whole, at a tick that says 100 %."""
    steps = [1, 1, 1, 2, 2, 2]
    chart = importance_chart(Searched([{}] * 6, [float(n) for n in steps], {"num_steps": steps}, (8,), "speedup"))
    assert chart is not None
    x = chart.layout["xaxis"]
    assert chart.data[0]["x"] == [1.0]
    assert max(x["tickvals"]) == 1 < x["range"][1]


def test_a_crowd_is_thinned_to_its_best_and_a_sample() -> None:
    """The best stay; of the rest some, in order."""
    few = thinned(list(range(1000)), 10)
    assert few[:5] == [0, 1, 2, 3, 4]
    assert len(few) == 10
    assert few == sorted(set(few))


def test_time_is_told_apart_by_what_gpus_did() -> None:
    """A launch is launching until its first load point and measuring until its last; what a driver did not drive is cut out."""
    events = [
        {"at": "2026-01-02T03:00:00+00:00", "event": "sweep_started"},
        {"at": "2026-01-02T03:05:00+00:00", "event": "trial_ended", "trial": 1, "held_s": 240.0, "gpus": ["0"]},
        {"at": "2026-01-02T03:05:00+00:00", "event": "sweep_ended", "interrupted": True},
        {"at": "2026-01-03T09:00:00+00:00", "event": "sweep_resumed"},
        {"at": "2026-01-03T09:02:00+00:00", "event": "trial_ended", "trial": 2, "held_s": 60.0, "gpus": ["0"]},
        {"at": "2026-01-03T09:02:00+00:00", "event": "left_behind", "trial": 2, "gpus": ["0"], "what": ["300 MiB"]},
        {"at": "2026-01-03T09:04:00+00:00", "event": "sweep_ended"},
    ]
    spans = spans_of(events, [measured(PLAIN, 100.0, trial=1)])
    assert [(span.state, round(span.start_s), round(span.end_s)) for span in spans] == [
        ("launching", 60, 246), ("measuring", 246, 266), ("stopping", 266, 300), ("launching", 360, 420), ("idle", 300, 360),
        ("out of use", 420, 540),
    ]  # fmt: skip


def test_a_report_written_again_tells_the_same_of_the_time() -> None:
    """The first one is written when the search has ended, before the driver has: what it still does is no time of the GPUs."""
    events = [
        {"at": "2026-01-02T03:00:00+00:00", "event": "sweep_started"},
        {"at": "2026-01-02T03:04:00+00:00", "event": "trial_ended", "trial": 1, "held_s": 240.0, "gpus": ["0"]},
        {"at": "2026-01-02T03:05:00+00:00", "event": "search_ended", "why": "interrupted", "cut_short": True},
    ]
    later = [*events, {"at": "2026-01-02T03:09:00+00:00", "event": "sweep_ended"}]
    first, again = (timeline_chart(found, []) for found in (events, later))
    assert first == again
    assert first is not None
    assert "launching 80%, idle 20%" in first.lead
    resumed = [
        *later, {"at": "2026-01-02T09:00:00+00:00", "event": "sweep_resumed"},
        {"at": "2026-01-02T09:01:00+00:00", "event": "trial_ended", "trial": 2, "held_s": 60.0, "gpus": ["0"]},
    ]  # fmt: skip
    assert [round(span.end_s) for span in spans_of(resumed, [])] == [240, 360, 300]


def test_a_gpu_set_that_was_taken_out_of_use_is_told_by_its_host() -> None:
    """Of two hosts with a GPU 0 each: where its server was left behind, also when the trial was begun again on the other."""
    events = [
        {"at": "2026-01-02T03:00:00+00:00", "event": "sweep_started"},
        {"at": "2026-01-02T03:00:00+00:00", "event": "launched", "trial": 1, "gpus": ["0"], "host": "a"},
        {"at": "2026-01-02T03:00:00+00:00", "event": "launched", "trial": 2, "gpus": ["0"], "host": "b"},
        {"at": "2026-01-02T03:01:00+00:00", "event": "trial_ended", "trial": 1, "held_s": 60.0, "gpus": ["0"]},
        {"at": "2026-01-02T03:01:00+00:00", "event": "left_behind", "trial": 1, "gpus": ["0"], "what": ["300 MiB"]},
        {"at": "2026-01-02T03:01:00+00:00", "event": "trial_ended", "trial": 2, "held_s": 60.0, "gpus": ["0"]},
        {"at": "2026-01-02T03:01:00+00:00", "event": "launched", "trial": 1, "gpus": ["0"], "host": "b"},
        {"at": "2026-01-02T03:02:00+00:00", "event": "trial_ended", "trial": 1, "held_s": 60.0, "gpus": ["0"]},
        {"at": "2026-01-02T03:05:00+00:00", "event": "sweep_ended"},
    ]
    assert [(span.gpus, span.state, round(span.start_s), round(span.end_s)) for span in spans_of(events, [])] == [
        ("a GPU 0", "launching", 0, 60), ("a GPU 0", "out of use", 60, 300),
        ("b GPU 0", "launching", 0, 60), ("b GPU 0", "launching", 60, 120), ("b GPU 0", "idle", 120, 300),
    ]  # fmt: skip


def test_a_long_timeline_is_drawn_coarsely(run: RunDir) -> None:
    """Ten thousand launches come to at most some hundred bars a GPU set, and its shares are those of all."""
    lines = [{"at": "2026-01-02T00:00:00+00:00", "event": "sweep_started"}]
    for trial in range(10_000):
        minute = trial + 1
        at = f"2026-01-{2 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00+00:00"
        lines.append({"at": at, "event": "trial_ended", "trial": trial, "held_s": 50.0, "gpus": ["0"]})  # type: ignore[dict-item]
    run.journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chart = timeline_chart(run.journal.events(), [])
    assert chart is not None
    assert sum(len(trace["x"]) for trace in chart.data) <= MOST_SPANS
    assert "launching 83%, idle 17%" in chart.lead
