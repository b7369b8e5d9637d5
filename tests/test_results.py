"""What an analyst calls: one run or many as a frame, rows read lazily, and keys that compare across runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as pads
import pytest

import results
from results.files import RunDirProblem
from results.ledger import Ledger
from results.record import Record, schema
from results.rundir import RunDir
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, failure, measured


def run_with(place: Path, *records: Record) -> RunDir:
    run = RunDir.at(place)
    run.plan.write_text("# conf: test\n")
    ledger = Ledger(run)
    for record in records:
        ledger.append(record)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs that call one drafter by two names, and a folder that is none."""
    run_with(
        tmp_path / "runs" / "eagle3" / "a", measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 150.0, trial=1, drafter_hash="f00d")
    )  # fmt: skip
    run_with(
        tmp_path / "runs" / "other" / "b", measured(PLAIN, 110.0, trial=0), measured(PUBLIC, 160.0, trial=1, drafter_hash="f00d"),
        failure(EAGLE3, trial=2),
    )  # fmt: skip
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_many_runs_are_one_frame(runs: Path) -> None:
    """A pattern meets every run directory below it; each row says which it is from."""
    frame = results.load(f"{runs}/**")
    assert len(frame) == 5
    assert {Path(place).name for place in frame.run_dir} == {"a", "b"}
    assert len(results.load(f"{runs}/eagle3/*")) == 2


def test_keys_compare_across_runs(runs: Path) -> None:
    """The same drafter under two names has one comparable key; another drafter under the same name has its own."""
    frame = results.load(f"{runs}/**")
    speculative = frame[frame.algorithm == "EAGLE3"]
    same = speculative[speculative.drafter_hash == "f00d"]
    assert same.settings_key.nunique() == 2
    assert same.comparable_key.nunique() == 1
    assert speculative.comparable_key.nunique() == 2
    assert frame[frame.algorithm == "none"].comparable_key.nunique() == 1


def test_a_pattern_that_meets_no_run_is_said(tmp_path: Path) -> None:
    """Rather than an empty frame."""
    with pytest.raises(RunDirProblem, match="meets no run directory"):
        results.load(f"{tmp_path}/**")


def test_a_dataset_reads_the_same_rows_lazily(runs: Path) -> None:
    """Of one run or many, with filters and columns pushed down, and every column of the schema."""
    one = results.dataset(runs / "eagle3" / "a")
    assert one.schema.names == schema().names
    assert one.count_rows() == 2
    many = results.dataset(f"{runs}/**")
    fast = many.to_table(columns=["output_tok_s"], filter=pads.field("output_tok_s") > 120)
    assert sorted(fast.column("output_tok_s").to_pylist()) == [150.0, 160.0]
