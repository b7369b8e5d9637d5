"""The product as a person starts it, for the tests with the real SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest

PROJECT = Path(__file__).resolve().parents[2]
CONF = PROJECT / "tests" / "sglang_cpu" / "conf.yaml"
ENGINES = PROJECT / ".engines"


@contextmanager
def product(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m orchestrator` with these words, in the project's folder; ended with the block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=PROJECT,
        env={**os.environ, "PWD": str(PROJECT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def finished(words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    with product(*words) as process:
        out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float) -> None:
    """Wait for a condition that `process` is to bring about."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if process.poll() is not None:
            pytest.fail(f"the sweep ended early with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:.0f} s in vain")
        time.sleep(0.1)


def new_run(folder: Path) -> Path:
    """A run directory whose name no other run has: processes are found by it."""
    return folder / f"run-{uuid.uuid4().hex[:8]}"


def rows_of(run: Path) -> pd.DataFrame:
    files = sorted((run / "trials").glob("*.parquet"))
    return pd.concat([pd.read_parquet(file) for file in files]) if files else pd.DataFrame()


def left_running(run: Path) -> list[str]:
    """Processes that carry the marker of a launch of this run."""
    found = []
    for process in psutil.process_iter():
        try:
            marker = process.environ().get("SPECULATION_SWEEP_MARKER", "")
        except psutil.Error:
            continue
        if marker.startswith(f"{run.name}-"):
            found.append(f"{process.pid} {process.name()} {marker}")
    return found
