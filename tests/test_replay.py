"""Replay: the whole loop of a sweep on rows that were measured before, in seconds and without a server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.replay import Grid, Search, until
from orchestrator.config import load_plan
from orchestrator.engines.replay import NOT_RECORDED, Recording, ReplayPool
from orchestrator.errors import ConfError
from orchestrator.plan import Budget, Plan, SamplerConf
from orchestrator.progress import Narrator
from orchestrator.sweep import sweep
from results.ledger import read_records
from results.record import Record
from results.rundir import RunDir
from results.verdict import Verdict

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


def test_a_recording_that_is_not_there_is_a_mistake_of_the_config() -> None:
    """Said before anything starts, with the key."""
    with pytest.raises(ConfError, match=r"engine\.recording: .*no such run directory"):
        load_plan(["conf=demo", "engine.name=replay", "engine.recording=/nowhere/run"])
