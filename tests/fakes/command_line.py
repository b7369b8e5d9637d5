"""The product's command line as a person uses it: real processes, ended only if they are ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
