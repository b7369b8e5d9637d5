"""A server that somebody else started is measured and left as it was."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.engines.attached import Attached, server_info
from orchestrator.errors import MachineError
from orchestrator.events import TrialEnded
from orchestrator.gpus import GpuSet
from orchestrator.plan import Budget, ClusterConf, EngineConf, Plan, Target, Workload
from orchestrator.progress import Narrator
from orchestrator.reading import standing_facts, status_lines
from orchestrator.serving.ports import free_port
from orchestrator.stored import conclude, tell
from orchestrator.worker import Worker
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.space import Held
from sweeps.trial import LoadPoint, Trial
from tests.fakes.bench_program import FIGURES, placed
from tests.fakes.driver import Driver
from tests.fakes.plans import SPACE, plan
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
    assert rows[0].origin.simulated
    assert all(row.measurement and (row.measurement.acceptance_length or 0) > 1 for row in rows)
    assert not any(flag in row.flags for row in rows for flag in (Flag.SETTINGS_CHANGED, Flag.CAPACITY_CLAMPED))
    ended = events[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.complete, ended.left_over) == (True, ())


def attached_to(url: str) -> Plan:
    return plan(
        space=dict.fromkeys(SPACE) | {"algorithm": Held("none")}, drafters={}, target=Target(),
        engine=EngineConf(name="attached", url=url), cluster=ClusterConf(gpus="none"), budget=Budget(launches=3),
        workload=Workload(concurrency=[1, 2], output_tokens=8, requests_per_stream=2),
    )  # fmt: skip


def test_a_sweep_of_it_says_what_runs_and_ends_with_its_figures(tmp_path: Path) -> None:
    """One trial, named by what the server says it runs; no launch is counted, and that nothing is compared is no failure.
    A simulated server is called so, whoever started it."""
    said = io.StringIO()
    with serving(tmp_path, *speculation(*CHAIN), "--max-running-requests", "2") as server:
        attached, narrator = attached_to(server.url), Narrator(Console(file=said, width=400))
        driver = Driver(attached, tmp_path / "run")
        narrator.starts(attached, driver.run, 1, [])

        def measured(trial: Trial) -> list[Record]:
            events = list(Worker(attached, driver.run, GpuSet(())).run(trial))
            for event in events:
                narrator.tell(event, driver.schedule.charged)
            return [event for event in events if isinstance(event, Record)]

        assert len(driver.drive(measured)) == 1
    assert driver.schedule.why_ended == "the server that runs already was measured"
    assert "(simulated: no GPU is used)" in said.getvalue()
    assert f"The server at {server.url} as it runs, at 2 load points; nothing is launched." in said.getvalue()
    assert "EAGLE3 /drafters/own 3.1.4 fa3     concurrency   1:" in said.getvalue()
    verdict = conclude(attached, driver.run, driver.ledger.records)
    assert re.match(r"Simulated, not measured: EAGLE3 /drafters/own 3\.1\.4 fa3 as it runs: output_tok_s [\d.]+ at concurrency 1, [\d.]+ at concurrency 2\. Nothing was compared; measure a second server", verdict.sentence)  # fmt: skip
    assert [answer.answer for answer in verdict.answers] == ["not compared"] * 2
    assert tell(verdict, driver.run, as_json=True) == 0
    driver.run.journal.note("sweep_started", conf="attached")
    driver.run.journal.note("sweep_ended", interrupted=False)
    lines = list(status_lines(standing_facts(attached, driver.run)))
    assert f"verdict            {verdict.sentence}" in lines
    assert not any("no answer" in line or "not to be compared" in line for line in lines)


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
