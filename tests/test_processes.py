"""Processes of ours are known by their marker alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from orchestrator.serving.processes import (
    MARKER,
    OWNER,
    VISIBLE,
    describe,
    end,
    find_in_group,
    find_marked,
    find_orphans,
)
from tests.fakes.waiting import sleeping, wait_until

MARK = f"tests-{os.getpid()}/000002/1-77aa"


def test_marked() -> None:
    """The whole marker counts: a process with a longer one is not meant; one that has ended is not found."""
    with (
        sleeping(env={MARKER: MARK}) as ours,
        sleeping(env={MARKER: MARK + "0"}),
    ):
        assert find_marked(MARK) == [ours.pid]
        ours.kill()
        wait_until(lambda: find_marked(MARK) == [], "a zombie carries no marker")


def test_orphans() -> None:
    """Of one run and on these GPUs; whose worker lives is none.  Without a GPU those of the whole run are meant."""
    run, living = MARK.split("/")[0], str(os.getpid())
    with sleeping() as ended:
        pass
    dead = str(ended.pid)
    with (
        sleeping(env={MARKER: MARK, OWNER: dead, VISIBLE: "1,3"}) as ours,
        sleeping(env={MARKER: MARK, OWNER: living, VISIBLE: "3"}),
        sleeping(env={MARKER: f"{run}0/000002/1-77aa", OWNER: dead, VISIBLE: "3"}),
    ):
        assert find_orphans(run, ["3"]) == find_orphans(run, []) == [ours.pid]
        assert find_orphans(run, ["13"]) == []


def test_group() -> None:
    """A group is found by the session it founded, also without its leader; zombies do not count."""
    words = "import subprocess; subprocess.Popen(['/bin/sleep', '600'])"
    leader = subprocess.Popen([sys.executable, "-c", words], start_new_session=True)
    leader.wait()
    (member,) = find_in_group(leader.pid)
    assert member != leader.pid
    os.killpg(leader.pid, signal.SIGKILL)
    wait_until(lambda: find_in_group(leader.pid) == [], "the group is empty")


def test_end() -> None:
    """TERM first, KILL after the grace; what cannot be ended in time is returned."""
    with sleeping() as gentle:
        assert end(lambda: [] if gentle.poll() is not None else [gentle.pid], grace_s=20, kill_s=20) == []
        assert gentle.returncode == -signal.SIGTERM
    stubborn_words = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", stubborn_words], stdout=subprocess.PIPE) as stubborn:
        stubborn.stdout.readline()
        assert end(lambda: [] if stubborn.poll() is not None else [stubborn.pid], grace_s=0.2, kill_s=20) == []
        assert stubborn.returncode == -signal.SIGKILL
    assert end(lambda: [stubborn.pid], grace_s=0, kill_s=0.1) == [stubborn.pid]


def test_describe() -> None:
    """A process is named for a person, also when it has gone."""
    with sleeping() as process:
        assert describe(process.pid) == f"pid {process.pid} (sleep)"
    assert describe(process.pid) == f"pid {process.pid} (gone)"
