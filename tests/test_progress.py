"""Narrator: what a person reads while a sweep runs agrees with the verdict and with the budget."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.events import Launched, Progress, TrialEnded
from orchestrator.plan import Budget, Workload
from orchestrator.progress import Narrator
from results.counted import counted
from results.failure import Stage
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from results.verdict import judge
from sweeps.observation import Goal
from sweeps.space import Held
from sweeps.trial import LoadPoint, Trial
from tests.fakes.plans import SPACE, plan
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured


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


def test_one_of_something_is_one(tmp_path: Path) -> None:
    """Many have commas, and where no GPU set came up none is counted."""
    out = io.StringIO()
    narrator = Narrator(Console(file=out, width=400))
    single = dict.fromkeys(SPACE) | {"algorithm": Held("none")}
    narrator.starts(plan(single, budget=Budget(launches=1)), RunDir(tmp_path / "run"), 0, [])
    assert "1 point in the grid, no GPU set is up, budget 1 launch\n" in out.getvalue()
    assert [counted(1, "launch"), counted(2160, "point")] == ["1 launch", "2,160 points"]


def terminal(**more: Any) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160, **more)


def shown(console: Console, narrator: Narrator) -> str:
    """What stands below the lines of a terminal."""
    assert narrator._view is not None
    with console.capture() as captured:
        console.print(narrator._view.picture())
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get())


def test_a_terminal_shows_what_each_gpu_set_does(tmp_path: Path) -> None:
    """Stage and time of what runs against what it usually takes, the best so far, launches, GPU-hours, and the time left with its basis."""
    console, run = terminal(), RunDir.at(tmp_path / "run")
    narrator = Narrator(console)
    narrator.starts(plan(budget=Budget(launches=8), workload=Workload(concurrency=[8])), run, 2, [])
    narrator.tell(measured(PLAIN, 100.0, trial=0), launches=1)
    narrator.tell(measured(EAGLE3, 150.0, trial=1), launches=2)
    narrator.tell(TrialEnded(1, complete=True, held_s=72.0, gpus=("1",)), launches=2)
    run.begin(Trial(3, WIDE, "trial", (LoadPoint(8, 0),)))
    log = run.server_log("000003")
    log.parent.mkdir(parents=True)
    log.write_text("Load weight begin. avail mem=78.00 GB\n")
    narrator.tell(Launched(3, "here", 1, "marker", ("0",)), launches=4)
    text = shown(console, narrator)
    run.amend(3, ready_at=datetime.now(UTC).isoformat())
    narrator.tell(Progress(3, Stage.SERVING), launches=4)
    assert "measuring 1 of 1" in shown(console, narrator)
    narrator.close()
    (line,) = [line for line in text.splitlines() if line.startswith("0 ")]
    assert re.fullmatch(rf"0 +3 +{re.escape(str(WIDE))} +weights +\d s +60 s *", line)
    assert f"concurrency   8: 1.50x the plain server, best so far {EAGLE3}" in text
    assert "4/8 launches, 0.02 GPU-hours" in text
    assert "left (4 launches left and 1 running, 72 s each (median of 1), 2 at once)" in text


def test_a_narrow_terminal_keeps_what_matters(tmp_path: Path) -> None:
    """Forty letters and eight GPUs: everything stands there whole, and no line is broken within a word."""
    console, run = Console(file=io.StringIO(), force_terminal=True, width=40), RunDir.at(tmp_path / "run")
    narrator = Narrator(console)
    narrator.starts(
        plan(budget=Budget(launches=8)), run, 2, [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 150.0, trial=1)]
    )
    run.begin(Trial(3, WIDE, "trial", (LoadPoint(8, 0),)))
    narrator.tell(Launched(3, "here", 1, "marker", tuple("01234567")), launches=4)
    run.amend(3, ready_at=datetime.now(UTC).isoformat())
    narrator.tell(Progress(3, Stage.SERVING), launches=4)
    narrator.tell(measured(EAGLE3, 150.0, trial=2, concurrency=32), launches=4)
    text = shown(console, narrator)
    narrator.close()
    told = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", console.file.getvalue()).replace("\r", "")  # type: ignore[attr-defined]
    lines = text.splitlines()
    assert any(re.fullmatch(r"0-7 EAGLE3 own +measuring 2 of 2 +\d s *", line) for line in lines), lines
    words = " ".join(text.split())
    assert f"concurrency 8: 1.50x the plain server, best so far {EAGLE3}" in words
    assert "concurrency 32: nothing" not in words
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 40
    begins = told.index("336 points")
    assert max(len(line.removeprefix("\x1b[?25l").rstrip()) for line in told[begins:].splitlines()) <= 40
    assert "concurrency 32: 150.0 tok/s, acceptance length 2.50" in " ".join(told.split())


def test_gpus_in_a_row_are_named_by_their_ends(tmp_path: Path) -> None:
    """Others each by its name."""
    console, run = terminal(), RunDir.at(tmp_path / "run")
    narrator = Narrator(console)
    narrator.starts(plan(), run, 2, [])
    for number, gpus in enumerate((("0", "1", "2", "3"), ("4", "6", "7"), ("8", "9"))):
        run.begin(Trial(number, WIDE, "trial", (LoadPoint(8, 0),)))
        narrator.tell(Launched(number, "here", 1, "marker", gpus), launches=1)
    text = shown(console, narrator)
    narrator.close()
    assert [line.split()[0] for line in text.splitlines() if str(WIDE) in line] == ["0-3", "4,6,7", "8,9"]


def test_what_cannot_be_read_is_not_shown_and_stops_nothing(tmp_path: Path) -> None:
    """A launch whose file in begun/ is gone."""
    console = terminal()
    narrator = Narrator(console)
    narrator.starts(plan(budget=Budget(launches=8)), RunDir(tmp_path / "run"), 2, [])
    narrator.tell(Launched(3, "here", 1, "marker", ("0",)), launches=4)
    assert "nothing runs just now" in shown(console, narrator)
    assert "4/8 launches" in shown(console, narrator)
    narrator.close()


def test_colours_are_left_out_where_a_person_wants_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR, as everywhere."""
    monkeypatch.setenv("NO_COLOR", "1")
    console = terminal()
    narrator = Narrator(console)
    narrator.starts(plan(), RunDir(tmp_path / "run"), 1, [])
    narrator.tell(failure(EAGLE3, trial=3), launches=1)
    narrator.close()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "failed" in written
    assert not re.search(r"\x1b\[(?:\d+;)*3[0-7]m", written)


def test_without_a_terminal_there_is_a_line_an_event(tmp_path: Path) -> None:
    """And nothing that moves."""
    out = io.StringIO()
    narrator = Narrator(Console(file=out, width=400))
    narrator.starts(plan(), RunDir(tmp_path / "run"), 1, [])
    narrator.tell(measured(EAGLE3, 150.0, trial=2), launches=1)
    narrator.close()
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 3
