"""A program of the name and words of sglang.bench_serving that tells figures given beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIGURES = {
    "completed": 8, "output_throughput": 400.0, "total_input_tokens": 90, "total_output_tokens": 800, "concurrency": 1.9,
    "mean_ttft_ms": 51.0, "median_ttft_ms": 50.0, "p99_ttft_ms": 80.0, "mean_tpot_ms": 5.0, "median_tpot_ms": 4.0,
}  # fmt: skip
PROGRAM = """
import argparse, json, os, sys, time
words = argparse.ArgumentParser()
words.add_argument("--output-file")
given, rest = words.parse_known_args()
print("asked with", rest)
if os.environ.get("HANG"):
    time.sleep(60)
open(given.output_file, "w").write(os.environ["FIGURES"])
"""


def placed(folder: Path, figures: dict[str, Any]) -> dict[str, str]:
    """Puts it into `folder`; the environment in which `python -m sglang.bench_serving` is this program."""
    (folder / "sglang").mkdir()
    (folder / "sglang" / "bench_serving.py").write_text(PROGRAM)
    return {"FIGURES": json.dumps(figures), "PYTHONPATH": str(folder)}
