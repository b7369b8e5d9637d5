"""Worker: a trial on real (simulated) servers, told as events; every mishap becomes the right failure, nothing is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator import gpus
from orchestrator.engines.decode_log import DecodeLog
from orchestrator.engines.simulated import Simulated
from orchestrator.events import Launched, Progress, TrialEnded
from orchestrator.gpus import GpuSet
from orchestrator.nvml import Reading
from orchestrator.plan import Deadlines, EngineConf, Plan, Workload
from orchestrator.telemetry import Seen, Telemetry
from orchestrator.worker import Worker
from results.failure import FailureKind, Stage
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial
from tests.fakes.nvml import TwoH200
from tests.fakes.plans import CHAIN, plan
from tests.fakes.processes import marked

QUICK = Workload(concurrency=[1, 4], output_tokens=8, requests_per_stream=1)
POINTS = (LoadPoint(1, 0), LoadPoint(4, 0))


def trial(settings: Settings = CHAIN, fault: str | None = None, number: int = 0, **more: object) -> Trial:
    if fault:
        settings = Settings.from_dict({**settings.as_dict(), "server_args": {"sim_fault": fault}})
    return Trial(number, settings, "trial", POINTS, **more)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def worker(run: RunDir, **sections: object) -> Worker:
    given: Plan = plan(**{"workload": QUICK, **sections})  # type: ignore[arg-type]
    return Worker(given, run, GpuSet(("0",), name="pretend", pretend=True))


def failure_of(events: list[object]) -> Record:
    (record,) = [e for e in events if isinstance(e, Record) and not e.measured]
    return record


def test_a_trial_is_told_from_launch_to_the_proof_that_nothing_is_left(run: RunDir) -> None:
    """Launched, ready, a row per load point, ended; the rows carry what ran and how it was started."""
    events = list(worker(run).run(trial()))
    assert [type(event) for event in events] == [Launched, Progress, Record, Record, TrialEnded]
    rows = [event for event in events if isinstance(event, Record)]
    assert [row.point for row in rows] == list(POINTS)
    for row in rows:
        assert row.settings.replace(page_size=None) == CHAIN
        assert row.measurement is not None
        assert row.measurement.output_tok_s is not None
        assert row.measurement.acceptance_length is not None
        assert row.measurement.acceptance_length > 1
        assert row.origin.simulated
        assert "--speculative-num-steps" in row.origin.argv
        assert Flag.SETTINGS_CHANGED not in row.flags
    ended = events[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.complete, ended.left_over, ended.retry) == (True, (), False)
    assert not marked(run.path)


@pytest.mark.parametrize(
    ("fault", "kind", "stage"),
    [
        ("crash:weights", FailureKind.CRASH_START, Stage.WEIGHTS),
        ("oom:weights", FailureKind.OOM_WEIGHTS, Stage.WEIGHTS),
        ("oom:kv_pool", FailureKind.OOM_KV_POOL, Stage.KV_POOL),
        ("oom:graph_capture", FailureKind.OOM_GRAPH_CAPTURE, Stage.GRAPH_CAPTURE),
        ("crash:serving:2", FailureKind.CRASH_SERVING, Stage.SERVING),
        ("oom:serving", FailureKind.OOM_RUNNING, Stage.SERVING),
        ("sick:weights", FailureKind.GPU_FAULT, Stage.WEIGHTS),
        ("sick:serving", FailureKind.GPU_FAULT, Stage.SERVING),
        ("fail-requests:0.9", FailureKind.BENCHMARK_INVALID, Stage.SERVING),
    ],
)
def test_a_server_that_dies_is_told_with_its_cause_and_stage(
    run: RunDir, fault: str, kind: FailureKind, stage: Stage
) -> None:
    """Read from the log's own milestones and last error; the message has the log's path and a remedy."""
    record = failure_of(list(worker(run).run(trial(fault=fault))))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.stage) == (kind, stage)
    assert str(run.server_log("000000")) in record.failure.message
    assert kind.remedy in record.failure.message
    assert not marked(run.path)


@pytest.mark.parametrize(
    ("fault", "deadlines", "kind", "stage"),
    [
        ("hang:graph_capture", Deadlines(load_idle_s=1.5), FailureKind.START_HANG, Stage.GRAPH_CAPTURE),
        ("slow:weights:60", Deadlines(load_s=2.5), FailureKind.START_TIMEOUT, Stage.WEIGHTS),
        ("hang:serving", Deadlines(load_idle_s=2.0, request_s=1.0), FailureKind.HANG_SERVING, Stage.SERVING),
    ],
)
def test_a_server_that_hangs_is_ended_and_named(
    run: RunDir, fault: str, deadlines: Deadlines, kind: FailureKind, stage: Stage
) -> None:
    """No progress, too slow for the cap, healthy without tokens: three kinds, and nothing stays behind."""
    events = list(worker(run, deadlines=deadlines).run(trial(fault=fault)))
    failure = failure_of(events).failure
    assert failure is not None
    assert (failure.kind, failure.stage) == (kind, stage)
    assert failure.message.count(str(run.server_log("000000"))) == 1
    assert not marked(run.path)


def test_slow_loading_with_progress_is_no_hang(run: RunDir) -> None:
    """Lines in the log reset the idle timer: three seconds of loading pass an idle deadline of two."""
    events = list(worker(run, deadlines=Deadlines(load_idle_s=2.0)).run(trial(fault="slow:weights:3")))
    assert sum(isinstance(event, Record) and event.measured for event in events) == 2


def test_a_server_that_ignores_term_and_leaves_grandchildren_is_ended_all_the_same(run: RunDir) -> None:
    """Killed, grandchildren in sessions of their own included."""
    for fault in ("ignore-term", "setsid-grandchild"):
        events = list(worker(run, deadlines=Deadlines(stop_s=4.0)).run(trial(fault=fault)))
        assert isinstance(events[-1], TrialEnded)
        assert events[-1].left_over == ()
        assert not marked(run.path)


def test_a_fault_of_the_machine_is_tried_again_and_a_setting_that_cannot_run_is_not(run: RunDir) -> None:
    """retry is set for the first attempt of an infrastructure fault only."""
    hung = Deadlines(load_idle_s=1.0)
    first = list(worker(run, deadlines=hung).run(trial(fault="hang:weights")))[-1]
    second = list(worker(run, deadlines=hung).run(trial(fault="hang:weights", attempt=2, failures=1)))[-1]
    crash = list(worker(run).run(trial(fault="crash:weights")))[-1]
    assert isinstance(first, TrialEnded)
    assert isinstance(second, TrialEnded)
    assert isinstance(crash, TrialEnded)
    assert (first.retry, first.complete) == (True, False)
    assert (second.retry, second.complete) == (False, True)
    assert (crash.retry, crash.complete) == (False, True)


def test_a_card_that_reports_a_fault_is_taken_out_of_use(run: RunDir) -> None:
    """Its memory is free again, and it would fail the next server, too: the trial is tried again on others."""
    ended = list(worker(run).run(trial(fault="sick:serving")))[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.retry, ended.complete) == (True, False)
    (why,) = ended.left_over
    assert "uncorrectable ECC error" in why


def test_a_card_that_does_not_answer_is_taken_out_of_use(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the launch, or as the first standby is looked at: the trial has failed by the machine, the sweep goes on."""
    card = TwoH200()
    monkeypatch.setattr(gpus, "open_nvml", lambda: card)
    one = Worker(plan(workload=QUICK, engine=EngineConf(name="simulated", launch_mode="standby")), run, GpuSet(("1",)))
    asked: list[str] = []

    def falls(uuid: str) -> int:
        asked.append(uuid)
        card.lost = {1} if len(asked) > 2 else set()
        return 0

    monkeypatch.setattr(card, "used_mib", falls)
    for events in (list(one.run(trial())), list(one.run(trial(number=1)))):
        failure, ended = failure_of(events).failure, events[-1]
        assert failure is not None
        assert failure.kind is FailureKind.GPU_NOT_FREE
        assert "GPU 1 does not answer any more" in failure.message
        assert isinstance(ended, TrialEnded)
        assert ended.retry
        assert ended.left_over
    one.close()
    assert not marked(run.path)


def test_a_stop_ends_the_trial_without_a_failure(run: RunDir) -> None:
    """enough: after the load point; stopping: at once.  Either way the trial is not complete, and not failed."""
    for pick in ("enough", "stopping"):
        one = worker(run)
        events = []
        for event in one.run(trial()):
            events.append(event)
            if isinstance(event, Record):
                threading.Event.set(getattr(one, pick))
        assert [type(e) for e in events][-2:] == [Record, TrialEnded]
        assert sum(isinstance(e, Record) for e in events) == 1
        assert events[-1].complete is False
        assert not marked(run.path)


def test_an_eagle3_head_launched_as_eagle_is_flagged(run: RunDir) -> None:
    """It starts, serves and guesses nothing: acceptance length about 1, drafter_ineffective, never best."""
    rows = [e for e in worker(run).run(trial(CHAIN.replace(algorithm="EAGLE"))) if isinstance(e, Record)]
    assert all(Flag.DRAFTER_INEFFECTIVE in row.flags and not row.trusted for row in rows)


def test_a_server_that_runs_fewer_requests_than_asked_is_flagged(run: RunDir) -> None:
    """Concurrency 4 on a server clamped to 2 is not a measurement of concurrency 4 (case S04)."""
    rows = [e for e in worker(run).run(trial(CHAIN.replace(max_running_requests=2))) if isinstance(e, Record)]
    assert [Flag.CAPACITY_CLAMPED in row.flags for row in rows] == [False, True]


def test_prompts_that_say_little_of_a_drafter_are_said(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random words, forced (case B01): such a row never wins.  Prompts without a chat template (case B15): a note.

    The plain server's row has neither flag, for it does not guess.
    """
    monkeypatch.setattr(Simulated, "simulated", False)
    words = Workload(prompts="random", random_prompts=True, concurrency=[1, 4], output_tokens=8, requests_per_stream=1)
    one = worker(run, workload=words)
    guessed = next(e for e in one.run(trial()) if isinstance(e, Record))
    plain = next(e for e in one.run(trial(CHAIN.plain(), number=1)) if isinstance(e, Record))

    assert {Flag.RANDOM_PROMPTS, Flag.NO_CHAT_TEMPLATE} <= set(guessed.flags)
    assert not guessed.trusted
    assert not {Flag.RANDOM_PROMPTS, Flag.NO_CHAT_TEMPLATE} & set(plain.flags)


def test_what_the_log_and_the_cards_say_stands_in_the_row(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests taken back, decoding outside graphs and a card held back by heat: figures, and a flag each."""
    hot = Seen(((Reading(650.0, 900, 91, slowed=True),),), 2.0)
    said = DecodeLog(graphs_off=(True, False), running=(1,), waiting=(0,), retracted=3)
    monkeypatch.setattr(Telemetry, "seen", lambda _: hot)
    monkeypatch.setattr(Simulated, "decoding", lambda *_: said)
    row = next(e for e in worker(run).run(trial()) if isinstance(e, Record))

    assert row.measurement is not None
    assert (row.measurement.power_w, row.measurement.gpu_temperature_c, row.measurement.throttled_share) == (650, 91, 1)
    assert (row.measurement.graph_off_share, row.measurement.retracted_requests) == (0.5, 3)
    assert {Flag.THROTTLED, Flag.GRAPH_FALLBACK, Flag.RETRACTED} <= set(row.flags)
