"""A sweep that is killed, interrupted or refused: nothing finished is lost or measured twice, nothing is left running."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from orchestrator.serving.processes import all_marked
from results.driving import lock
from results.journal import unfinished
from results.ledger import read_records
from results.rundir import RunDir
from tests.fakes.command_line import SMALL, orchestrator, started
from tests.fakes.processes import marked
from tests.fakes.waiting import wait_until


def points(run: Path) -> Counter[object]:
    return Counter(record.key for record in read_records(run) if record.measured)


def files(run: Path) -> int:
    return len(list((run / "trials").glob("*.parquet"))) if (run / "trials").exists() else 0


def test_killed_three_times_and_resumed_every_point_is_there_exactly_once(tmp_path: Path) -> None:
    """kill -9 of the driver in the middle, three times: no point lost, none twice, no server left behind."""
    run = tmp_path / "killed"
    words: tuple[object, ...] = ("sweep", *SMALL, f"out={run}", "budget.launches=8", "budget.finalists=2")
    before: Counter[object] = Counter()
    for kills in range(3):
        seen = files(run)
        with started(*words) as driver:
            wait_until(lambda seen=seen: files(run) > seen, "another row", within_s=90)  # type: ignore[misc]
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
        wait_until(lambda: not marked(run), "nothing of the run is left")
        now = points(run)
        assert not before - now, f"lost after kill {kills + 1}"
        before = now
        words = ("resume", run)
    done = orchestrator("resume", run)
    assert done.returncode == 0, done.stderr
    final = points(run)
    assert not before - final
    assert set(final.values()) == {1}
    assert len(final) == 8 * 2
    assert not marked(run)


def test_a_killed_raylet_ends_no_sweep_in_a_verdict(tmp_path: Path) -> None:
    """kill -9 of our own Ray's raylet: servers are gone, what runs is no finished trial, and a resume measures the rest."""
    run = tmp_path / "headless"
    with started("sweep", *SMALL, f"out={run}", "budget.launches=6", "budget.finalists=0") as driver:
        wait_until(lambda: files(run) > 0, "a row", within_s=90)
        (raylet,) = [child for child in psutil.Process(driver.pid).children() if child.name() == "raylet"]
        raylet.kill()
        _, said = driver.communicate(timeout=120)
    assert driver.returncode not in (0, 1), said
    wait_until(lambda: not marked(run), "nothing of the run is left")
    before = points(run)
    done = orchestrator("resume", run)
    assert done.returncode == 0, done.stderr
    assert not before - points(run)
    assert set(points(run).values()) == {1}
    assert len(points(run)) == 6 * 2


def test_a_standby_that_waits_is_gone_with_its_driver(tmp_path: Path) -> None:
    """kill -9 of a driver while a standby waits beside a server that is measured: nothing of the run is left."""
    run = tmp_path / "standing-by"
    with started("sweep", *SMALL, f"out={run}", "budget.launches=6", "engine.launch_mode=standby") as driver:
        waits = f"{RunDir(run).marker}/standby/"
        wait_until(
            lambda: files(run) > 0 and any(marker.startswith(waits) for _, marker in all_marked()), "a standby", within_s=90
        )  # fmt: skip
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate(timeout=60)
    wait_until(lambda: not marked(run), "nothing of the run is left", within_s=10)


def test_ctrl_c_finishes_the_load_point_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """SIGINT: exit 130 with the words to resume; more budget on the resume is used."""
    run = tmp_path / "interrupted"
    with started("sweep", *SMALL, f"out={run}", "budget.launches=6", "budget.finalists=0") as driver:
        wait_until(lambda: files(run) > 0, "a row", within_s=90)
        os.kill(driver.pid, signal.SIGINT)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "ended: interrupted." in said
    assert unfinished(RunDir.open(run).journal.events()) == "interrupted"
    assert "**Not finished**, the sweep was interrupted" in (run / "summary.md").read_text()
    assert f"resume {run}" in said
    assert not marked(run)
    before = points(run)
    done = orchestrator("resume", run, "budget.launches=7")
    assert done.returncode == 0, done.stderr
    assert unfinished(RunDir.open(run).journal.events()) is None
    assert "Not finished" not in (run / "summary.md").read_text()
    assert not before - points(run)
    assert set(points(run).values()) == {1}
    assert len(RunDir.open(run).begun()) == 7


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    done = orchestrator("sweep", *SMALL, f"out={run}", "budget.launches=3", "budget.finalists=0")
    assert done.returncode == 0, done.stderr
    return run


def test_a_finished_run_says_what_to_do_and_how(finished: Path) -> None:
    """Verdict, summary, best.yaml that runs again, a launch script, a journal, the plan."""
    summary = (finished / "summary.md").read_text()
    assert summary.startswith("**simulated")
    assert "not launched: 2,182 duplicates, " in summary  # case S03
    assert os.access(finished / "launch.sh", os.X_OK)
    assert json.loads((finished / "environment.json").read_text())["engine_version"] == "0.5.17 (demo)"
    again = orchestrator("plan", f"conf={finished / 'best.yaml'}")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting_up_ends_resumable_too(tmp_path: Path, number: signal.Signals) -> None:
    """Ray is not up yet: the driver still ends with 130 and the words to resume, and leaves nothing behind."""
    run = tmp_path / "early"
    with started("sweep", *SMALL, f"out={run}", "budget.launches=3", "budget.finalists=0") as driver:
        journal = run / "events.jsonl"
        wait_until(lambda: journal.exists() and "ray_started" in journal.read_text(), "Ray has started", within_s=90)
        os.kill(driver.pid, number)
        _, said = driver.communicate(timeout=90)
    assert driver.returncode == 130, said
    assert f"resume {run}" in said
    assert "Traceback" not in said
    assert not marked(run)
    (event,) = [e for e in RunDir.open(run).journal.events() if e["event"] == "ray_started"]
    assert not Path(event["folder"]).exists()
    assert json.loads(orchestrator("status", run, "--json").stdout)["state"] == "interrupted"


def test_a_changed_space_is_refused_with_the_difference(finished: Path) -> None:
    """A resume may not change what was searched."""
    refused = orchestrator("resume", finished, "space.eagle_topk=[1,8]")
    assert refused.returncode == 2
    assert "space.eagle_topk" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_sweep_into_a_run_directory_is_refused_and_names_resume(finished: Path) -> None:
    """Nothing is written over."""
    refused = orchestrator("sweep", *SMALL, f"out={finished}")
    assert refused.returncode == 2
    assert f"resume {finished}" in refused.stderr


def test_a_run_that_is_driven_refuses_a_second_driver(finished: Path) -> None:
    """The message names who drives it."""
    with lock(RunDir.open(finished)):
        refused = orchestrator("resume", finished)
    assert refused.returncode == 2
    assert f"process {os.getpid()}" in refused.stderr


def test_status_is_read_from_the_files_alone(finished: Path) -> None:
    """Of a run that nobody drives."""
    facts = json.loads(orchestrator("status", finished, "--json").stdout)
    assert (facts["state"], facts["driver"]) == ("finished", None)
    assert (facts["trials_begun"], facts["trials_over"], facts["points_measured"]) == (3, 3, 6)
    assert all(begun.ready_at and begun.ready_at > begun.started_at for begun in RunDir.open(finished).begun())


def test_all_trials_failing_ends_with_the_causes_and_exit_1(tmp_path: Path) -> None:
    """No verdict: the table of causes, no traceback."""
    run = tmp_path / "failing"
    done = orchestrator("sweep", *SMALL, f"out={run}", "budget.launches=2", "budget.finalists=0", "server_args.sim_fault=crash:weights")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "crash_start" in (run / "summary.md").read_text()
