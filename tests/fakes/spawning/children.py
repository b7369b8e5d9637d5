"""What the children of the fake server run."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

IMPORTED_BY = {"pid": os.getpid(), "parent": os.getppid(), "colour": os.environ.get("COLOUR")}
"""As it was when this module was imported."""


def facts() -> dict[str, Any]:
    """What one may ask a process about itself."""
    files = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            files[int(entry.name)] = str(entry.readlink())
    return {
        "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "cwd": str(Path.cwd()), "environment": dict(os.environ),
        "imported": IMPORTED_BY, "files": files, "argv": sys.argv, "main": sys.modules["__main__"].__name__,
        "seen": Path("/proc/self/environ").read_bytes().decode().split("\0"),
    }  # fmt: skip


def run_worker(answer: Connection, _word: Path) -> None:
    answer.send(facts())
    answer.close()
    time.sleep(600)


def run_other(answer: Connection, word: Path) -> None:
    run_worker(answer, word)
