"""Reported failures of launches and hand-over, as cases L and P: the same fault here, and the outcome that would have been right.

Covered elsewhere: L15 and L16 in test_sglang_dialect.py; P01, P04, P06, P07 and P10 where servers, cards and the guard are
tested; C cases in test_config.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import gpus
from orchestrator import worker as worker_module
from orchestrator.config import load_plan
from orchestrator.engines.sglang import SGLang
from orchestrator.errors import ConfError
from orchestrator.events import Launched, TrialEnded
from orchestrator.gpus import GpuProcess, GpuSet
from orchestrator.plan import Budget, Deadlines, EngineConf, Workload
from orchestrator.serving.ports import can_bind
from orchestrator.serving.processes import MARKER, OWNER, VISIBLE
from orchestrator.worker import Worker
from results.alike import dead_branches
from results.failure import FailureKind
from results.record import Record
from results.rundir import RunDir
from sweeps.facts import Facts
from sweeps.rules import problems
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial
from tests.fakes.driver import Driver
from tests.fakes.nvml import TwoH200
from tests.fakes.plans import CHAIN, plan
from tests.fakes.records import failed, rows

SIGQUIT = "[2025-06-01 10:00:08] Received sigquit from a child process. It usually means the child failed."
TRACEBACK = "[2025-06-01 10:00:07] Scheduler hit an exception: Traceback (most recent call last):"
HOST = "127.0.0.1"
QUICK = plan(workload=Workload(concurrency=[1], output_tokens=8, requests_per_stream=1))


def trial(settings: Settings = CHAIN, number: int = 0) -> Trial:
    return Trial(number, settings, "trial", (LoadPoint(1, 0),))


def kind_of(*lines: str) -> FailureKind:
    return SGLang(plan()).diagnose("\n".join((TRACEBACK, *lines, SIGQUIT)), -9).kind


def test_two_of_the_three_numbers_are_refused_with_the_missing_one_named(tmp_path: Path) -> None:
    """L01: before any GPU is taken."""
    conf = tmp_path / "two.yaml"
    conf.write_text(
        "engine: {name: simulated, profile: demo}\n"
        "space: {algorithm: EAGLE3, drafter: own, eagle_topk: [4], num_draft_tokens: [8]}\n"
    )
    with pytest.raises(
        ConfError, match=r"space\.num_steps: missing: EAGLE3 takes num_steps, eagle_topk, num_draft_tokens all"
    ):
        load_plan([f"conf={conf}"])


@pytest.mark.parametrize(
    ("num_steps", "eagle_topk", "num_draft_tokens", "legal"),
    [(1, 2, 8, False), (2, 2, 7, True), (2, 2, 8, False), (3, 4, 37, True), (3, 4, 38, False)],
)
def test_a_tree_holds_what_its_steps_and_topk_score(
    num_steps: int, eagle_topk: int, num_draft_tokens: int, legal: bool
) -> None:
    """L02: beyond that it is illegal, not a failed trial."""
    tree = CHAIN.replace(num_steps=num_steps, eagle_topk=eagle_topk, num_draft_tokens=num_draft_tokens)
    assert (not problems(tree)) == legal


def test_flashinfer_for_multi_head_latent_attention_builds_only_chains() -> None:
    """L04: known before the launch; where no rule knows, the failure is told by its kind."""
    facts = Facts(version="0.5.17", attention="mla")
    tree = CHAIN.replace(eagle_topk=4, num_steps=3, num_draft_tokens=8, attention_backend="flashinfer")
    assert problems(tree, facts)
    assert not problems(CHAIN.replace(attention_backend="flashinfer"), facts)
    said = "ValueError: Currently Flashinfer MLA only supports topk=1 for speculative decoding"
    assert kind_of(said) is FailureKind.BACKEND_UNSUPPORTED


def test_a_backend_that_refused_a_tree_once_gets_no_tree_again(tmp_path: Path) -> None:
    """L04: one failure speaks for all trees on it; chains go on."""
    driver = Driver(plan(budget=Budget(launches=60, finalists=0)), tmp_path / "run")

    def answer(drawn: Trial) -> list[Record]:
        asked = drawn.settings
        refused = asked.attention_backend == "flashinfer" and (asked.eagle_topk or 1) > 1
        return [failed(drawn, FailureKind.BACKEND_UNSUPPORTED)] if refused else rows(drawn)

    drawn = [t.settings for t in driver.drive(answer)]
    trees = [s for s in drawn if s.attention_backend == "flashinfer" and (s.eagle_topk or 1) > 1]
    assert len(trees) == 1
    assert [s for s in drawn if s.attention_backend == "flashinfer" and s.eagle_topk == 1]


def test_a_target_that_fails_on_every_setting_alike_ends_its_branch(tmp_path: Path) -> None:
    """L07: a TypeError that no setting mends is seen three times, not for the whole budget."""
    said = "TypeError: unsupported operand type(s) for -: 'Tensor' and 'NoneType'"
    assert kind_of(said) is FailureKind.MODEL_UNSUPPORTED
    chains = [trial(CHAIN.replace(num_steps=n, num_draft_tokens=n + 1), number=n) for n in (2, 3, 5)]
    records = [failed(each, FailureKind.MODEL_UNSUPPORTED) for each in chains]
    assert list(dead_branches(records)) == [(CHAIN.algorithm, CHAIN.drafter, CHAIN.attention_backend)]


def test_an_inner_port_that_is_taken_is_no_fault_of_the_setting() -> None:
    """L17: a port conflict, tried again on other ports."""
    kind = kind_of("ValueError: nccl_port at 31177 is not available in 30 seconds. nccl_port at 31177 is not available")
    assert kind is FailureKind.PORT_CONFLICT
    assert kind.retried


def test_every_launch_gets_ports_of_its_own() -> None:
    """L17: the server's and its inner one, different from each other and from the next launch's."""
    dialect = SGLang(plan())
    inner = {words[words.index("--nccl-port") + 1] for words in (dialect.argv(CHAIN, 30000, "m") for _ in range(8))}
    assert len(inner) > 1
    assert "30000" not in inner


def test_a_missing_build_tool_is_the_environments_fault() -> None:
    """L18: it ends the sweep at once, since every launch would fail the same way."""
    kind = kind_of("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'")
    assert (kind, kind.blame) == (FailureKind.ENVIRONMENT_BROKEN, "environment")


def test_a_card_that_somebody_holds_is_not_launched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P02 and P06: a free port proves nothing; who holds the memory is named, with pid, owner, age and memory."""
    other = GpuProcess(pid=4242, owner="other", age_s=3700.0, memory_mib=30000, name="python", gpu="0")
    monkeypatch.setattr(worker_module, "processes", lambda _: [other])
    busy = Worker(plan(), RunDir.at(tmp_path / "run"), GpuSet(("0",), pretend=True))
    failure, ended = busy.run(trial())
    assert isinstance(failure, Record)
    assert failure.failure is not None
    assert failure.failure.kind is FailureKind.GPU_NOT_FREE
    assert "pid 4242 (python, of other, 3700 s old, 30000 MiB) on GPU 0" in failure.failure.message
    assert isinstance(ended, TrialEnded)
    assert ended.left_over, "the card is taken out of use"


def test_a_server_runs_on_the_cards_that_were_proven_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P02: CUDA counts the fastest card first where it is not told otherwise, the driver by the bus, and so must the server."""
    monkeypatch.setattr(gpus, "open_nvml", TwoH200)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    conf = EngineConf(name="simulated", env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    seen: list[str] = []
    for event in Worker(dataclasses.replace(QUICK, engine=conf), RunDir.at(tmp_path / "run"), GpuSet(("1",))).run(
        trial()
    ):
        if isinstance(event, Launched):
            seen = Path(f"/proc/{event.process_group}/environ").read_text().split("\0")
    assert {"CUDA_VISIBLE_DEVICES=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= set(seen)


@contextmanager
def orphan(run: RunDir, gpus: str, seconds: int = 600) -> Iterator[subprocess.Popen[bytes]]:
    """What a killed worker of the run left on some GPUs: it ends after a while, or with the block."""
    worker = subprocess.Popen(["/bin/true"])
    worker.wait()
    environment = {MARKER: f"{run.marker}/000007/1-77aa", OWNER: str(worker.pid), VISIBLE: gpus}
    left = subprocess.Popen(["/bin/sleep", str(seconds)], env=environment)
    try:
        yield left
    finally:
        left.kill()
        left.wait()


def test_a_server_that_outlives_its_killed_worker_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P02: it is ours and ends by itself, so it is no stranger on the card; what ends on other cards is not waited for."""
    run = RunDir.at(tmp_path / "run")
    with orphan(run, "0,1", seconds=2) as ending, orphan(run, "2") as elsewhere:
        there = GpuProcess(ending.pid, "we", 60.0, 30000, "sleep", "1")
        monkeypatch.setattr(worker_module, "processes", lambda _: [there] if ending.poll() is None else [])
        launched, *_, ended = Worker(QUICK, run, GpuSet(("1",), pretend=True)).run(trial())
        assert (ending.poll(), elsewhere.poll()) == (0, None)
    assert isinstance(launched, Launched)
    assert isinstance(ended, TrialEnded)
    assert (ended.complete, ended.left_over) == (True, ())


def test_a_card_on_which_a_server_of_ours_does_not_end_is_taken_out_of_use(tmp_path: Path) -> None:
    """P02: also where the driver names no process, as in a container; what is left is named after `deadlines.stop_s`."""
    run = RunDir.at(tmp_path / "run")
    with orphan(run, "0") as stuck:
        patient = plan(deadlines=Deadlines(stop_s=0.5))
        failure, ended = Worker(patient, run, GpuSet(("0",), pretend=True)).run(trial())
    assert isinstance(failure, Record)
    assert failure.failure is not None
    assert failure.failure.kind is FailureKind.GPU_NOT_FREE
    assert (
        f"held by an earlier server of this run, which does not end: pid {stuck.pid} (sleep)" in failure.failure.message
    )
    assert isinstance(ended, TrialEnded)
    assert ended.left_over, "the card is taken out of use"


def test_a_stop_is_not_kept_waiting_by_a_server_that_ends(tmp_path: Path) -> None:
    """Nothing is launched, nothing has failed, and the trial is not complete."""
    run = RunDir.at(tmp_path / "run")
    with orphan(run, "0"):
        worker = Worker(QUICK, run, GpuSet(("0",), pretend=True))
        worker.stopping.set()
        (ended,) = worker.run(trial())
    assert isinstance(ended, TrialEnded)
    assert (ended.complete, ended.retry, ended.left_over) == (False, False, ())


@pytest.fixture
def lingering() -> int:
    """A port whose last connection the server closed first: it stays in TIME_WAIT."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    return port


def test_a_port_in_time_wait_is_free_for_a_server(lingering: int) -> None:
    """P09: asked as a server asks, with its address reused."""
    states = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert any(int(local.split(":")[1], 16) == lingering and state == "06" for local, _, state in states)
    assert can_bind(HOST, lingering)


def test_a_row_says_what_really_ran_and_where(tmp_path: Path) -> None:
    """C09: engine, its version, the whole command line, host, GPU and target are in every row."""
    run = RunDir.at(tmp_path / "run")
    events = list(Worker(QUICK, run, GpuSet(("0",), name="pretend", pretend=True)).run(trial()))
    row = next(event for event in events if isinstance(event, Record)).row()
    assert row["engine"] == "simulated"
    assert row["engine_version"]
    assert row["target"]
    assert row["host"] == os.uname().nodename
    assert row["gpu_name"] == "pretend"
    argv = row["argv"] if isinstance(row["argv"], list) else json.loads(row["argv"])
    assert argv[argv.index("--speculative-num-steps") + 1] == str(CHAIN.num_steps)
