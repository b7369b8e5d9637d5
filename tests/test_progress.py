"""Narrator: what a person reads while a sweep runs agrees with the verdict and with the budget."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.events import Launched
from orchestrator.plan import Budget
from orchestrator.progress import Narrator
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from results.verdict import judge
from sweeps.observation import Goal
from tests.fakes.plans import plan
from tests.fakes.records import EAGLE3, PLAIN, failure, measured


def told(tmp_path: Path, before: list[Record], record: Record, **sections: Any) -> str:
    """What is said of `record` after `before`."""
    out = io.StringIO()
    narrator = Narrator(Console(file=out, width=400))
    narrator.starts(plan(**sections), RunDir(tmp_path / "run"), 1, before)
    narrator.tell(record, launches=1)
    return out.getvalue().splitlines()[-1]


def test_a_speed_is_told_against_the_plain_server_that_the_verdict_takes(tmp_path: Path) -> None:
    """Not against a faster row that may not win: a plain server whose requests failed is no yardstick."""
    flawed = measured(PLAIN, 400.0, trial=0, flags=(Flag.REQUESTS_FAILED,))
    plain, fast = measured(PLAIN, 100.0, trial=1, launch=1), measured(EAGLE3, 150.0, trial=2)
    assert "150.0 tok/s = 1.50x" in told(tmp_path, [flawed, plain], fast)
    assert judge([flawed, plain, fast], Goal()).answers[0].speedup == pytest.approx(1.5)


def test_a_speed_is_compared_in_the_metric_of_the_goal(tmp_path: Path) -> None:
    """Twice the tokens of all streams, but the same for each user: the goal says which counts, and so does the line."""
    goal = Goal(maximize="user_tok_s")
    plain = measured(PLAIN, 100.0, trial=0, user_tok_s=20.0)
    fast = measured(EAGLE3, 200.0, trial=1, user_tok_s=25.0)
    assert "200.0 tok/s = 1.25x in user_tok_s" in told(tmp_path, [plain], fast, goal=goal)


def test_without_a_sound_plain_server_there_is_no_ratio(tmp_path: Path) -> None:
    """The speed alone."""
    line = told(tmp_path, [], measured(EAGLE3, 150.0, trial=2))
    assert "150.0 tok/s, acceptance length" in line


def test_a_failure_without_words_is_told_all_the_same(tmp_path: Path) -> None:
    """Whatever a server left in its log, also nothing."""
    line = told(tmp_path, [], failure(EAGLE3, trial=3, message=""))
    assert line.endswith("oom_graph_capture at graph_capture: nothing was said of it.")


def test_the_launches_shown_are_those_charged_to_the_budget(tmp_path: Path) -> None:
    """On a terminal: the figure that ends the sweep, running launches included."""
    narrator = Narrator(Console(file=io.StringIO(), force_terminal=True))
    narrator.starts(plan(budget=Budget(launches=8)), RunDir(tmp_path / "run"), 2, [])
    narrator.tell(Launched(3, "here", 1, "marker", ("0",)), launches=4)
    assert narrator._status is not None
    shown = str(narrator._status.status)
    narrator.close()
    assert shown.startswith("4/8 launches")
