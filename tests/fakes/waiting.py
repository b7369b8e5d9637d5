"""Waiting on a condition rather than on the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


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
