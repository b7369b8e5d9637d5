"""A run as an Optuna study: what optuna-dashboard opens is what was launched."""

from __future__ import annotations

import shutil
from pathlib import Path

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState

from results.record import Record
from sweeps.observation import Goal
from sweeps.sampler.export import url_of, write_study
from tests.fakes.command_line import ROOT, orchestrator
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured

RECORDS: list[Record] = [
    *(measured(PLAIN, tok_s, trial=0, concurrency=load) for load, tok_s in ((1, 100.0), (8, 400.0))),
    *(measured(EAGLE3, tok_s, trial=1, concurrency=load) for load, tok_s in ((1, 200.0), (8, 800.0))),
    failure(WIDE, trial=2),
]


def study(records: list[Record], path: Path, goal: Goal | None = None) -> optuna.Study:
    goal = goal or Goal()
    write_study([record.observation(goal) for record in records], goal, path, "a run")
    return optuna.load_study(study_name="a run", storage=url_of(path))


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


def test_a_metric_that_is_to_be_lowered_is_shown_as_it_was_measured(tmp_path: Path) -> None:
    """Milliseconds, not their inverse, in a study that is minimized: the fast setting is its best trial."""
    records = [
        *(measured(PLAIN, 100.0, trial=0, concurrency=load, tpot_p50_ms=ms) for load, ms in ((1, 8.0), (8, 18.0))),
        *(measured(EAGLE3, 200.0, trial=1, concurrency=load, tpot_p50_ms=ms) for load, ms in ((1, 4.0), (8, 9.0))),
    ]
    found = study(records, tmp_path / "study.db", Goal(minimize="tpot_p50_ms"))
    assert [trial.value for trial in found.trials] == [pytest.approx(12.0), pytest.approx(6.0)]
    assert found.trials[0].user_attrs["tpot_p50_ms at 1"] == pytest.approx(8.0)
    assert (found.direction, found.best_trial.number) == (StudyDirection.MINIMIZE, 1)


def test_a_file_has_the_name_that_it_was_given(tmp_path: Path) -> None:
    """Signs that mean something in a URL, too; nothing else is written."""
    assert len(study(RECORDS, tmp_path / "a?b#c%20d e.db").trials) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a?b#c%20d e.db"]


def stored_run(run: Path) -> Path:
    """The run of two H200 whose rows are in docs/."""
    stored = ROOT / "docs" / "results" / "2026-11-29-h200-padded-5b"
    (run / "trials").mkdir(parents=True)
    shutil.copy(stored / "plan.yaml", run)
    shutil.copy(stored / "trials.parquet", run / "trials" / "000000.parquet")
    return run


def test_a_file_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """With the word it was given as, and why."""
    done = orchestrator("report", stored_run(tmp_path / "h200"), "optuna=/proc/study.db")
    assert done.returncode == 2
    assert done.stderr.startswith("optuna=/proc/study.db: could not be written (")
    assert len(done.stderr.splitlines()) == 1


def test_the_verb_report_writes_one(tmp_path: Path) -> None:
    """Of the stored run of two H200, to a new file; one that is there is not overwritten."""
    run = stored_run(tmp_path / "h200")
    file = tmp_path / "study.db"
    done = orchestrator("report", run, f"optuna={file}")
    assert done.returncode == 0, done.stderr
    assert len(optuna.load_study(study_name=None, storage=f"sqlite:///{file}").trials) == 26
    again = orchestrator("report", run, f"optuna={file}")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert "report takes one run directory and optuna=FILE" in orchestrator("report", run, "out=x").stderr
