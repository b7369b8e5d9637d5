"""RayPool: exclusive GPU sets of a private Ray cluster; a lost worker costs a retry and leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator import gpus
from orchestrator import pool as pool_module
from orchestrator.errors import MachineError
from orchestrator.events import Event, Launched, TrialEnded
from orchestrator.offers import gpu_sets
from orchestrator.own_ray import Keeper, asked_twice
from orchestrator.plan import Budget, ClusterConf, Deadlines, EngineConf, Workload
from orchestrator.pool import RayPool
from orchestrator.progress import Narrator
from orchestrator.sweep import sweep
from results.driving import lock
from results.failure import FailureKind
from results.ledger import read_records
from results.record import Record
from results.rundir import RunDir
from sweeps.space import Held
from sweeps.trial import LoadPoint, Trial
from tests.fakes.nvml import TwoH200
from tests.fakes.plans import CHAIN, plan
from tests.fakes.processes import marked, workers_of
from tests.fakes.waiting import runs, wait_until

QUICK = Workload(concurrency=[1], output_tokens=8, requests_per_stream=1)


def trials(count: int, workload: Workload = QUICK) -> list[Trial]:
    points = tuple(LoadPoint(c, 0) for c in workload.concurrency)
    return [Trial(n, CHAIN.replace(num_steps=n + 1, num_draft_tokens=n + 2), "trial", points) for n in range(count)]


def test_every_gpu_is_held_by_one_trial_at_a_time(tmp_path: Path) -> None:
    """Two pretend GPUs, four trials: two at once, each with a GPU of its own, and all of them end clean."""
    run = RunDir.at(tmp_path / "run")
    queue = trials(4)
    pool = RayPool(plan(workload=QUICK), run)
    busy: dict[int, str] = {}
    most = 0
    try:
        for event in pool.run(lambda _: queue.pop(0) if queue else None):
            if isinstance(event, Launched):
                assert event.gpus[0] not in busy.values()
                busy[event.trial] = event.gpus[0]
                most = max(most, len(busy))
            if isinstance(event, TrialEnded):
                assert event.complete
                assert event.left_over == ()
                del busy[event.trial]
    finally:
        pool.close()
    assert most == 2
    assert not marked(run.path)


def test_the_gpus_that_are_chosen_of_a_profile_are_the_ones_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number 1 alone, whatever the caller shows to CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run, queue = RunDir.at(tmp_path / "run"), trials(2)
    pool = RayPool(plan(workload=QUICK, cluster=ClusterConf(gpus=["1"])), run)
    try:
        used = [e.gpus for e in pool.run(lambda _: queue.pop(0) if queue else None) if isinstance(e, Launched)]
    finally:
        pool.close()
    assert (pool.size, used) == (1, [("1",), ("1",)])


def test_a_killed_worker_costs_a_retry_and_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the actor's process: node_lost, the server is gone, the GPU set goes on with a fresh worker."""
    run = RunDir.at(tmp_path / "run")
    queue = trials(2)
    pool = RayPool(plan(workload=QUICK), run)
    events: list[Event] = []
    killed = False
    try:
        for event in pool.run(lambda _: queue.pop(0) if queue else None):
            events.append(event)
            if isinstance(event, Launched) and not killed:
                killed = True
                os.kill(worker_of(event.process_group), signal.SIGKILL)
                wait_until(lambda group=event.process_group: not psutil.pid_exists(group), "the server is gone")  # type: ignore[misc]
    finally:
        pool.close()
    lost = [e for e in events if isinstance(e, Record) and e.failure is not None]
    assert [e.failure.kind for e in lost if e.failure] == [FailureKind.NODE_LOST]
    ends = [e for e in events if isinstance(e, TrialEnded)]
    assert sorted(e.retry for e in ends) == [False, True]
    assert not marked(run.path)


def test_the_gpus_of_a_killed_worker_are_used_again_once_its_server_is_gone(tmp_path: Path) -> None:
    """A server that takes its time after SIGTERM outlives its worker: the next one on its GPUs is not begun beside it."""
    run, slow = RunDir.at(tmp_path / "run"), CHAIN.replace(server_args=(("sim_fault", "ignore-term"),))
    queue = [
        Trial(n, slow.replace(num_steps=n + 1, num_draft_tokens=n + 2), "trial", (LoadPoint(1, 0),)) for n in (1, 2)
    ]
    pool = RayPool(plan({"tp_size": Held(2)}, workload=QUICK, deadlines=Deadlines(stop_s=12.0)), run)
    servers: list[int] = []
    ends: list[TrialEnded] = []
    try:
        for event in pool.run(lambda _: queue.pop(0) if queue else None):
            if isinstance(event, Launched):
                assert not [pid for pid in servers if runs(pid)]
                servers.append(event.process_group)
                if len(servers) == 1:
                    wait_until(lambda: "ready to roll" in run.server_log("000001").read_text(), "SIGTERM is ignored")
                    os.kill(worker_of(event.process_group), signal.SIGKILL)
            if isinstance(event, TrialEnded):
                ends.append(event)
    finally:
        pool.close()
    assert [(end.worker_lost, end.complete, end.left_over) for end in ends] == [(True, False, ()), (False, True, ())]


def test_sigterm_while_ray_comes_up_is_heard_by_whoever_listened(tmp_path: Path) -> None:
    """Ray listens to it as well, in Python and in C++: each moment's signal is heard here, and the pool comes up and works."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    run, queue = RunDir.at(tmp_path / "run"), trials(1)
    sent: list[str] = []

    def there(name: str) -> bool:
        return any((Path(e["folder"]) / name).exists() for e in run.journal.events() if e["event"] == "ray_started")

    def send() -> None:
        for moment in ("session_latest", "session_latest/sockets/raylet"):
            wait_until(lambda moment=moment: there(moment), moment, within_s=90)  # type: ignore[misc]
            sent.append(moment)
            os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        pool = RayPool(plan(workload=QUICK), run)
        try:
            sender.join()
            ends = [e for e in pool.run(lambda _: queue.pop() if queue else None) if isinstance(e, TrialEnded)]
        finally:
            pool.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(heard) == len(sent) == 2
    assert [end.complete for end in ends] == [True]


def worker_of(process_group: int) -> int:
    """The process that owns a server of this process's own Ray."""
    (worker,) = workers_of(psutil.Process(), psutil.Process(process_group))
    return worker.pid


def test_more_gpus_than_there_are_is_said_with_both_numbers() -> None:
    """tp_size 8 on two machines with six GPUs each, of which Ray makes no set of eight."""
    machine = {"Alive": True, "Resources": {"GPU": 6.0}}
    with pytest.raises(MachineError, match=r"tp_size 8 needs 8 GPUs on one machine; Ray offers 12, at most 6 on one\."):
        gpu_sets([machine, machine], "any", 8)


def test_ray_and_its_workers_count_cards_as_the_driver_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bus, whatever order the caller had chosen for CUDA."""
    monkeypatch.setattr(gpus, "open_nvml", TwoH200)
    for name, value in {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}.items():
        monkeypatch.setenv(name, value)
    seen: dict[str, str] = {}
    pool = RayPool.__new__(RayPool)
    asked = plan(engine=EngineConf(name="sglang"))
    pool._plan, pool._run, pool._per_set, pool._keeper = asked, RunDir.at(tmp_path / "run"), 1, Keeper()
    pool._ray = SimpleNamespace(init=lambda **_: seen.update(os.environ), shutdown=lambda: None)
    try:
        pool._start_ray()
    finally:
        pool.close()
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_kind_of_gpu_that_ray_has_not_is_said_with_those_it_has(tmp_path: Path) -> None:
    """Asked before any worker, which would wait for ever; of the kind that there is, only its machines count."""
    with pytest.raises(MachineError, match=r"no machine of this Ray has 'H200'\. It knows of no accelerator\."):
        RayPool(plan(cluster=ClusterConf(accelerator="H200")), RunDir.at(tmp_path / "run"))

    def machine(kind: str, gpus: int, alive: bool = True) -> dict[str, Any]:
        return {"Alive": alive, "Resources": {"GPU": float(gpus), f"accelerator_type:{kind}": 1.0}}

    machines = [machine("H100", 8), machine("A100", 5), machine("H200", 8, alive=False)]
    assert gpu_sets(machines, "A100", 2) == 2
    with pytest.raises(MachineError, match=r"no machine of this Ray has 'H200'\. Did you mean 'H100'\?"):
        gpu_sets(machines, "H200", 2)


def test_a_sweep_begins_without_the_gpus_that_others_hold_and_takes_them_when_they_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal says how many are missing."""
    holders = held(monkeypatch, gpus=1)
    monkeypatch.setattr(pool_module, "JOINS_WITHIN_S", 12.0)
    run = RunDir.at(tmp_path / "run")
    pool = RayPool(plan(workload=QUICK), run)
    (noted,) = [e for e in run.journal.events() if e["event"] == "workers_missing"]
    assert (pool.size, noted["up"], noted["missing"], noted["gpus_free"]) == (1, 1, 1, 0)
    used: set[str] = set()
    queue = trials(40)
    try:
        for event in pool.run(lambda _: queue.pop(0) if len(used) < 2 else None):
            if isinstance(event, Launched):
                used.update(event.gpus)
                while holders:
                    pool._ray.kill(holders.pop())
    finally:
        pool.close()
    assert used == {"0", "1"}
    assert not pool.spent


def test_where_others_hold_every_gpu_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, with what Ray has free."""
    held(monkeypatch, gpus=2)
    monkeypatch.setattr(pool_module, "JOINS_WITHIN_S", 2.0)
    with pytest.raises(MachineError, match=r"2 of 2 workers are not up after 2 s; .* 0 of Ray's 2 are free"):
        RayPool(plan(workload=QUICK), RunDir.at(tmp_path / "run"))


def test_a_stop_is_heard_while_workers_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool comes up without them, runs nothing, and is not spent: the sweep was interrupted."""
    held(monkeypatch, gpus=2)
    began = time.monotonic()
    pool = RayPool(plan(workload=QUICK), RunDir.at(tmp_path / "run"), lambda: time.monotonic() > began)
    pool.stop(now=False)
    try:
        assert list(pool.run(lambda _: pytest.fail("nothing is drawn"))) == []
    finally:
        pool.close()
    assert (pool.size, pool.spent) == (0, False)


def held(monkeypatch: pytest.MonkeyPatch, gpus: int) -> list[Any]:
    """Whoever holds GPUs of every Ray that is begun from now on, before any worker is."""
    holders: list[Any] = []

    class Holder:
        def up(self) -> None:
            pass

    def start(self: RayPool) -> None:
        starts(self)
        holders.append(self._ray.remote(Holder).options(num_gpus=gpus).remote())
        self._ray.get(holders[-1].up.remote())

    starts = RayPool._start_ray
    monkeypatch.setattr(RayPool, "_start_ray", start)
    return holders


def test_gpus_that_were_not_handed_over_clean_are_not_used_again() -> None:
    """Quarantine: the set drops out, a clean one stays."""
    pool, actor = RayPool.__new__(RayPool), object()
    assert pool._usable(actor, TrialEnded(1, complete=True, held_s=1.0)) == [actor]
    assert pool._usable(actor, TrialEnded(1, complete=True, held_s=1.0, left_over=("pid 7 (sglang)",))) == []


def test_a_sweep_with_a_lost_worker_ends_in_a_verdict_all_the_same(tmp_path: Path) -> None:
    """The lost trial is begun again as attempt 2; every load point is there once."""
    run = RunDir.at(tmp_path / "run")
    asked = plan(workload=QUICK, budget=Budget(launches=5, finalists=0))  # the lost one is a launch too
    pool = RayPool(asked, run)

    class Killer(Narrator):
        killed = False

        def tell(self, event: Event, launches: int) -> None:  # noqa: ARG002
            if isinstance(event, Launched) and not self.killed:
                self.killed = True
                os.kill(worker_of(event.process_group), signal.SIGKILL)

    try:
        with lock(run):
            verdict = sweep(asked, run, pool, Killer())
    finally:
        pool.close()
    assert verdict.reached

    keys = [record.key for record in read_records(run.path) if record.measured]
    assert len(keys) == len(set(keys)) == 4
    assert not marked(run.path)


def test_a_ray_that_is_late_is_begun_once_more() -> None:
    """On a busy machine its processes may not be up in time: what they were is ended, and only a second failure is one."""
    started: list[subprocess.Popen[bytes]] = []

    def late(times: int) -> Callable[[], None]:
        def begin() -> None:
            started.append(subprocess.Popen(["/bin/sleep", "600"]))
            if len(started) <= times:
                raise Exception("The current node timed out during startup. This could happen because …")  # noqa: TRY002 - as Ray does

        return begin

    try:
        asked_twice(late(1))
        assert (started[0].wait(10), started[1].poll()) == (-signal.SIGKILL, None)
        with pytest.raises(MachineError, match=r"Ray did not come up within its 30 s, twice"):
            asked_twice(late(9))
        assert [one.wait(10) for one in started[2:]] == [-signal.SIGKILL] * 2
    finally:
        started[1].kill()
        started[1].wait()


def test_another_trouble_of_rays_is_not_tried_again() -> None:
    """It flies as it is."""
    asked: list[int] = []

    def broken() -> None:
        asked.append(1)
        raise ValueError("no such directory")

    with pytest.raises(ValueError, match="no such directory"):
        asked_twice(broken)
    assert len(asked) == 1
