"""A guard ends what it started, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator.serving
from tests.fakes.waiting import runs, sleeping, wait_until

GUARD = Path(orchestrator.serving.__file__).with_name("guard.py")
SLEEP = ["/bin/sleep", "600"]
PARENT = """
import subprocess, sys, signal, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
if "leave" in sys.argv: sys.exit(7)
time.sleep(600)
"""


class GuardRun:
    """A guard as its owner sees it: a pipe to hold, events to read."""

    def __init__(self, folder: Path, argv: list[str], *words: str, **changes: object) -> None:
        self.log = folder / "server.log"
        spec = {
            "argv": argv,
            "environment": {"COLOUR": "blue"},
            "log": str(self.log),
            "cwd": str(folder),
            "stop_grace_s": 5.0,
            "deadline_s": None,
        } | changes
        life, self._keep = os.pipe()
        status, speak = os.pipe()
        command = [sys.executable, "-I", "-S", str(GUARD), *words]
        subprocess.run(command, stdin=life, stdout=speak, check=True)
        os.close(life)
        os.close(speak)
        self._events = os.fdopen(status)
        os.write(self._keep, json.dumps(spec).encode() + b"\n")

    def event(self, name: str) -> dict:
        """Wait for an event of this name."""
        return next(event for event in map(json.loads, self._events) if event["event"] == name)

    def rest(self) -> list[dict]:
        """All further events, up to the guard's end."""
        return [json.loads(line) for line in self._events]

    def close(self) -> None:
        if self._keep >= 0:
            os.close(self._keep)
        self._keep = -1

    def stop_reading(self) -> None:
        self._events.close()

    def logged_pid(self) -> int:
        wait_until(lambda: self.log.exists() and self.log.read_text().strip(), "the server logs its child's pid")
        return int(self.log.read_text())


@pytest.fixture
def started() -> Iterator[list[GuardRun]]:
    """Guards of a test; their pipes are closed at its end, so that none is left."""
    found: list[GuardRun] = []
    yield found
    for guard in found:
        guard.close()


@pytest.fixture
def guard(tmp_path: Path, started: list[GuardRun]):
    def run(argv: list[str], *words: str, **changes: object) -> GuardRun:
        started.append(GuardRun(tmp_path, argv, *words, **changes))
        return started[-1]

    return run


def test_closing_the_pipe_ends_the_server(guard) -> None:
    """When its pipe closes the server gets TERM, and the guard says done once nothing is left."""
    run = guard(SLEEP)
    server = run.event("started")
    run.close()
    assert run.event("done") == {"event": "done", "left": 0, "returncode": -signal.SIGTERM}
    assert not runs(server["pid"])


def test_server_leads_a_session_of_its_own(guard) -> None:
    """The server is the leader of its own session and process group, and the guard is in neither."""
    event = guard(SLEEP).event("started")
    assert os.getsid(event["pid"]) == os.getpgid(event["pid"]) == event["pid"] == event["process_group"]
    assert os.getsid(event["guard"]) not in (event["pid"], os.getsid(0))


def test_server_exits_by_itself(guard) -> None:
    """A server that exits is reported at once with its code, and what it left in other sessions is ended."""
    run = guard([sys.executable, "-c", PARENT, "leave"])
    assert run.event("exited")["returncode"] == 7
    child = run.logged_pid()
    assert run.rest()[-1] == {"event": "done", "left": 0, "returncode": 7}
    assert not runs(child)


def test_stubborn_server_and_its_child_in_another_session(guard) -> None:
    """P01: a server that ignores TERM is killed after the grace, with its descendants that called setsid."""
    run = guard([sys.executable, "-c", PARENT, "stubborn"], stop_grace_s=0.3)
    child = run.logged_pid()
    run.close()
    assert run.event("done")["returncode"] == -signal.SIGKILL
    assert not runs(child)


def test_stopped_server(guard) -> None:
    """A server frozen by SIGSTOP is woken to hear TERM."""
    run = guard(SLEEP)
    os.kill(run.event("started")["pid"], signal.SIGSTOP)
    run.close()
    assert run.event("done")["returncode"] == -signal.SIGTERM


def test_deadline(guard) -> None:
    """After its deadline the server is ended though its owner still holds the pipe."""
    run = guard(SLEEP, deadline_s=0.2)
    assert run.event("stopping")["why"] == "deadline"
    assert run.event("done")["left"] == 0


def test_watched_process_dies(guard) -> None:
    """The death of any watched process (a driver, a raylet) ends the server, also while it stays a zombie."""
    with sleeping() as other, sleeping() as watched:
        run = guard(SLEEP, "--watch", str(other.pid), "--watch", str(watched.pid))
        run.event("started")
        watched.kill()  # and nobody waits for it: a zombie
        assert run.event("stopping")["why"] == f"watched {watched.pid} died"
        assert run.event("done")["left"] == 0


def test_watched_process_is_already_gone(guard) -> None:
    """A watched process that died before the guard looked counts as dead."""
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert guard(SLEEP, "--watch", str(gone.pid)).event("done")["left"] == 0


def test_terminated_guard(guard) -> None:
    """TERM to the guard is a stop like any other."""
    run = guard(SLEEP)
    os.kill(run.event("started")["guard"], signal.SIGTERM)
    assert run.event("done")["left"] == 0


def test_killed_guard(guard) -> None:
    """If the guard itself is killed, the kernel kills the server."""
    run = guard(SLEEP)
    event = run.event("started")
    os.kill(event["guard"], signal.SIGKILL)
    assert run.rest() == []
    wait_until(lambda: not runs(event["pid"]), "the server follows its guard")


def test_nobody_listens(guard) -> None:
    """A guard does its work also when its owner is gone and nobody reads what it says."""
    run = guard(SLEEP)
    event = run.event("started")
    run.stop_reading()
    run.close()
    wait_until(lambda: not runs(event["pid"]) and not runs(event["guard"]), "server and guard are gone")


def test_cannot_start(guard) -> None:
    """What cannot be executed is reported, with the reason."""
    run = guard(["/no/such/interpreter", "-m", "server"])
    assert "/no/such/interpreter: [Errno 2]" in run.event("failed")["error"]
    assert run.rest() == []


def test_owner_dies_before_saying_what_to_start() -> None:
    """A guard that never gets its spec ends without starting anything."""
    guard = subprocess.run(
        [sys.executable, "-I", "-S", str(GUARD)], input=b'{"argv": ', stdout=subprocess.PIPE, check=True, timeout=20
    )
    assert guard.stdout == b""


def test_what_the_server_inherits(guard, tmp_path: Path) -> None:
    """The server gets the given environment and folder alone: no file of the guard (its pipe!), no ignored signal."""
    look = (
        "import json, os, signal;"
        "print(json.dumps([dict(os.environ), os.getcwd(), sorted(map(int, os.listdir('/proc/self/fd')))[:-1],"
        " [signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)], os.read(0, 1).decode()]))"
    )
    run = guard([sys.executable, "-I", "-S", "-c", look], environment={"COLOUR": "blue", "LC_CTYPE": "C.UTF-8"})
    assert run.event("done")["returncode"] == 0
    environment, folder, files, signals, stdin = json.loads(run.log.read_text())
    assert environment == {"COLOUR": "blue", "LC_CTYPE": "C.UTF-8"}
    assert (folder, files, stdin) == (str(tmp_path), [0, 1, 2], "")
    assert signals == ["SIG_DFL"] * 3


def test_environment_is_not_shown(guard) -> None:
    """What is in the server's environment stands in nobody's command line."""
    event = guard(SLEEP, environment={"TOKEN": "hush"}).event("started")
    for pid in (event["guard"], event["pid"]):
        assert b"hush" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_log_grows(guard, tmp_path: Path) -> None:
    """The log is appended to, standard output and standard error alike."""
    (tmp_path / "server.log").write_text("first\n")
    words = "import os; os.write(1, b'out\\n'); os.write(2, b'error\\n')"
    run = guard([sys.executable, "-S", "-c", words])
    run.event("done")
    assert run.log.read_text() == "first\nout\nerror\n"


def test_what_an_owner_says_after_the_spec_reaches_a_server_that_listens(tmp_path: Path) -> None:
    """Said at once with the spec or later; the server hears it on its standard input, and ends with its owner as ever."""
    echo = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"]
    guard = GuardRun(tmp_path, echo, listens=True)
    os.write(guard._keep, b"one\ntwo\n")
    wait_until(lambda: guard.log.exists() and guard.log.read_text() == "one\ntwo\n", "both lines are heard")
    os.write(guard._keep, b"three\n")
    wait_until(lambda: guard.log.read_text() == "one\ntwo\nthree\n", "the third, too")
    guard.close()
    assert guard.event("done")["left"] == 0


def test_a_server_that_does_not_listen_has_an_empty_standard_input(tmp_path: Path) -> None:
    """What its owner says does not reach it, and does no harm."""
    guard = GuardRun(
        tmp_path, [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()), flush=True); sys.exit(3)"]
    )
    os.write(guard._keep, b"one\n")
    assert guard.event("done")["returncode"] == 3
    assert guard.log.read_text() == "''\n"
