"""A server that somebody else started is measured and left as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.engines.attached import Attached, server_info
from orchestrator.errors import MachineError
from orchestrator.events import TrialEnded
from orchestrator.gpus import GpuSet
from orchestrator.plan import ClusterConf, EngineConf, Target, Workload
from orchestrator.serving.ports import free_port
from orchestrator.worker import Worker
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial
from tests.fakes.bench_program import FIGURES, placed
from tests.fakes.plans import plan
from tests.fakes.raw_server import Answer, raw_server
from tests.fakes.simulator import CHAIN, serving, speculation

POINTS = (LoadPoint(1, 0), LoadPoint(2, 0))
PLAIN = Trial(0, Settings(), "baseline", POINTS[1:])


def test_each_load_point_is_measured_and_the_server_lives_on(tmp_path: Path) -> None:
    """Rows hold what runs, by the server's own words; nothing is launched, stopped or called changed."""
    with serving(tmp_path, *speculation(*CHAIN), "--max-running-requests", "2") as server:
        attached = plan(
            engine=EngineConf(name="attached", url=server.url), target=Target(), drafters={},
            cluster=ClusterConf(gpus="none"), workload=Workload(concurrency=[1, 2], output_tokens=8, requests_per_stream=2),
        )  # fmt: skip
        worker = Worker(attached, RunDir.at(tmp_path / "run"), GpuSet(()))
        events = list(worker.run(Trial(0, Settings(), "baseline", POINTS)))

        assert server.process.poll() is None
        assert server.json("/server_info")["version"] == "0.5.17"

    rows = [event for event in events if isinstance(event, Record)]
    assert [row.point for row in rows] == list(POINTS)
    ran = rows[0].settings
    assert (ran.algorithm, ran.num_steps, ran.eagle_topk, ran.num_draft_tokens) == ("EAGLE3", 3, 1, 4)
    assert (rows[0].origin.engine, rows[0].origin.engine_version, rows[0].launch_s) == ("attached", "0.5.17", None)
    assert all(row.measurement and (row.measurement.acceptance_length or 0) > 1 for row in rows)
    assert not any(flag in row.flags for row in rows for flag in (Flag.SETTINGS_CHANGED, Flag.CAPACITY_CLAMPED))
    ended = events[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.complete, ended.left_over) == (True, ())


def test_its_speed_is_cross_checked_by_sglangs_own_client(tmp_path: Path) -> None:
    """bench_serving of the engine's environment is put on the same server, with the tokenizer the server itself names."""
    with serving(tmp_path) as server:
        found = server_info(server.url)
        attached = plan(
            engine=EngineConf(
                name="attached", url=server.url, python=sys.executable, env=placed(tmp_path, FIGURES | {"completed": 6})
            ),
            target=Target(), drafters={}, cluster=ClusterConf(gpus="none"),
            workload=Workload(concurrency=[2], output_tokens=8, requests_per_stream=2, client="bench_serving"),
        )  # fmt: skip
        run_dir = RunDir.at(tmp_path / "run")
        (row, _) = [e for e in Worker(attached, run_dir, GpuSet(())).run(PLAIN) if isinstance(e, Record | TrialEnded)]

    assert isinstance(row, Record)
    assert row.measurement is not None, row.failure
    assert (row.measurement.output_tok_s, row.measurement.ttft_p50_ms) == (400, 50)
    assert row.origin.target == found["model_path"]


def test_nobody_at_the_address() -> None:
    """No server, no sweep: the message has the address and the key it came from."""
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(MachineError, match=rf"engine\.url: no SGLang answers at {url}"):
        _ = Attached(plan(engine=EngineConf(name="attached", url=url))).version


@pytest.mark.parametrize("body", [b"[]", b"{}", b"hello"])
def test_another_program_at_the_address(body: bytes) -> None:
    """What answers but is no SGLang is not measured."""
    with raw_server() as server:
        server.answers["/server_info"] = Answer.of(200, body)
        with pytest.raises(MachineError, match=r"is no SGLang|no SGLang answers"):
            server_info(server.url)
