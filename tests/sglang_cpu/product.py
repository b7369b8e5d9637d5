"""The product as a person starts it, for the tests with the real SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

PROJECT = Path(__file__).resolve().parents[2]
CONF = PROJECT / "tests" / "sglang_cpu" / "conf.yaml"
ENGINES = PROJECT / ".engines"
SWEEP_S = 600
"""A sweep of some launches may take, on two busy cores."""


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


def new_run(folder: Path) -> Path:
    """A run directory whose name no other run has: processes are found by it."""
    return folder / f"run-{uuid.uuid4().hex[:8]}"


def rows_of(run: Path) -> pd.DataFrame:
    files = sorted((run / "trials").glob("*.parquet"))
    return pd.concat([pd.read_parquet(file) for file in files]) if files else pd.DataFrame()
