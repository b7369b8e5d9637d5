"""Sweeps of the real SGLang through the command line: what a person sees who has no GPU but everything else.

One sweep is interrupted in the middle of its first launch and resumed; most tests look at what it left.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.fakes.processes import marked
from tests.fakes.waiting import wait_until
from tests.sglang_cpu.product import CONF, SWEEP_S, finished, new_run, product, rows_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

START_S = 240
POINT = ["settings_key", "launch", "workload", "concurrency", "repeat"]


@dataclass(frozen=True)
class Resumed:
    """A sweep that was interrupted and resumed."""

    run: Path
    interrupted: subprocess.CompletedProcess[str]
    left_after_interrupt: list[int]
    """Processes of the run that were alive then."""
    before: pd.DataFrame
    """Rows when it was interrupted."""
    resumed: subprocess.CompletedProcess[str]
    rows: pd.DataFrame

    def measured(self, **knobs: object) -> pd.DataFrame:
        """Measured rows with these values, by concurrency."""
        rows = self.rows[self.rows.status == "measured"]
        for name, value in knobs.items():
            rows = rows[rows[name] == value]
        return rows.sort_values("concurrency")


@pytest.fixture(scope="module")
def sweep(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    run = new_run(tmp_path_factory.mktemp("sglang"))
    with product("sweep", f"conf={CONF}", f"out={run}") as process:
        wait_until(lambda: not rows_of(run).empty or process.poll() is not None, "a row", within_s=START_S)
        assert process.poll() is None, f"the sweep ended early: {process.communicate()}"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=START_S)
    interrupted = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    left, before = marked(run), rows_of(run)
    resumed = finished(["resume", str(run)], SWEEP_S)
    return Resumed(run, interrupted, left, before, resumed, rows_of(run))


def test_an_interrupted_sweep_exits_130_and_says_how_to_go_on(sweep: Resumed) -> None:
    """Ctrl-C is not a failure: the exit code and the last words say so."""
    assert sweep.interrupted.returncode == 130, sweep.interrupted.stderr
    assert f"resume {sweep.run}" in sweep.interrupted.stderr


def test_a_resumed_sweep_reaches_a_verdict(sweep: Resumed) -> None:
    """Resuming ends as a sweep ends: exit code 0 and the reports."""
    assert sweep.resumed.returncode == 0, sweep.resumed.stderr
    assert {"summary.md", "best.yaml", "launch.sh"} <= {path.name for path in sweep.run.iterdir()}


def test_a_resumed_sweep_holds_every_point_exactly_once(sweep: Resumed) -> None:
    """What was measured before the interruption stays as it was; what was missing is measured, and nothing twice."""
    measured = sweep.measured()

    points = sorted(zip(measured.algorithm, measured.eagle_topk.fillna(0), measured.concurrency, strict=True))
    assert points == [
        ("EAGLE3", 1, 1),
        ("EAGLE3", 1, 4),
        ("EAGLE3", 2, 1),
        ("EAGLE3", 2, 4),
        ("none", 0, 1),
        ("none", 0, 4),
    ]
    assert not measured.duplicated(POINT).any()
    assert set(sweep.before.started_at) <= set(sweep.rows.started_at)


def test_rows_hold_what_the_server_says_it_runs(sweep: Resumed) -> None:
    """Version and settings come from the running server, and agree with what was asked of it."""
    measured = sweep.measured()

    assert set(measured.engine_version) == {"0.5.17"}
    assert not measured.simulated.any()
    assert set(measured.attention_backend) == {"torch_native"}
    assert set(measured.max_running_requests) == {16}
    assert not any("settings_changed" in flags for flags in measured["flags"])
    assert (measured.success_rate == 1.0).all()
    assert (measured.output_tok_s > 0).all()


def test_a_chain_of_three_steps_runs_with_four_tokens(sweep: Resumed) -> None:
    """The config asks for six; the setting is settled into what SGLang makes of it before it is launched."""
    assert set(sweep.measured(eagle_topk=1).num_draft_tokens) == {4}
    assert set(sweep.measured(eagle_topk=2).num_draft_tokens) == {6}


def test_acceptance_is_counted_from_the_server_s_own_words(sweep: Resumed) -> None:
    """The tiny drafter's second guess is right where its first is wrong: a tree accepts more than a chain."""
    plain = sweep.measured(algorithm="none")
    chain, tree = sweep.measured(eagle_topk=1), sweep.measured(eagle_topk=2)

    assert plain.acceptance_length.isna().all()
    assert chain.acceptance_length.between(2.0, 3.2).all()
    assert (tree.acceptance_length.to_numpy() > chain.acceptance_length.to_numpy()).all()
    assert all(len(histogram) == 4 for histogram in chain.acceptance_histogram)


def test_a_drafter_that_cannot_be_loaded_is_a_row_and_the_sweep_goes_on(sweep: Resumed) -> None:
    """The row says what went wrong in the server's words, how far it came, and where its log is."""
    failed = sweep.rows[sweep.rows.status == "failed"]

    assert set(failed.drafter) == {"misfit"}
    assert set(failed.failure_kind) <= {"drafter_mismatch", "crash_start"}
    assert set(failed.failure_stage) <= {"weights", "kv_pool"}
    assert failed.failure_message.str.contains("torch.Size([160])", regex=False).all()
    assert all((sweep.run / log).read_text() for log in failed.log)


def test_nothing_of_a_sweep_is_left_running(sweep: Resumed) -> None:
    """Neither after an interruption nor after the end: no process carries the run's marker."""
    assert sweep.left_after_interrupt == []
    assert marked(sweep.run) == []
