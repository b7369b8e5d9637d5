"""A run as an Optuna study: what optuna-dashboard opens is what was launched."""

from __future__ import annotations

import shutil
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from results.record import Record
from sweeps.observation import Goal
from sweeps.sampler.export import write_study
from tests.fakes.command_line import ROOT, orchestrator
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured

RECORDS: list[Record] = [
    *(measured(PLAIN, tok_s, trial=0, concurrency=load) for load, tok_s in ((1, 100.0), (8, 400.0))),
    *(measured(EAGLE3, tok_s, trial=1, concurrency=load) for load, tok_s in ((1, 200.0), (8, 800.0))),
    failure(WIDE, trial=2),
]


def study(records: list[Record], path: Path) -> optuna.Study:
    write_study([record.observation(Goal()) for record in records], Goal(), path, "a run")
    return optuna.load_study(study_name="a run", storage=f"sqlite:///{path}")


def test_trials_have_the_knobs_they_were_launched_with(tmp_path: Path) -> None:
    """Under their own names, only those that vary; the plain server has those it has."""
    found = study(RECORDS, tmp_path / "study.db")
    assert [trial.params for trial in found.trials] == [
        {"algorithm": "none"},
        {"algorithm": "EAGLE3", "drafter": "own", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
        {"algorithm": "EAGLE3", "drafter": "own", "num_steps": 5, "eagle_topk": 8, "num_draft_tokens": 32},
    ]
    assert found.user_attrs["metric"] == "output_tok_s"


def test_values_are_means_over_load_points(tmp_path: Path) -> None:
    """Geometric; each load point stands beside it, and a failure has its kind."""
    plain, fast, failed = study(RECORDS, tmp_path / "study.db").trials
    assert (plain.value, fast.value) == (pytest.approx(200.0), pytest.approx(400.0))
    assert fast.user_attrs["output_tok_s at 8"] == 800.0
    assert fast.user_attrs["acceptance_length at 1"] == 2.5
    assert (failed.state, failed.user_attrs["failure_kind"]) == (TrialState.FAIL, "oom_graph_capture")


def test_the_verb_report_writes_one(tmp_path: Path) -> None:
    """Of the stored run of two H200, to a new file; one that is there is not overwritten."""
    stored = ROOT / "docs" / "results" / "2026-11-29-h200-padded-5b"
    run = tmp_path / "h200"
    (run / "trials").mkdir(parents=True)
    shutil.copy(stored / "plan.yaml", run)
    shutil.copy(stored / "trials.parquet", run / "trials" / "000000.parquet")
    file = tmp_path / "study.db"
    done = orchestrator("report", run, f"optuna={file}")
    assert done.returncode == 0, done.stderr
    assert len(optuna.load_study(study_name=None, storage=f"sqlite:///{file}").trials) == 26
    again = orchestrator("report", run, f"optuna={file}")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert "report takes one run directory and optuna=FILE" in orchestrator("report", run, "out=x").stderr
