"""Standing: how far a sweep is, the same from memory and from files, also of a sweep that died."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.config import load_plan, to_yaml
from orchestrator.errors import RunDirError
from orchestrator.leaders import best_so_far
from orchestrator.plan import Budget, Workload
from orchestrator.reading import standing_facts, status_lines
from orchestrator.rows import row_of, rows_of
from orchestrator.standing import Usual, duration, running, time_left
from orchestrator.stored import stored_plan
from results.begun import read_begun
from results.driving import lock
from results.files import RunDirProblem
from results.ledger import Ledger, read_tables
from results.measurement import Flag
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from sweeps.observation import Goal
from sweeps.trial import LoadPoint, Trial
from tests.fakes.command_line import ROOT
from tests.fakes.plans import plan
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, WIDE, failure, measured

POINTS = (LoadPoint(1, 0), LoadPoint(8, 0), LoadPoint(32, 0))
RECORDS = [
    *(measured(PLAIN, 100.0 * point.concurrency, trial=0, concurrency=point.concurrency) for point in POINTS),
    *(measured(EAGLE3, 150.0 * point.concurrency, trial=1, concurrency=point.concurrency) for point in POINTS[:2]),
    failure(WIDE, trial=2),
]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """The plain server is over, a speculative one measured two points of three, and another failed for good."""
    run = RunDir.at(tmp_path / "run")
    run.plan.write_text(f"# conf: demo\n{to_yaml(load_plan(['conf=demo', 'budget.launches=12']))}")
    run.journal.note("sweep_started", conf="demo")
    ledger = Ledger(run)
    for number, settings in enumerate((PLAIN, EAGLE3, WIDE)):
        run.begin(Trial(number, settings, "trial", POINTS))
        run.journal.note("launched", trial=number, gpus=["0"], host="here")
    for record in RECORDS:
        ledger.append(record)
    run.journal.note("trial_ended", trial=0, held_s=90.0, gpus=["0"], complete=True)
    run.journal.note("trial_ended", trial=2, held_s=30.0, gpus=["0"], complete=True)
    return run


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """The lines that the command line prints on a terminal so wide."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    said = b""
    with subprocess.Popen([sys.executable, "-m", "orchestrator", *words], cwd=ROOT, env=environment, stdout=its):
        os.close(its)
        with suppress(OSError):  # the terminal's other end is closed: all was read
            while chunk := os.read(ours, 4096):
                said += chunk
    os.close(ours)
    return said.decode().splitlines()


def facts(run: RunDir) -> dict[str, object]:
    return standing_facts(load_plan(["conf=demo", "budget.launches=12"]), run)


def test_a_dead_sweep_is_read_from_its_files(run: RunDir) -> None:
    """What was begun, is over, failed and was measured, and how to go on."""
    found = facts(run)
    counts = ("trials_begun", "trials_over", "trials_unfinished", "trials_failed", "points_measured")
    assert [found[name] for name in counts] == [3, 2, 1, 1, 5]
    assert (found["state"], found["running"], found["left_s"]) == ("interrupted", [], None)
    assert found["next"] == f"python -m orchestrator resume {run.path}"
    best = {"concurrency": 8, "settings": str(EAGLE3), "speedup": pytest.approx(1.5), "nothing": None}
    assert found["best"][1] == best  # type: ignore[index]
    assert json.loads(json.dumps(found)) == found


def test_without_a_journal_the_state_is_unknown(run: RunDir) -> None:
    """Whether the sweep ended is written there alone; all else is known from the rows."""
    run.journal.path.unlink()
    found = facts(run)
    assert (found["state"], found["points_measured"]) == ("unknown", 5)
    assert any("state              unknown (events.jsonl is missing" in line for line in status_lines(found))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "plan.yaml: is missing. "),
        ("a: [", "plan.yaml: cannot be read (line 1, column 5: not YAML: expected the node content, but found '<stream end>'). "),
        ("[]", "plan.yaml: is no config (it holds no keys). "),
    ],
)  # fmt: skip
def test_a_run_without_its_config_is_not_sent_in_a_circle(run: RunDir, text: str | None, what: str) -> None:
    """It can be neither judged nor resumed; where the rows are and what takes them up is said, and the directory is no place
    for another sweep."""
    run.plan.unlink() if text is None else run.plan.write_text(text)
    with pytest.raises(RunDirError) as caught:
        stored_plan(run, to_run=False)
    assert what in str(caught.value)
    assert f"The rows of 3 launches are in {run.trials_dir}" in str(caught.value)
    assert f"warm_start=[{run.path}]" in str(caught.value)
    if text is None:
        with pytest.raises(RunDirProblem, match=r"cannot be resumed. Name a new directory; warm_start="):
            RunDir.at(run.path)


def test_a_live_sweep_shows_what_runs_and_what_is_left(run: RunDir) -> None:
    """The trial that was launched and has not ended, with its load points, and the time left with its basis."""
    with lock(run):
        found = facts(run)
        (one,) = found["running"]  # type: ignore[misc]
        assert (one["trial"], one["gpus"], one["settings"]) == (1, ["0"], str(EAGLE3))
        assert found["left_basis"] == "9 launches left and 1 running, 60 s each (median of 2), 1 at once"
        assert found["left_s"] == 570
        text = "\n".join(status_lines(found))
    assert f"GPU 0: trial 1 {EAGLE3}" in text
    assert "time left          about 10 min (9 launches left" in text
    assert f"process {os.getpid()}" in text


def test_the_stage_of_a_launch_is_read_from_its_server_s_log(run: RunDir) -> None:
    """Also from another machine: the log lies in the run directory."""
    run.begin(Trial(3, PUBLIC, "trial", POINTS))
    run.journal.note("launched", trial=3, gpus=["1"], host="here")
    log = run.server_log("000003")
    log.parent.mkdir(parents=True)
    log.write_text("server_args=ServerArgs(...)\nLoad weight begin. avail mem=78.00 GB\n")
    with lock(run):
        stages = {one["trial"]: one["stage"] for one in facts(run)["running"]}  # type: ignore[attr-defined]
    assert stages[3] == "weights"


def test_time_in_a_stage_is_told_against_what_it_usually_takes(run: RunDir) -> None:
    """Since the launch until its server is ready; then since that or the last load point, against the median of this one."""
    rows, asked = [row_of(record, Goal()) for record in RECORDS], plan(workload=Workload(concurrency=[1, 8, 32]))
    usual = Usual.of(rows)
    assert (usual.launch_s, usual.point_s) == (60.0, {1: 20.0, 8: 20.0, 32: 20.0})
    begun = read_begun(run.begun_file(1))
    now = begun.started_at + timedelta(seconds=35)
    one = running(begun, rows, ["0"], "weights", asked, now, usual)
    assert (one.stage, one.for_s, one.usual_s) == ("weights", pytest.approx(35), 60.0)
    run.amend(1, ready_at=now.isoformat())
    one = running(read_begun(run.begun_file(1)), [], ["0"], "serving", asked, now + timedelta(seconds=17), usual)
    assert (one.stage, one.for_s, one.usual_s) == ("measuring 1 of 3", pytest.approx(17), 20.0)
    later = [row._replace(started_s=now.timestamp()) for row in rows]
    one = running(begun, later, ["0"], "serving", asked, now + timedelta(seconds=27), usual)
    assert (one.stage, one.for_s, one.usual_s) == ("measuring 3 of 3", pytest.approx(7), 20.0)
    whole = [*later, later[-2]._replace(point=POINTS[2])]
    one = running(begun, whole, ["0"], "serving", asked, now + timedelta(seconds=27), usual)
    assert (one.stage, one.usual_s) == ("stopping", None)


def test_a_resumed_trial_is_at_the_load_point_that_it_measures(run: RunDir) -> None:
    """What an earlier launch of it measured counts as done, and the time is that of the point which comes next."""
    asked, earlier = plan(workload=Workload(concurrency=[1, 8, 32])), [row_of(record, Goal()) for record in RECORDS]
    run.begin(Trial(1, EAGLE3, "trial", POINTS[2:], attempt=2))
    begun = read_begun(run.begun_file(1))
    now, usual = begun.started_at + timedelta(seconds=40), Usual(60.0, {1: 10.0, 8: 20.0, 32: 30.0})
    assert running(begun, earlier, ["0"], "weights", asked, now, usual).stage == "weights"
    begun = dataclasses.replace(begun, ready_at=now)
    one = running(begun, earlier, ["0"], "serving", asked, now + timedelta(seconds=27), usual)
    assert (one.stage, one.for_s, one.usual_s) == ("measuring 3 of 3", pytest.approx(27), 30.0)


def test_rows_from_files_and_from_memory_are_the_same(run: RunDir) -> None:
    """So the live view and status agree."""
    goal = Goal(limits={"ttft_p50_ms": 50.0})
    assert rows_of(read_tables(run), goal) == [row_of(record, goal) for record in RECORDS]


def test_the_best_so_far_keeps_the_limits_and_leaves_out_flagged_rows() -> None:
    """As the verdict would."""
    fast = measured(WIDE, 900.0, trial=3, ttft_p50_ms=80.0)
    flagged = measured(PUBLIC, 800.0, trial=4, flags=(Flag.GRAPH_FALLBACK,))
    records, goal = [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 150.0, trial=1), fast, flagged], Goal(limits={"ttft_p50_ms": 50.0})  # fmt: skip
    (best,) = best_so_far([row_of(record, goal) for record in records], goal)
    assert (best.speculative, best.speedup) == (EAGLE3.key, pytest.approx(1.5))


def test_that_nothing_speculative_may_win_is_told_from_nothing_measured() -> None:
    """With the limits that are broken, or that it is flags which bar the rows; so far there may be others."""
    goal, plain = Goal(limits={"ttft_p50_ms": 50.0}), measured(PLAIN, 100.0, trial=0)
    slow, flagged = measured(WIDE, 900.0, trial=1, ttft_p50_ms=80.0), measured(PUBLIC, 800.0, trial=2, flags=(Flag.GRAPH_FALLBACK,))  # fmt: skip

    def nothing(*records: Record) -> str:
        (best,) = best_so_far([row_of(record, goal) for record in records], goal)
        assert (best.speculative, best.speedup) == (None, None)
        return best.nothing

    assert nothing(plain) == "nothing speculative measured yet"
    why = "ttft_p50_ms is above its limit 50"
    assert nothing(plain, slow, flagged) == f"no speculative setting may win so far, 2 measured ({why})"
    assert nothing(plain, flagged) == "no speculative setting may win so far, 1 measured (flags bar their rows)"


def test_the_first_bound_of_a_budget_is_what_is_left() -> None:
    """Launches two at once, or hours, or GPU-hours of four GPUs; nothing is said of what nothing is known."""
    asked = plan(budget=Budget(launches=10, hours=1.0))
    left = time_left(asked, 4, [60.0, 60.0], 2, 0.9, 0.0)
    assert left is not None
    assert (left.seconds, left.basis) == (180.0, "6 launches left, 60 s each (median of 2), 2 at once")
    left = time_left(asked, 10, [60.0, 60.0], 2, 0.5, 0.0, at_work=2)
    assert left is not None
    assert (left.seconds, left.basis) == (60.0 / 2, "0 launches left and 2 running, 60 s each (median of 2), 2 at once")
    left = time_left(asked, 4, [60.0], 2, 0.99, 0.0)
    assert left is not None
    assert left.seconds == pytest.approx(36.0)
    assert time_left(plan(budget=Budget(launches=10)), 1, [], 2, 0.0, 0.0) is None


def test_durations_have_sensible_digits() -> None:
    """Seconds, minutes, hours."""
    assert [duration(one) for one in (4.4, 89, 600, 5399, 12_240)] == ["4 s", "89 s", "10 min", "90 min", "3.4 h"]


def test_a_run_that_never_launched_has_a_standing(tmp_path: Path) -> None:
    """Nothing is measured, nothing runs."""
    run = RunDir.at(tmp_path / "run")
    assert standing_facts(plan(), run)["points_measured"] == 0


def test_a_finished_run_names_the_best_that_its_report_names(run: RunDir) -> None:
    """The report judges by relaunches; the luckiest first launch is no best, and what breaks a limit neither."""
    more = [
        measured(PUBLIC, 176.0, trial=3, concurrency=1),
        measured(EAGLE3, 140.0, trial=4, launch=1, concurrency=1),
    ]
    records = [*RECORDS, *more]
    for record in more:
        Ledger(run).append(record)
    write_report(run, records, Goal(), {})
    run.journal.note("sweep_ended", interrupted=False)
    found = facts(run)
    assert [one["settings"] for one in found["best"]][:2] == [str(EAGLE3)] * 2  # type: ignore[attr-defined]
    assert found["best"][0]["speedup"] == pytest.approx(1.4)  # type: ignore[index]
    assert f"use                concurrency 1: {EAGLE3}, 1.40x the best plain server" in status_lines(found)


def test_a_finished_run_advises_what_its_verdict_advises(run: RunDir) -> None:
    """The plain server where it wins or nothing can be told, with how the best speculative setting fared; no answer where
    nothing meets the limits; and the verdict's own sentence."""
    slow = [measured(PUBLIC, 60.0 * point.concurrency, trial=3, concurrency=point.concurrency) for point in POINTS]
    run.journal.note("sweep_ended", interrupted=False)
    verdict = write_report(run, [*RECORDS[:3], *slow], Goal(), {})
    found = facts(run)
    first = {
        "concurrency": 1,
        "use": "plain server",
        "answer": "worse",
        "settings": str(PUBLIC),
        "speedup": 0.6,
        "nothing": None,
    }
    assert (found["verdict"], found["best"][0]) == (verdict.sentence, first)  # type: ignore[index]
    lines = list(status_lines(found))
    assert f"use                concurrency 1: plain server (worse: {PUBLIC}, 0.60x the best plain server)" in lines
    assert f"verdict            {verdict.sentence}" in lines
    write_report(run, [*RECORDS[:3], *slow], Goal(limits={"ttft_p50_ms": 1.0}), {})
    lines = list(status_lines(facts(run)))
    assert "use                concurrency 1: no answer (nothing meets ttft_p50_ms ≤ 1)" in lines
    write_report(run, [*RECORDS[:3], failure(WIDE, trial=2)], Goal(), {})
    lines = list(status_lines(facts(run)))
    assert "use                concurrency 1: plain server (no speculative setting was measured)" in lines


def test_a_narrow_terminal_breaks_no_word(run: RunDir) -> None:
    """The verb status on a terminal of forty columns: each line fits, and the words are those of a wide one; what is to be
    copied stays whole, and whoever reads a pipe gets a line a fact."""
    verdict = write_report(run, RECORDS, Goal(), {})
    run.journal.note("sweep_ended", interrupted=False)
    lines = on_a_terminal(40, "status", str(run.path))
    (after,) = [n for n, line in enumerate(lines) if line.startswith("verdict")]
    (until,) = [n for n, line in enumerate(lines) if line.startswith("next")]
    assert " ".join(" ".join(lines[after:until]).split()[1:]) == verdict.sentence
    assert max(len(line) for line in lines[after:until]) <= 40
    assert lines[until] == f"next               report: {run.report}"
    assert f"verdict            {verdict.sentence}" in status_lines(facts(run))


def test_the_best_so_far_is_judged_by_relaunches_too(run: RunDir) -> None:
    """An interrupted run says what its report would, not the mean with the launch that picked a setting; but a relaunch that
    looks slower than the plain server gives way to a setting that looks faster."""
    Ledger(run, RECORDS).append(measured(PUBLIC, 176.0, trial=3, concurrency=1))
    Ledger(run, RECORDS).append(measured(EAGLE3, 140.0, trial=4, launch=1, concurrency=1))
    assert (facts(run)["state"], facts(run)["best"][0]) == (
        "interrupted",
        {"concurrency": 1, "settings": str(EAGLE3), "speedup": pytest.approx(1.4), "nothing": None},
    )  # type: ignore[index]
    Ledger(run, RECORDS).append(measured(EAGLE3, 40.0, trial=5, launch=2, concurrency=1))
    assert facts(run)["best"][0]["settings"] == str(PUBLIC)  # type: ignore[index]
