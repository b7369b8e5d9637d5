"""The docs say what holds: generated pages are current, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.config import load_plan
from orchestrator.config.reference import config_page, keys, keys_shown
from results.journal import EVENTS
from results.ledger import Ledger
from results.measurement import Flag
from results.record import schema
from results.reference import schema_page, with_failures
from results.rundir import RunDir
from tests.fakes.command_line import orchestrator
from tests.fakes.records import EAGLE3, PLAIN, measured

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDE = (DOCS / "guide.md").read_text()
RUN = Path("runs/demo/20260101T120000Z")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def noted_events() -> Iterator[str]:
    """Every kind of event that the code writes under a name of its own."""
    for package in ("orchestrator", "results"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(attr="note"), args=[ast.Constant(value=str(event)), *_]):
                        yield event


def test_generated_pages_are_current() -> None:
    """Whatever is declared stands in docs/: if this fails, `make docs`."""
    assert (DOCS / "schema.md").read_text() == schema_page()
    assert (DOCS / "config.md").read_text() == config_page()
    assert with_failures(GUIDE) == GUIDE


def test_every_column_and_flag_is_in_the_schema_page() -> None:
    """With what it means."""
    page = schema_page()
    assert all(f"| `{name}` |" in page for name in (*schema().names, *Flag))


def test_every_key_says_what_it_takes_and_means() -> None:
    """No key without a doc, whoever adds one."""
    assert [one.key for one in keys() if not (one.doc and one.kind and one.default)] == []


def test_every_event_that_is_written_is_documented() -> None:
    """In the journal's own table, from which the schema page is made."""
    assert set(noted_events()) - EVENTS.keys() == set()


def test_the_help_of_plan_shows_every_key_with_its_value_in_that_conf() -> None:
    """plan conf=demo -h."""
    done = orchestrator("plan", "conf=demo", "budget.launches=3", "-h")
    assert done.returncode == 0
    assert all(f"\n{one.key} " in done.stdout for one in keys())
    lines = done.stdout.splitlines()
    (place,) = [i for i, line in enumerate(lines) if line.startswith("budget.launches ")]
    assert lines[place + 1].strip() == "whole number or null from 1; default 24; here 3"
    assert "; here" not in "\n".join(keys_shown(None))


def test_the_guide_s_config_is_one(tmp_path: Path) -> None:
    """It is read without a mistake, and its keys are those that it explains."""
    (conf,) = blocks("yaml")
    (tmp_path / "mine.yaml").write_text(conf)
    plan = load_plan([f"conf={tmp_path / 'mine.yaml'}"], to_run=False)
    assert plan.drafters == {"own": "/models/mine-eagle3"}
    assert set(yaml.safe_load(conf)["space"]) <= set(plan.space.domains)


@pytest.mark.parametrize("code", blocks("python"), ids=["results", "polars", "duckdb", "events"])
def test_the_guide_s_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """On a run of two launches, each printing something."""
    monkeypatch.chdir(tmp_path)
    RUN.parent.mkdir(parents=True)
    run = RunDir.at(RUN)
    run.plan.write_text("# conf: demo\n")
    run.journal.note("trial_ended", trial=0, held_s=3600.0, gpus=["0"])
    ledger = Ledger(run)
    for trial, settings in enumerate((PLAIN, EAGLE3)):
        ledger.append(measured(settings, 100.0 + trial, trial=trial))
    exec(compile(code, "docs/guide.md", "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT) for path in (ROOT / "README.md", *DOCS.rglob("*.md"))), ids=str
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that is there."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_readme_fits_two_screens() -> None:
    """Whoever is new reads it whole."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
