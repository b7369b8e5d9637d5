"""A Ray cluster of our own: its folder, how it is brought up, and what a killed driver leaves of it.

Not here: Ray itself, which only pool.py imports, and clusters that others run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.errors import MachineError
from results.rundir import RunDir

FOLDER = "sweep-"
"""What its folder in the temporary folder begins with; tempfile adds eight of [a-z0-9_]."""
NOT_UP = "timed out during startup"
"""Ray's words (_private/node.py) for a node that is not up after 30 s."""


def new_folder(run: RunDir) -> Path:
    """In the temporary folder, and named in the run's journal, so that a later driver finds it."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    run.journal.note("ray_started", folder=str(folder))
    return folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def clear_folders(run: RunDir) -> None:
    """Remove what killed drivers of this run left of their Ray clusters; only for the process that holds the run's lock."""
    for event in run.journal.events():
        folder = Path(event.get("folder", "")) if event["event"] == "ray_started" else None
        if folder is not None and folder.name.startswith(FOLDER) and folder.parent == Path(tempfile.gettempdir()):
            remove(folder)


def asked_twice(begun: Callable[[], object]) -> None:
    """Begin a Ray of our own: it gives its first processes 30 s, which a machine with much to do may not have.

    What a first try that came to nothing had started is ended before the second.

    Raises:
        MachineError: it did not come up the second time either.
    """
    before = set(psutil.Process().children(recursive=True))
    for _ in range(2):
        try:
            begun()
        except Exception as error:  # Ray raises the bare class
            if NOT_UP not in str(error):
                raise
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.Error):
                    process.kill()
        else:
            return
    load = os.getloadavg()[0]
    raise MachineError(
        f"Ray did not come up within its 30 s, twice: this machine has too much to do (load average {load:.0f}). "
        "Try again when it has less, or name a cluster that runs: cluster.address=…"
    )
