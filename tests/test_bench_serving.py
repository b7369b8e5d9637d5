"""bench_serving in our client's stead; here a program of the same name and words, with the real one in tests/sglang_cpu."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.measuring import load
from orchestrator.measuring.bench_serving import BenchServing
from orchestrator.measuring.faults import HangError, MeasureError, Stopped
from orchestrator.measuring.load import measure
from orchestrator.measuring.workload import Draw
from orchestrator.plan import Workload
from results.measurement import Flag, Measurement
from results.rundir import RunDir
from sweeps.trial import LoadPoint
from tests.fakes.bench_program import FIGURES, placed
from tests.fakes.paced import paced
from tests.fakes.processes import marked
from tests.fakes.waiting import wait_until


def bench(folder: Path, figures: dict[str, Any], **environment: str) -> BenchServing:
    told = {**placed(folder, figures), "SPECULATION_SWEEP_MARKER": f"{RunDir(folder).marker}/1"}
    return BenchServing(sys.executable, {**os.environ, **told, **environment}, "/models/target")


def run(by: BenchServing, stopping: threading.Event | None = None) -> tuple[Measurement, tuple[Flag, ...]]:
    draw = Draw((("warm 0", "warm 1"), ("warm 2", "warm 3")), tuple(f"ask {n}" for n in range(8)))
    with paced(ttft_s=0.01, itl_s=0.001, chunks=4) as server:
        return measure(server.url, draw, Workload(concurrency=[2]), LoadPoint(2, 0), 20.0, stopping=stopping, bench=by)


def test_its_figures_stand_in_the_columns_that_mean_the_same(tmp_path: Path) -> None:
    """Median is p50; what it does not tell, or counts in another way, stays empty; warm-up and flush are ours."""
    measured, flags = run(bench(tmp_path, FIGURES))

    assert (measured.output_tok_s, measured.user_tok_s, measured.success_rate) == (400, 250, 1)
    assert (measured.ttft_p50_ms, measured.ttft_p99_ms, measured.tpot_p50_ms, measured.ttft_p90_ms) == (50, 80, 4, None)
    assert (measured.requests, measured.input_tokens, measured.output_tokens) == (8, 90, 800)
    assert (measured.acceptance_length, measured.itl_p50_ms) == (None, None)
    assert measured.warm_up_passes == 2
    assert Flag.CLIENT_BOUND not in flags


@pytest.mark.parametrize(("completed", "words"), [(0, "none of 8 requests"), (7, "88% of 8 requests")])
def test_too_few_answers_are_no_measurement(tmp_path: Path, completed: int, words: str) -> None:
    """Nine in ten must end well, whoever counts."""
    with pytest.raises(MeasureError, match=words):
        run(bench(tmp_path, {**FIGURES, "completed": completed}))


def test_one_that_comes_to_no_end_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the time of its requests one after the other, and some to start; then it is killed."""
    monkeypatch.setattr(load, "BENCH_START_S", -79.0)
    with pytest.raises(HangError, match=r"bench_serving came to no end within 1 s"):
        run(bench(tmp_path, FIGURES, HANG="1"))
    wait_until(lambda: not marked(tmp_path), "it is gone")


def test_a_stop_ends_it_too(tmp_path: Path) -> None:
    """It may run for minutes; when the sweep is stopped, nothing of it is left."""
    stopping = threading.Event()
    hanging = bench(tmp_path, FIGURES, HANG="1")

    def stop_once_it_runs() -> None:
        try:
            wait_until(lambda: bool(marked(tmp_path)), "bench_serving runs")
        finally:
            stopping.set()

    watcher = threading.Thread(target=stop_once_it_runs)
    watcher.start()
    with pytest.raises(Stopped):
        run(hanging, stopping)
    watcher.join()
    assert not marked(tmp_path)
