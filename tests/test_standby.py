"""A standby waits, stands still while it is held, becomes one server, and never outlives whoever made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.plan import Deadlines
from orchestrator.serving.processes import find_marked, is_stopped
from orchestrator.serving.server import Server
from orchestrator.serving.standby import Standby
from tests.fakes.command_line import ROOT
from tests.fakes.spawning.launches import MARK, RUN, launch, standby, told
from tests.fakes.waiting import runs, wait_until

DEADLINES = Deadlines(load_idle_s=60, load_s=120, request_s=20, stop_s=10)
OWNER = """
import sys, time
from pathlib import Path
from tests.fakes.spawning.launches import launch, standby
folder = Path(sys.argv[1])
made = standby(folder, launch(folder))
while not made.ready(): time.sleep(0.02)
if sys.argv[2] == "held": assert made.hold()
print(*made.pids(), flush=True)
time.sleep(600)
"""


def waiting(folder: Path) -> Standby:
    made = standby(folder, launch(folder))
    assert made.wait_ready(threading.Event(), 60), made.last_words()
    return made


def guard_of(made: Standby) -> psutil.Process:
    parents = {psutil.Process(pid).ppid() for pid in made.pids()}
    (guard,) = [psutil.Process(pid) for pid in parents if pid not in made.pids()]
    return guard


def test_a_held_standby_stands_still_and_becomes_a_server_all_the_same(tmp_path: Path) -> None:
    """Every process of it is stopped; told what to start it goes on, under the server's marker, in the server's log."""
    made = waiting(tmp_path)
    assert made.hold()
    stopped = made.pids()
    assert len(stopped) == 3
    assert all(is_stopped(pid) and runs(pid) for pid in stopped)

    what = launch(tmp_path)
    with Server(what, DEADLINES, standby=made) as server:
        assert server.wait_ready()["served_model_name"] == MARK
        assert server.from_standby
        assert server.process_group in stopped
        assert set(stopped[:2]) <= set(find_marked(MARK))
        assert find_marked(made.waiting.marker) == []
    assert server.stop().left_over == ()
    assert what.log.read_text().startswith("launcher: ")
    assert not made.waiting.log.exists()


def test_a_dropped_standby_is_gone(tmp_path: Path) -> None:
    """Held or not: nothing of it is left, and its log stays."""
    for held in (False, True):
        made = waiting(tmp_path)
        pids = made.pids()
        assert not held or made.hold()
        assert made.drop() == []
        assert not any(map(runs, pids))
        assert made.waiting.log.exists()


@pytest.mark.parametrize("state", ["waiting", "held"])
def test_a_standby_dies_with_its_owner(tmp_path: Path, state: str) -> None:
    """kill -9 of a worker whose standby waits, also one whose processes are stopped."""
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path, state], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 3
        owner.kill()
    wait_until(lambda: not any(map(runs, pids)), "nothing of the standby is left")


def end_guard(made: Standby) -> None:
    guard_of(made).kill()


def end_server(made: Standby) -> None:
    os.kill(guard_of(made).children()[0].pid, signal.SIGKILL)


@pytest.mark.parametrize(("strike", "held"), [(end_guard, True), (end_server, False)])
def test_a_standby_that_lost_a_part_is_gone_whole_and_the_launch_is_plain(
    tmp_path: Path, strike: Callable[[Standby], None], held: bool
) -> None:
    """kill -9 of its guard, or of the process that would be the server: the next server starts, as ever."""
    made = waiting(tmp_path)
    pids = made.pids()
    assert not held or made.hold()
    strike(made)
    wait_until(lambda: not any(map(runs, pids)) and not made.alive, "nothing of the standby is left")

    what = launch(tmp_path)
    with Server(what, DEADLINES, standby=made) as server:
        server.wait_ready()
        assert not server.from_standby
    assert server.stop().left_over == ()
    assert len(told(what.log)) == 2


def test_a_marker_that_does_not_fit_where_the_standby_s_stands_is_a_plain_launch(tmp_path: Path) -> None:
    """Processes are found by it, so it is rather not used at all."""
    made = waiting(tmp_path)
    long = f"{RUN}/000001/1-{'5' * 60}"
    with Server(launch(tmp_path, marker=long), DEADLINES, standby=made) as server:
        server.wait_ready()
        assert not server.from_standby
        assert len(find_marked(long)) >= 2
    assert server.stop().left_over == ()
    assert find_marked(made.waiting.marker) == []


def test_a_standby_whose_log_is_gone_is_dropped_and_the_launch_is_plain(tmp_path: Path) -> None:
    """A person tidied up, say: the server starts as any other, and nothing of the standby is left."""
    made, what = waiting(tmp_path), launch(tmp_path)
    made.waiting.log.unlink()
    with Server(what, DEADLINES, standby=made) as server:
        server.wait_ready()
        assert not server.from_standby
    assert server.stop().left_over == ()
    assert find_marked(made.waiting.marker) == []


def test_a_server_from_a_standby_dies_with_its_guard(tmp_path: Path) -> None:
    """The guard is the one that the standby had; its children, begun ahead, go with the server."""
    made = waiting(tmp_path)
    with Server(launch(tmp_path), DEADLINES, standby=made) as server:
        server.wait_ready()
        family = [server.process_group, *(c.pid for c in psutil.Process(server.process_group).children(recursive=True))]
        guard = psutil.Process(psutil.Process(server.process_group).ppid())
        guard.kill()
        wait_until(lambda: not any(map(runs, family)), "nothing of the server is left")
    assert server.stop().left_over == ()
