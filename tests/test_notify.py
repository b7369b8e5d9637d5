"""notify: a command hears how a sweep ended, and nothing that it does changes the sweep."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.config import changed, load_plan
from orchestrator.errors import ConfError
from orchestrator.notify import notify
from results.driving import lock
from results.rundir import RunDir
from tests.fakes.command_line import SMALL, orchestrator
from tests.fakes.waiting import wait_until

HEARS = (
    "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps([json.load(sys.stdin), os.environ['SWEEP_STATE']]))"
)


def hears(place: Path) -> list[str]:
    return [sys.executable, "-c", HEARS, str(place)]


def test_the_command_hears_the_facts(tmp_path: Path) -> None:
    """As JSON on its standard input and in its environment; odd characters come through, for no shell reads them."""
    run = RunDir(tmp_path / "run")
    notify(hears(tmp_path / "heard"), "finished", run, "Speculate; $(rm -rf /) `x` with 2.00×")
    facts, state = json.loads((tmp_path / "heard").read_text())
    assert facts == {"state": "finished", "run": str(run.path), "verdict": "Speculate; $(rm -rf /) `x` with 2.00×", "report": str(run.report)}  # fmt: skip
    assert state == "finished"


@pytest.mark.parametrize(
    ("command", "says"),
    [(["/no/such/program"], "could not be started"), ([sys.executable, "-c", "import sys; sys.exit('no mail')"], "no mail")],
)  # fmt: skip
def test_a_command_that_fails_is_a_warning(
    command: list[str], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with it."""
    with caplog.at_level(logging.WARNING):
        notify(command, "trouble", RunDir(tmp_path), "x")
    assert says in caplog.text


def test_it_is_a_list_of_arguments() -> None:
    """A line for a shell is refused, with how to write it."""
    assert load_plan(["conf=demo", "notify=[notify-send, done]"]).notify == ("notify-send", "done")
    with pytest.raises(ConfError, match=r"notify: 'mail me' is no list of arguments: write \[program, argument, …\]"):
        load_plan(["conf=demo", "notify=mail me"])


def test_a_resume_may_change_it() -> None:
    """It is no part of what is measured."""
    assert changed(load_plan(["conf=demo"]), load_plan(["conf=demo", "notify=[echo]"])) == []


def test_a_sweep_tells_how_it_ended(tmp_path: Path) -> None:
    """At its end, with its verdict; a resume that is refused is trouble."""
    heard = tmp_path / "heard"
    command = json.dumps(hears(heard))
    run = tmp_path / "run"
    done = orchestrator(
        "sweep", *SMALL, "space.attention_backend=fa3", "budget.launches=2", f"out={run}", f"notify={command}"
    )
    assert done.returncode == 0, done.stderr
    facts, _ = json.loads(heard.read_text())
    assert facts["state"] == "finished"
    assert facts["verdict"] in done.stdout
    with lock(RunDir(run)):
        assert orchestrator("resume", run).returncode == 2
    facts, _ = json.loads(heard.read_text())
    assert (facts["state"], "busy" in facts["verdict"]) == ("trouble", True)
    assert orchestrator("resume", run, "cluster.address=127.0.0.1:1").returncode == 2
    facts, _ = json.loads(heard.read_text())
    assert (facts["state"], "127.0.0.1:1 cannot be reached" in facts["verdict"]) == ("trouble", True)


def test_what_a_command_says_need_not_be_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no UTF-8 in its words are a warning like any other."""
    command = [sys.executable, "-c", "import sys; sys.stderr.buffer.write(b'bad \\xff byte'); sys.exit(3)"]
    with caplog.at_level(logging.WARNING):
        notify(command, "finished", RunDir(tmp_path), "x")
    assert "ended with 3: bad \ufffd byte" in caplog.text


def test_ctrl_c_while_the_command_runs_ends_it_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The verdict is reached by then."""
    started = tmp_path / "started"
    command = [sys.executable, "-c", "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)", str(started)]

    def press() -> None:
        wait_until(started.exists, "the command runs")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # whoever was started in the background ignores it
    thread = threading.Thread(target=press)
    thread.start()
    try:
        with caplog.at_level(logging.WARNING):
            notify(command, "finished", RunDir(tmp_path), "x")
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert "was ended by Ctrl-C" in caplog.text


def test_an_argument_that_no_program_can_be_given_is_refused() -> None:
    """A NUL character."""
    with pytest.raises(ConfError, match="holds a NUL character"):
        load_plan(["conf=demo", 'notify=[echo, "a\\0b"]'])
