"""Waiting on a condition rather than on the clock."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {within_s:.0f} s"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def sleeping(**options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process called `sleep`, killed and waited for when the block ends, however it ends."""
    process = subprocess.Popen(["/bin/sleep", "600"], **options)
    try:
        # the kernel gives it its name a moment after the program was started
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "it is executed")
        yield process
    finally:
        process.kill()
        process.wait()
