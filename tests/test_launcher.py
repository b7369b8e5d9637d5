"""A launcher does imports ahead; what it starts is otherwise the server that `python -m` would have started."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.plan import Deadlines
from orchestrator.serving.processes import MARKER, find_marked
from orchestrator.serving.server import Launch, Server
from orchestrator.serving.standby import Standby
from tests.fakes.spawning.launches import IMPORTS, MARK, launch, overlapped, standby, told
from tests.fakes.waiting import runs, wait_until

DEADLINES = Deadlines(load_idle_s=60, load_s=120, request_s=20, stop_s=10)
ANY = {"pid", "parent", "group", "imported", "files", "seen", "cwd", "argv"}


@contextmanager
def ready(what: Launch, ahead: Standby | None = None) -> Iterator[Server]:
    with Server(what, DEADLINES, standby=ahead) as server:
        server.wait_ready()
        yield server
    assert server.stop().left_over == ()


def waiting(folder: Path, what: Launch, **spec: object) -> Standby:
    made = standby(folder, what, **spec)  # type: ignore[arg-type]
    assert made.wait_ready(threading.Event(), 60), made.last_words()
    return made


def said(what: Launch) -> list[str]:
    """What the launcher wrote of the children it handed over or had spawned."""
    lines = what.log.read_text().splitlines()
    return [
        line.removeprefix("launcher: ")
        for line in lines
        if line.startswith("launcher: ") and not line.endswith(": imported")
    ]


def in_mode(mode: str, folder: Path, *words: str) -> tuple[Launch, Standby | None]:
    folder.mkdir()
    plain = launch(folder, *words)
    return (overlapped(plain), None) if mode == "overlap" else (plain, waiting(folder, plain) if mode == "standby" else None)  # fmt: skip


@pytest.mark.parametrize("mode", ["overlap", "standby"])
def test_a_server_and_its_children_are_what_a_plain_start_makes_of_them(tmp_path: Path, mode: str) -> None:
    """Environment, working directory, arguments, main module, process group and open files; only the imports were earlier."""
    seen = {}
    for how in ("plain", mode):
        what, ahead = in_mode(how, tmp_path / how, "--children", "run_worker,run_other")
        with ready(what, ahead):
            seen[how] = [{**fact, "folder": what.log.parent} for fact in told(what.log)]
    for plain, ours in zip(seen["plain"], seen[mode], strict=True):
        was, now = (fact.get("child") or fact["main"] for fact in (plain, ours))
        assert {k: v for k, v in was.items() if k not in ANY} == {k: v for k, v in now.items() if k not in ANY}
        assert (was["cwd"], now["cwd"]) == (str(plain["folder"]), str(ours["folder"]))
        assert [word for word in was["argv"] if not word.isdigit()] == [
            word for word in now["argv"] if not word.isdigit()
        ]
        assert now["group"] == seen[mode][0]["main"]["pid"]
        assert f"{MARKER}={MARK}" in now["seen"]
        assert [now["files"][number] for number in "012"] == ["/dev/null", *[str(ours["folder"] / "server.log")] * 2]
        assert "main" in plain or len(now["files"]) <= len(was["files"])
    for child in seen[mode][1:]:
        assert child["child"]["pid"] == child["child"]["imported"]["pid"] == child["pid"]
        assert child["child"]["parent"] == seen[mode][0]["main"]["pid"]
        assert child["child"]["imported"]["colour"] == "blue"
    assert said(what) == ["worker: warm", "other: warm"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--sets", "OTHER=2"), "its environment was changed since it imported: OTHER, SETS"),
        (("--python", "wrapper"), "it is to run under "),
    ],
)
def test_where_an_import_may_have_read_something_else_a_child_is_spawned_as_ever(
    tmp_path: Path, words: tuple[str, str], why: str
) -> None:
    """Another environment, or another interpreter, as numactl's wrapper is one: cold, with the reason, and it serves."""
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    what = overlapped(launch(tmp_path, *(str(wrapper) if word == "wrapper" else word for word in words)))
    with ready(what):
        _, cold = told(what.log)
    assert [line.startswith(f"worker: cold, {why}") for line in said(what)] == [True]
    assert cold["child"]["imported"]["pid"] == cold["pid"]


def test_a_child_that_died_while_it_waited_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    """The server finds out when it wants to hand it its part; it serves all the same, and no zombie is left of the dead one."""
    what = launch(tmp_path)
    ahead = waiting(tmp_path, what)
    victim = next(pid for pid in ahead.pids() if b'"worker"' in Path(f"/proc/{pid}/cmdline").read_bytes() and b"gate" in Path(f"/proc/{pid}/cmdline").read_bytes())  # fmt: skip
    os.kill(victim, signal.SIGKILL)
    with ready(what, ahead):
        assert not psutil.pid_exists(victim)
    assert [line.startswith("worker: cold, the one begun ahead is gone") for line in said(what)] == [True]


def test_a_child_that_is_not_needed_does_not_stay(tmp_path: Path) -> None:
    """A server that spawns fewer processes than were begun ahead: the others end after their patience."""
    what = launch(tmp_path, "--children", "run_other")
    with ready(what, waiting(tmp_path, what, patience_s=0.2)) as server:
        first = psutil.Process(server.process_group)
        wait_until(
            lambda: len([c for c in first.children() if runs(c.pid)]) == 2,
            "one child, and multiprocessing's tracker",
        )


def test_a_child_whose_imports_fail_leaves_the_start_as_it_would_have_been(tmp_path: Path) -> None:
    """What cannot be imported ahead is not missed: the child is spawned as ever, and what it says is its own."""
    kinds = (dataclasses.replace(IMPORTS.kinds[0], imports=("no_such_module",)),)
    what = overlapped(launch(tmp_path), dataclasses.replace(IMPORTS, kinds=kinds))
    with ready(what):
        pass
    assert [line.startswith("worker: cold, the one begun ahead is gone") for line in said(what)] == [True]
    assert "No module named 'no_such_module'" in what.log.read_text()


def test_a_server_that_ends_at_once_leaves_no_child_behind(tmp_path: Path) -> None:
    """Arguments that it refuses: its exit code and its words are those of a plain start, and what waited is gone."""
    what = overlapped(launch(tmp_path, "--no-such-word"))
    with Server(what, DEADLINES) as server, pytest.raises(Exception, match="return code 2"):
        server.wait_ready()
    assert server.stop().left_over == ()
    assert "unrecognized arguments: --no-such-word" in what.log.read_text()
    assert find_marked(MARK) == []
