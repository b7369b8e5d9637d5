"""Finding and ending processes of ours by the marker in their environment.  Processes without it are never touched.

Not here: the guard that ends a server in the ordinary way (guard.py).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

MARKER = "SPECULATION_SWEEP_MARKER"
"""The environment variable that every process of a launch inherits: <run>/<trial>/<attempt>-<random>."""
OWNER = "SPECULATION_SWEEP_OWNER"
"""The environment variable that holds the pid of the worker that a launch belongs to."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a launch has; no process of it sees others."""
POLL_S = 0.05
WAIT_POLL_S = 0.25
"""Slower where others on this host may be measuring: each look reads the environment of every process."""
LEFTOVER_GRACE_S = 5.0
LEFTOVER_KILL_S = 10.0


def find_marked(marker: str) -> list[int]:
    """The pids of this user whose environment carries exactly this marker, this process excepted."""
    return [pid for pid, found in all_marked() if found == marker]


def find_orphans(run: str, gpus: Collection[str]) -> list[int]:
    """The pids of a run's servers and standbys whose worker is dead and which see any of these GPUs.

    Args:
        run: What the markers of the run begin with.
        gpus: As CUDA_VISIBLE_DEVICES names them; empty for a CPU engine: all of the run are meant.
    """
    return [
        pid
        for pid, variables in _marked_environments()
        if variables[MARKER].startswith(f"{run}/")
        and (not gpus or not set(gpus).isdisjoint(variables.get(VISIBLE, "").split(",")))
        and not _runs(variables.get(OWNER, ""))
    ]


def find_in_group(process_group: int) -> list[int]:
    """The pids in the session and process group that a server once founded, zombies excepted."""
    return [pid for pid in all_pids() if _session_and_group(pid) == (process_group, process_group)]


def is_stopped(pid: int) -> bool:
    """Whether nothing of a process runs: it is stopped or has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "TtZX"


def describe(pid: int) -> str:
    """For a person: `pid 4711 (python3)`."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = "gone"
    return f"pid {pid} ({name})"


def end(find: Callable[[], list[int]], grace_s: float, kill_s: float) -> list[int]:
    """End all that `find` finds, again and again: TERM, after `grace_s` KILL; returns what is left after `kill_s` more."""
    asked: set[int] = set()
    began = time.monotonic()
    while (pids := find()) and (waited_s := time.monotonic() - began) < grace_s + kill_s:
        if waited_s >= grace_s:
            _send(pids, signal.SIGKILL)
        else:
            _send([pid for pid in pids if pid not in asked], signal.SIGTERM)
            asked.update(pids)
        time.sleep(POLL_S)
    return pids


def wait_gone(find: Callable[[], list[int]], within_s: float, stopping: threading.Event) -> list[int]:
    """Wait until all has ended that `find` finds, again and again; returns what has not, in time or when a stop is asked for.

    What was found once is waited for to its end: a process loses its environment, and so its marker, before its GPU memory.
    """
    until = time.monotonic() + within_s
    seen: dict[int, str | None] = {}
    while True:
        seen |= {pid: _started(pid) for pid in find() if pid not in seen}
        left = [pid for pid, started in seen.items() if started and _started(pid) == started]
        if not left or time.monotonic() > until or stopping.wait(WAIT_POLL_S):
            return left


def clear_leftovers(marker_prefix: str) -> list[str]:
    """End what an earlier attempt left running on this host; returns what was found, in words.

    Args:
        marker_prefix: A run, or `<run>/<trial>`, or a whole marker.  Whole parts only: `runs/a` does not mean `runs/ab/1`.
    """
    prefix = marker_prefix.rstrip("/")
    if not prefix:
        raise ValueError("clear_leftovers needs the marker of a run: an empty prefix would mean every run on this host")
    seen: dict[int, str] = {}

    def find() -> list[int]:
        marked = {pid: found for pid, found in all_marked() if found == prefix or found.startswith(prefix + "/")}
        seen.update({pid: f"{describe(pid)} of {found}" for pid, found in marked.items() if pid not in seen})
        return list(marked)

    left = end(find, LEFTOVER_GRACE_S, LEFTOVER_KILL_S)
    return [words + (" (could not be ended)" if pid in left else "") for pid, words in seen.items()]


def all_marked() -> Iterator[tuple[int, str]]:
    """(pid, marker) of every other process of this user that carries one."""
    return ((pid, variables[MARKER]) for pid, variables in _marked_environments())


def _marked_environments() -> Iterator[tuple[int, dict[str, str]]]:
    """(pid, environment) of every other process of this user that carries a marker."""
    start = f"{MARKER}=".encode()
    for pid in all_pids():
        proc = Path(f"/proc/{pid}")
        try:
            if pid == os.getpid() or proc.stat().st_uid != os.geteuid():
                continue
            block = (proc / "environ").read_bytes()
        except OSError:
            continue  # it ended while we were looking
        if start in block:
            pairs = (variable.partition("=") for variable in block.decode(errors="replace").split("\0"))
            variables = {name: value for name, _, value in pairs}
            if MARKER in variables:
                yield pid, variables


def all_pids() -> Iterator[int]:
    """Of every process on this host, whoever it belongs to."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _runs(pid: str) -> bool:
    return pid.isdecimal() and _started(int(pid)) is not None


def _started(pid: int) -> str | None:
    """When, as the kernel counts, so that another process with its pid is told apart; None: it has ended, zombies too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _session_and_group(pid: int) -> tuple[int, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, _, group, session = stat.rpartition(")")[2].split()[:4]
    return None if state == "Z" else (int(session), int(group))


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
            if number == signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)  # a stopped process hears TERM only then
        except (ProcessLookupError, PermissionError):
            continue
