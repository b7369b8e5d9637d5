"""Cores of this host that this process may use, and how many of them nobody uses right now."""

from __future__ import annotations

import os
import time
from pathlib import Path

SAMPLE_S = 0.2
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def idle_cores(sample_s: float = SAMPLE_S) -> float:
    """Looks for `sample_s`; never more than the control group's quota leaves."""
    before = _idle_ticks()
    began = time.monotonic()
    time.sleep(sample_s)
    ticks_a_core = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK")
    idle = sum(max(0, now - then) for then, now in zip(before, _idle_ticks(), strict=True)) / ticks_a_core
    return min(idle, _allowed(len(before)))


def _idle_ticks() -> list[int]:
    """Of each core that this process may run on: ticks spent idle or waiting for a disk."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
    return [int(row[4]) + int(row[5]) for row in rows if row[0] in mine]


def _allowed(cores: int) -> float:
    """What the control group's quota comes to, in cores; `cores` where it has none."""
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else int(quota) / int(period)
