"""Processes of a run that is being driven: found by its marker, or by the pipes they hold; none is touched here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.serving.processes import all_marked
from results.rundir import RunDir


def marked(run: Path) -> list[int]:
    """Processes that carry a marker of this run."""
    prefix = f"{RunDir(run).marker}/"
    return [pid for pid, marker in all_marked() if marker.startswith(prefix)]


def workers_of(driver: psutil.Process, server: psutil.Process) -> list[psutil.Process]:
    """The processes of a driver's Ray that own a server: its guard's standard input is a pipe that they hold.

    Raises:
        psutil.Error, OSError: something of it has ended while it was looked at.
    """
    guard = server.parent()
    if guard is None:
        return []
    pipe = Path(f"/proc/{guard.pid}/fd/0").readlink()
    raylets = [child for child in driver.children(recursive=True) if child.name() == "raylet"]
    return [worker for raylet in raylets for worker in raylet.children() if pipe in open_files(worker.pid)]


def open_files(pid: int) -> list[Path]:
    """What a process's descriptors lead to."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(descriptor.readlink())
    return found
