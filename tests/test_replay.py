"""Replay: the whole loop of a sweep on rows that were measured before, in seconds and without a server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.replay import Grid, Search, until
from orchestrator.config import load_plan, to_yaml
from orchestrator.engines.replay import NOT_RECORDED, Recording, ReplayPool
from orchestrator.errors import ConfError
from orchestrator.facts import facts_of
from orchestrator.launches import Launches
from orchestrator.plan import Budget, Plan, SamplerConf
from orchestrator.progress import Narrator
from orchestrator.sweep import sweep
from orchestrator.trials import load_points
from results.comparison import Basis
from results.ledger import Ledger, read_records
from results.record import Record
from results.rundir import RunDir
from results.verdict import Verdict
from sweeps.trial import Trial
from tests.fakes.records import rows as rows_of

STORED = Path(__file__).parents[1] / "docs" / "results" / "2026-11-29-h200-padded-5b"


def replayed(name: str = "spec", launches: int = 14, seed: int = 1) -> Plan:
    """The plan of the stored sweep of an H200, over its own rows."""
    recorded = read_records(STORED / "trials.parquet")[0].asked
    space = f"space.max_running_requests={recorded.max_running_requests}"
    conf = f"conf={STORED / 'plan.yaml'}"
    plan = load_plan([conf, "engine.name=replay", f"engine.recording={STORED / 'trials.parquet'}", *([space] if recorded.max_running_requests else [])])  # fmt: skip
    return dataclasses.replace(
        plan, sampler=SamplerConf(name=name, seed=seed, ends=False), budget=Budget(launches=launches, finalists=3)
    )


def run(plan: Plan, path: Path) -> tuple[Verdict, list[Record], RunDir]:
    directory = RunDir.at(path)
    verdict = sweep(plan, directory, ReplayPool(plan, directory), Narrator())
    return verdict, read_records(path), directory


@pytest.mark.parametrize("name", ["spec", "tpe", "random", "grid"])
def test_a_stored_sweep_of_an_h200_is_swept_again_by_every_sampler(name: str, tmp_path: Path) -> None:
    """Each finds that drafter full pays at concurrency 1; every row is one that was measured, at its recorded cost."""
    verdict, rows, directory = run(replayed(name), tmp_path / "run")
    recorded = {r.measurement.output_tok_s for r in read_records(STORED / "trials.parquet") if r.measurement}
    assert verdict.reached
    assert {r.measurement.output_tok_s for r in rows if r.measurement} <= recorded
    assert {r.origin.engine for r in rows} == {"replay"}
    assert not any(r.failure and NOT_RECORDED in r.failure.message for r in rows)
    assert directory.journal.gpu_hours_spent() > 14 * 30 / 3600


def test_the_model_reaches_the_best_recorded_setting_in_half_of_its_launches(tmp_path: Path) -> None:
    """Of the 19 recorded settings, ten launches hold one that is as fast as the best at concurrency 1 within its noise."""
    _, rows, _ = run(replayed("spec", launches=10), tmp_path / "run")

    def fastest(records: list[Record]) -> float:
        return max(r.measurement.output_tok_s or 0 for r in records if r.measurement and r.trusted and r.point and r.point.concurrency == 8)  # fmt: skip

    assert fastest(rows) >= 0.9 * fastest(read_records(STORED / "trials.parquet"))


def test_every_recorded_launch_comes_once_before_any_comes_again() -> None:
    """Relaunches of a setting are its recorded relaunches."""
    recording = Recording.at(STORED / "trials.parquet")
    key, launches = max(recording.launches.items(), key=lambda item: len(item[1]))
    assert len(launches) > 1
    assert all(r.asked.key == key for rows in launches for r in rows)


def test_a_recorded_launch_that_answers_twice_is_one_launch(tmp_path: Path) -> None:
    """The race relaunches what was recorded once: its interval stays that of one launch, and the summary names the repeats."""
    plan = load_plan([*recorded_demo(tmp_path / "run1"), "budget.launches=6", "budget.finalists=2", "sampler.seed=1"])
    verdict, rows, directory = run(plan, tmp_path / "again")
    answered = [row.origin.recorded for row in rows if row.point and row.point.concurrency == 8]
    assert sorted(map(str, answered)) == ["test/0/1", "test/0/1", "test/2/1", "test/2/1"]
    assert [one.launches for one in verdict.contenders[8]] == [1, 1]
    assert verdict.answers[1].basis == Basis.ASSUMED
    repeats = sorted({row.trial for row in rows if row.launch})
    assert f"Trials {', '.join(map(str, repeats))}: repeated what one recorded launch had answered before" in directory.summary.read_text()  # fmt: skip


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid(Recording.at(STORED / "trials.parquet"))


@pytest.mark.parametrize("method", ["spec", "random"])
def test_the_benchmark_launches_every_recorded_setting_once(method: str, grid: Grid) -> None:
    """And ends tied with the best at every concurrency at which it was measured."""
    rows = Search(grid, method, seed=3).rows
    assert len(rows) == len(grid.settings)
    assert all(rows[-1].values())
    assert 1 <= until(rows) <= len(rows)


def test_a_setting_is_tied_with_the_best_as_far_as_launches_of_the_same_settings_differ(grid: Grid) -> None:
    """The best always is; one that is slower by five times the spread is not."""
    for concurrency, here in grid.logs.items():
        means = {key: sum(logs) / len(logs) for key, logs in here.items()}
        best = max(means.values())
        tied = {s.key for s in grid.settings if grid.tied(s, concurrency)}
        assert max(means, key=lambda key: means[key]) in tied
        assert not [key for key in tied if means[key] < best - 5 * grid.spreads[concurrency][0]]


def recorded_demo(path: Path) -> list[str]:
    """The guide's words to replay a simulated run, here of three of its plain servers and settings."""
    recorded = load_plan(["conf=demo", "workload.concurrency=[1,8]"])
    directory = RunDir.at(path)
    directory.write_text(directory.plan, to_yaml(recorded))
    ledger = Ledger.open(directory)
    for number, settings in enumerate(list(Launches(recorded, facts_of(recorded)))[:3]):
        kind = "trial" if settings.speculative else "baseline"
        for row in rows_of(Trial(number, settings, kind, load_points(recorded))):
            ledger.append(row)
    return [f"conf={directory.plan}", "engine.name=replay", f"engine.recording={path}"]


def test_a_simulated_run_is_replayed_from_its_own_plan(tmp_path: Path) -> None:
    """Whose drafters are its profile's and stand in no config: every launch is a recorded one."""
    plan = load_plan([*recorded_demo(tmp_path / "run1"), "budget.launches=4", "sampler.seed=1"])
    _, rows, _ = run(plan, tmp_path / "again")
    assert {r.asked.drafter for r in rows} == {None, "own"}
    assert {r.asked.key for r in rows} <= Recording.at(tmp_path / "run1").launches.keys()
    assert all(r.measured for r in rows)


def test_a_space_of_which_nothing_was_recorded_is_a_mistake_that_says_what_was(tmp_path: Path) -> None:
    """A drafter of another name, and servers for another load."""
    words = recorded_demo(tmp_path / "run1")
    for other, said in (
        ("space.drafter=[owm]", "but the plain server"),
        ("workload.concurrency=[1]", "nothing in it is"),
    ):
        plan = load_plan([*words, other])
        with pytest.raises(ConfError, match=rf"{said}.* in the recording, which holds 3 settings \(drafters: own\)"):
            Launches(plan, facts_of(plan)).require_some()


def test_a_recording_that_is_not_there_is_a_mistake_of_the_config() -> None:
    """Said before anything starts, with the key."""
    with pytest.raises(ConfError, match=r"engine\.recording: /nowhere/run: no such file or directory to replay"):
        load_plan(["conf=demo", "engine.name=replay", "engine.recording=/nowhere/run"])
