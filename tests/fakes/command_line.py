"""The product's command line as a person uses it: real processes, ended only if they are ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from results.rundir import RunDir

ROOT = Path(__file__).parents[2]
SMALL = (
    "conf=demo", "workload.concurrency=[1,4]", "workload.output_tokens=12", "workload.requests_per_stream=1",
    "sampler.seed=7",
)  # fmt: skip
"""A demo sweep whose load points take a fraction of a second."""


def orchestrator(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end."""
    argv = [sys.executable, "-m", "orchestrator", *map(str, words)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, **more)  # type: ignore[call-overload,no-any-return]


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A verb running in a process group of its own; killed at the end if it still runs."""
    argv = [sys.executable, "-m", "orchestrator", *map(str, words)]
    process = subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def until(condition: Callable[[], object], timeout_s: float = 90.0) -> None:
    """Wait for a condition; fails with it when the time is up."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {condition}"
        time.sleep(0.05)


def marked(run: Path) -> list[int]:
    """Processes that carry a marker of this run."""
    prefix = f"SPECULATION_SWEEP_MARKER={RunDir(run).marker}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if prefix in environment:
                found.append(int(entry.name))
    return found
