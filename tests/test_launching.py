"""How a worker's servers are launched: in the mode that is asked for where that is sure to be the same server, plainly where not."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from orchestrator.engines import launching as module
from orchestrator.engines.imports import Imports, Kind, sglang_imports
from orchestrator.engines.launching import Departure, Launching
from orchestrator.gpus import GpuProcess, GpuSet
from orchestrator.launches import Launches
from orchestrator.plan import EngineConf
from orchestrator.serving.processes import all_marked
from orchestrator.serving.server import Launch
from orchestrator.serving.standby import Standby
from orchestrator.worker import Worker
from results.record import Record
from results.rundir import RunDir
from sweeps.facts import Facts
from sweeps.settings import Settings
from sweeps.space import Held
from sweeps.trial import Trial
from tests.fakes.plans import CHAIN, plan
from tests.fakes.processes import marked
from tests.fakes.spawning.launches import ENVIRONMENT, IMPORTS, launch
from tests.test_worker import POINTS, QUICK

NO_GPUS = GpuSet(())


class Dialect:
    """Knows what the fake server imports, or the reason that a test gives in its place."""

    def __init__(self) -> None:
        self.known: Imports | str = IMPORTS

    def imports(self, _settings: Settings) -> Imports | str:
        return self.known


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


class Departures:
    """A Launching, and trials for it one after the other."""

    def __init__(self, run: RunDir, mode: str) -> None:
        self.run = run
        self.dialect = Dialect()
        engine = EngineConf(name="simulated", launch_mode=mode)  # type: ignore[arg-type]
        self.launching = Launching(plan(engine=engine), run, self.dialect)
        self.number = 0

    def depart(self, gpus: GpuSet = NO_GPUS, **more: object) -> Departure:
        trial = Trial(self.number, CHAIN, more.pop("kind", "trial"), POINTS, **more)  # type: ignore[arg-type]
        self.number += 1
        folder = self.run.logs(trial.name)
        folder.mkdir(parents=True, exist_ok=True)
        departure = self.launching.depart(trial, launch(folder), gpus, threading.Event())
        if departure.standby is not None:
            departure.standby.drop()
        self.launching.prepare(trial, departure)
        self.launching.hold(threading.Event())
        return departure


@pytest.fixture
def standby(run: RunDir):
    launches = Departures(run, "standby")
    yield launches
    launches.launching.close()
    assert marked(run.path) == []


def test_each_launch_uses_the_standby_that_was_made_while_the_one_before_it_booted(standby: Departures) -> None:
    """One standby per server, used once; the first is made for the first launch."""
    used = [standby.depart().standby for _ in range(3)]
    assert all(used)
    assert len(set(map(id, used))) == 3


def test_relaunches_are_plain_and_no_standby_waits_beside_them(standby: Departures) -> None:
    """Finalists and the plain server of the final race start as they will in service, and are measured alone."""
    standby.depart()
    for more in ({"kind": "finalist", "launch": 1}, {"kind": "baseline", "launch": 1}):
        departure = standby.depart(**more)
        assert (departure.standby, departure.how) == (None, "plain: a relaunch")
        assert marked(standby.run.path) == []


def test_a_version_that_is_not_known_is_launched_plainly_with_a_note(standby: Departures) -> None:
    """And nothing waits for what will not come."""
    standby.depart()
    standby.dialect.known = str(sglang_imports("0.5.99", 1, {}))
    departure = standby.depart()
    assert departure.how == "plain: what SGLang 0.5.99 imports is not known (0.5.17 is)"
    assert marked(standby.run.path) == []


def test_an_environment_that_differs_at_go_is_a_plain_launch_with_a_note(
    standby: Departures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports may have read it: its names are in the note."""
    standby.depart()
    monkeypatch.setitem(ENVIRONMENT, "COLOUR", "red")
    departure = standby.depart()
    assert departure.how == "plain: the environment is not the standby's any more: COLOUR"
    assert standby.depart().standby is not None


def test_a_standby_that_died_is_a_plain_launch_with_its_last_words(standby: Departures) -> None:
    """The next one has a standby again."""
    standby.depart()
    waits = standby.launching._standby
    assert waits is not None
    waits.drop()
    departure = standby.depart()
    assert departure.how.startswith("plain: the standby had ended: launcher: ")
    assert standby.depart().standby is not None


def test_standbys_made_by_two_workers_beside_the_same_trial_have_logs_of_their_own(run: RunDir) -> None:
    """Its retry runs on other GPUs, while the first standby still waits."""
    workers = [Departures(run, "standby") for _ in range(2)]
    try:
        for worker in workers:
            worker.depart()
        again = [worker.depart() for worker in workers]
        assert all(departure.standby is not None for departure in again)
    finally:
        for worker in workers:
            worker.launching.close()
    assert len(list(run.logs("000000").glob("standby-*.log"))) == 4


def test_a_standby_that_never_gets_ready_is_not_tried_again(standby: Departures) -> None:
    """What cannot be imported ahead would cost each launch its time."""
    standby.dialect.known = Imports(server=("no_such_module",))
    assert standby.depart().how == "plain: no standby gets ready: ModuleNotFoundError: No module named 'no_such_module'"
    assert standby.launching._standby is None
    assert standby.depart().how.startswith("plain: no standby gets ready")


def test_a_standby_that_holds_gpu_memory_is_used_by_no_server(
    standby: Departures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server sizes its cache by what is free: it would be another server than one launched plainly."""
    used = iter([{"0": 4}, {"0": 520}])
    monkeypatch.setattr(module, "used_mib", lambda _gpus: next(used))
    why = "plain: a waiting standby holds 516 MiB of GPU memory, which servers would miss"
    assert [standby.depart(GpuSet(("0",))).how for _ in range(2)] == [why, why]
    assert marked(standby.run.path) == []


def test_a_standby_that_the_driver_finds_on_a_gpu_is_used_by_no_server(
    standby: Departures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little it holds: what is on a GPU before a launch is somebody else's for all that a worker can see."""
    there = GpuProcess(4711, None, None, 2, None, "0")
    monkeypatch.setattr(module, "used_mib", lambda _gpus: {"0": 4})
    monkeypatch.setattr(module, "processes", lambda _gpus: [there])
    assert standby.depart(GpuSet(("0",))).how == f"plain: a waiting standby computes on the GPU: {there}"


@pytest.mark.parametrize(("idle", "counts"), [(8.0, [3, 1]), (4.1, [3, 0]), (2.6, [2, 0]), (1.4, None), (0.0, None)])
def test_as_many_children_import_beside_their_server_as_there_are_cores_for(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, idle: float, counts: list[int] | None
) -> None:
    """The schedulers first, which a launch waits for; with no core to spare it is a plain launch, and says so."""
    monkeypatch.setattr(module, "idle_cores", lambda: idle)
    launches = Departures(run, "overlap")
    launches.dialect.known = Imports(("json",), (Kind("scheduler", "f", (), 3), Kind("detokenizer", "g", ())))
    departure = launches.depart()
    if counts is None:
        assert departure.how == f"plain: no core is free for an import beside the server's own ({idle} are idle)"
        return
    first = launches.dialect.known.first(max(0, int(idle + 0.5) - 1))
    assert [kind.count for kind in first.kinds] == counts
    assert departure.launch.launcher == first.launcher(departure.launch.argv, waits=False)


def test_a_departure_tells_of_each_child_whether_it_was_warm() -> None:
    """From the launcher's own lines in the server's log; alike ones are counted."""
    departure = Departure(Launch((), {}, Path("log"), "", 0, "", launcher=("python",)), "overlap")
    for line in (
        "launcher: scheduler: imported", "launcher: scheduler: warm", "launcher: scheduler: warm",
        "launcher: detokenizer: cold, it is to run under /tmp/numactl.sh", "[2026-11-30] Load weight begin.",
    ):  # fmt: skip
        departure.hear(line)
    assert departure.how == "overlap: scheduler warm ×2, detokenizer cold (it is to run under /tmp/numactl.sh)"


def test_sglang_s_processes_are_known_for_one_version_and_the_ways_it_starts_them_in() -> None:
    """A scheduler a GPU; whatever makes it start others is left to a plain launch."""
    known = sglang_imports("0.5.17", 8, {"chunked_prefill_size": 8192})
    assert isinstance(known, Imports)
    assert known.names == ("server", *["scheduler"] * 8, "detokenizer")
    assert sglang_imports("0.5.17", 1, {"dp_size": 2}) == "with dp_size a server starts its processes in another way"


def test_a_launch_mode_that_was_asked_for_in_vain_is_said_before_the_first_launch() -> None:
    """Of a version whose imports are not known, and of arguments that it does not hold for."""
    engine = EngineConf(name="sglang", launch_mode="standby")
    dp = {"server_args.dp_size": Held(2)}

    def said(version: str, **sections: object) -> list[str]:
        launches = Launches(plan(engine=engine, **sections), Facts(version=version))  # type: ignore[arg-type]
        return [line for line in launches.warnings() if "launch_mode" in line]

    assert said("0.5.17") == []
    assert said("0.5.23") == [
        "engine.launch_mode standby: launches are plain all the same, for what SGLang 0.5.23 imports is not known (0.5.17 is)."
    ]
    assert said("0.5.17", space=dp) == [
        "engine.launch_mode standby: launches are plain all the same, for with dp_size a server starts its processes in another way."
    ]


def test_rows_say_which_mode_was_asked_for_and_what_happened(run: RunDir) -> None:
    """And the seconds from go and from the standby's start; a finalist's are those of a plain launch."""
    engine = EngineConf(name="simulated", launch_mode="standby")
    worker = Worker(plan(workload=QUICK, engine=engine), run, GpuSet(("0",), name="pretend", pretend=True))
    trials = [Trial(0, CHAIN, "trial", POINTS), Trial(1, CHAIN, "finalist", POINTS, launch=1)]
    rows = [event for trial in trials for event in worker.run(trial) if isinstance(event, Record)]
    worker.close()
    first, second = rows[0].row(), rows[-1].row()
    assert [row["launch_mode"] for row in (first, second)] == ["standby", "standby"]
    assert second["launched"] == "plain: a relaunch"
    assert second["standby_s"] is None
    assert first["launched"] == "standby"
    assert first["standby_s"] > first["launch_s"] > 0
    assert marked(run.path) == []


def test_a_launch_that_fails_before_it_begins_leaves_no_standby_behind(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is another's: the standby that was to become the server is gone."""
    worker = Worker(
        plan(workload=QUICK, engine=EngineConf(name="simulated", launch_mode="standby")), run, GpuSet((), pretend=True)
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        monkeypatch.setattr("orchestrator.engines.engine.free_port", lambda _host: port)
        (row,) = [event for event in worker.run(Trial(0, CHAIN, "trial", POINTS)) if isinstance(event, Record)]
    assert row.row()["failure_kind"] == "port_conflict"
    assert row.row()["launched"] == "plain: the standby could not be used"
    assert marked(run.path) == []


def test_nothing_of_a_standby_runs_while_its_predecessor_is_measured(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped before the first load point, and still there when the last one is done."""
    states: list[set[str]] = []

    def noting(self: Standby) -> bool:
        held = hold(self)
        states.append({Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in self.pids()})
        return held

    hold = Standby.hold
    monkeypatch.setattr(Standby, "hold", noting)
    engine = EngineConf(name="simulated", launch_mode="standby")
    worker = Worker(plan(workload=QUICK, engine=engine), run, GpuSet(("0",), name="pretend", pretend=True))
    for event in worker.run(Trial(0, CHAIN, "trial", POINTS)):
        if isinstance(event, Record):
            waiting = [pid for pid, marker in all_marked() if marker.startswith(f"{run.marker}/standby/")]
            states.append({Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in waiting})
    worker.close()
    assert states == [{"T"}, {"T"}, {"T"}]
