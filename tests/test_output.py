"""Output that outlives its reader: an unattended sweep does not end with the terminal it was started from."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from results.rundir import RunDir
from tests.fakes.command_line import ROOT, SMALL
from tests.fakes.waiting import wait_until


def read_until(fd: int, words: bytes) -> None:
    """What is written to the other end of `fd`, up to these words."""
    said = b""
    while words not in said:
        said += os.read(fd, 4096)


def test_a_sweep_goes_on_when_what_it_talks_to_is_gone(tmp_path: Path) -> None:
    """An ssh session that dropped: exit 0, a verdict, and one line of the journal for each stream."""
    run = tmp_path / "run"
    ours, its = pty.openpty()
    words = [
        sys.executable,
        "-m",
        "orchestrator",
        "sweep",
        *SMALL,
        f"out={run}",
        "budget.launches=3",
        "budget.finalists=0",
    ]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True) as driver:  # fmt: skip
        os.close(its)
        read_until(ours, b"trial   0")
        os.close(ours)
        assert driver.wait(timeout=120) == 0
    events = RunDir.open(run).journal.events()
    assert {"<stderr>", "<stdout>"} == {e["stream"] for e in events if e["event"] == "output_lost"}
    assert [e["interrupted"] for e in events if e["event"] == "sweep_ended"] == [False]
    assert (run / "report.html").exists()


@pytest.mark.parametrize("words", [("plan", "conf=demo"), ("plan", "conf=demo", "--json"), ("doctor",), ("-h",)])
def test_an_answer_that_cannot_be_written_is_one_message(words: tuple[str, ...]) -> None:
    """On a full disk exit 2 and no traceback; for a reader who has seen enough, and where there is no output at all, exit 0."""
    argv = [sys.executable, "-m", "orchestrator", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "standard output could not be written (No space left on device).\n"
    assert (done.returncode, done.stderr) == (2, said)
    ours, its = os.pipe()
    os.close(ours)
    gone = subprocess.run(argv, cwd=ROOT, stdout=its, stderr=subprocess.PIPE, text=True, check=False)
    os.close(its)
    assert (gone.returncode, gone.stderr) == (0, "")


def test_a_mistake_that_cannot_be_told_is_one_all_the_same() -> None:
    """Exit 2, also where standard error is full."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "orchestrator", "swep"], cwd=ROOT, stderr=full, check=False)
    assert done.returncode == 2


def test_a_stop_is_heard_by_a_sweep_that_talks_to_nobody(tmp_path: Path) -> None:
    """SIGTERM after the tee died that it was piped into: exit 130 and a run that can be resumed."""
    run = tmp_path / "run"
    ours, its = os.pipe()
    words = [sys.executable, "-m", "orchestrator", "sweep", *SMALL, f"out={run}", "budget.launches=9"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True) as driver:  # fmt: skip
        os.close(its)
        read_until(ours, b"trial   0")
        os.close(ours)
        driver.terminate()
        assert driver.wait(timeout=120) == 130
    wait_until(lambda: RunDir.open(run).journal.events()[-1]["event"] == "sweep_ended", "it ended in order")
