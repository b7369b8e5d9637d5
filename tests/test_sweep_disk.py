"""A disk that fills under a sweep: it ends with a message and the words to resume, and no setting is blamed for it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from results.driving import driver_of
from results.ledger import read_records
from results.rundir import RunDir
from tests.fakes.command_line import SMALL, orchestrator, started
from tests.fakes.disks import fill, mounted, read_only
from tests.fakes.processes import marked
from tests.fakes.waiting import wait_until

WORDS = ("sweep", *SMALL, "budget.launches=5", "budget.finalists=0")


def rows(run: Path) -> int:
    return len(list((run / "trials").glob("*.parquet"))) if (run / "trials").exists() else 0


def resumes_to_the_end(run: Path, before: int) -> None:
    """What was finished stays, the rest is measured, nothing twice, and no row is a failure."""
    done = orchestrator("resume", run)
    assert done.returncode == 0, done.stderr
    records = read_records(run)
    assert all(record.measured for record in records), [record.failure for record in records]
    keys = [record.key for record in records]
    assert len(keys) == len(set(keys)) == 5 * 2
    assert len(keys) >= before
    assert not marked(run)


def test_a_disk_that_fills_ends_the_sweep_with_the_words_to_resume(tmp_path: Path) -> None:
    """On a real file system that is filled while the sweep runs; with room again it goes on to the end."""
    with mounted(tmp_path / "disk", size_mib=300) as disk:
        run = disk / "run"
        with started(*WORDS, f"out={run}") as driver:
            wait_until(lambda: rows(run) > 1, "two rows", within_s=90)
            filler = fill(disk)
            _, said = driver.communicate(timeout=120)
        assert driver.returncode == 2, said
        assert "disk is full" in said
        assert f"python -m orchestrator resume {run}" in said
        assert "Traceback" not in said
        wait_until(lambda: not marked(run), "nothing of the run is left")
        finished = len(read_records(run))
        assert finished == len(pd.read_parquet(run / "trials")) > 0
        assert orchestrator("status", run).returncode == 0
        again = orchestrator("resume", run)
        assert again.returncode == 2
        assert "Traceback" not in again.stderr
        filler.unlink()
        resumes_to_the_end(run, finished)


def test_a_disk_without_room_from_the_start_is_refused(tmp_path: Path) -> None:
    """Before anything is launched, with both figures."""
    with mounted(tmp_path / "disk", size_mib=50) as disk:
        refused = orchestrator(*WORDS, f"out={disk / 'run'}")
        assert refused.returncode == 2
        assert "MiB are wanted" in refused.stderr
        assert not (disk / "run").exists()


def test_a_file_that_meets_a_full_disk_ends_the_sweep_cleanly(tmp_path: Path) -> None:
    """Where nothing can be mounted: the last trial's file in begun/ leads to a device that is always full."""
    run = tmp_path / "run"
    with started(*WORDS, f"out={run}") as driver:
        wait_until(lambda: rows(run) > 0, "a row", within_s=90)
        (run / "begun" / ".000004.json.tmp").symlink_to("/dev/full")
        _, said = driver.communicate(timeout=120)
    assert driver.returncode == 2, said
    assert "begun/000004.json: could not be written, the disk is full" in said
    assert f"python -m orchestrator resume {run}" in said
    assert "Traceback" not in said
    wait_until(lambda: not marked(run), "nothing of the run is left")
    resumes_to_the_end(run, len(read_records(run)))


def test_a_file_system_that_turns_read_only_ends_the_sweep_cleanly(tmp_path: Path) -> None:
    """As a kernel does after an error of the disk: one message; status still works; writable again, it goes on."""
    with mounted(tmp_path / "disk", size_mib=300) as disk:
        run = disk / "run"
        first = orchestrator("sweep", *SMALL, f"out={run}", "budget.launches=2", "budget.finalists=0")
        assert first.returncode in (0, 1), first.stderr
        read_only(disk)
        for verb in ("resume", "report"):
            refused = orchestrator(verb, run)
            assert refused.returncode == 2, refused.stdout
            assert "Read-only file system" in refused.stderr
            assert "Traceback" not in refused.stderr
        assert orchestrator("status", run).returncode == 0
        read_only(disk, on=False)
        assert orchestrator("resume", run, "budget.launches=5").returncode == 0
        assert driver_of(RunDir(run)) is None
