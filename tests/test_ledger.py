"""Ledger: one Parquet file a trial; whatever was acknowledged can be read, by anyone, at any instant, after any kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import results
from results.files import DiskFull, RunDirProblem
from results.ledger import DuplicateKey, Ledger, Unreadable, read_file, read_records
from results.record import schema
from results.rundir import RunDir
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured

WRITER = """
import itertools, sys
from pathlib import Path
from results.ledger import Ledger
from results.rundir import RunDir
from tests.fakes.records import EAGLE3, measured

ledger = Ledger.open(RunDir(Path(sys.argv[1])))
first = max((record.trial for record in ledger.records), default=-1) + 1
for trial in itertools.count(first):
    for repeat in range(3):
        ledger.append(measured(EAGLE3, 100.0 + trial, trial=trial, launch=trial, repeat=repeat))
        print(trial, repeat, flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def start_writer(run: RunDir) -> subprocess.Popen[str]:
    """A process that appends rows for ever and says so after each."""
    root = Path(__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run.path)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(writer: subprocess.Popen[str]) -> list[str]:
    """Kill it at once; what it had acknowledged by then."""
    writer.send_signal(signal.SIGKILL)
    acknowledged = writer.communicate()[0].splitlines(keepends=True)
    return [line.strip() for line in acknowledged if line.endswith("\n")]


@pytest.fixture
def busy(run: RunDir) -> Iterator[RunDir]:
    """A run to which another process keeps appending rows; at least one is there."""
    writer = start_writer(run)
    assert writer.stdout is not None
    assert writer.stdout.readline()
    yield run
    assert writer.poll() is None, "the writer died"
    end(writer)


def test_rows_come_back_when_a_ledger_is_opened_again(run: RunDir) -> None:
    """What one driver measured, the next one knows: rows, keys, and rows by trial."""
    rows = [measured(PLAIN, 100.0, trial=0), failure(WIDE, trial=2), measured(EAGLE3, 150.0, trial=1)]
    ledger = Ledger.open(run)
    for row in rows:
        ledger.append(row)
    again = Ledger.open(run)
    assert again.records == [rows[0], rows[2], rows[1]]
    assert again.of(1) == [rows[2]]
    assert again.of(7) == []
    assert again.points() == {rows[0].key, rows[2].key}


def test_a_trial_is_one_file_that_grows_by_load_points(run: RunDir) -> None:
    """Each load point replaces the trial's file by one with a row more; trials/ holds nothing else."""
    ledger = Ledger.open(run)
    for count, concurrency in enumerate((1, 8, 32), start=1):
        ledger.append(measured(EAGLE3, 100.0, trial=17, concurrency=concurrency))
        assert len(read_file(run.trial_file(17))) == count
    assert [path.name for path in run.trials_dir.iterdir()] == ["000017.parquet"]


def test_one_key_never_has_two_rows(run: RunDir) -> None:
    """A second measurement of a point is refused, in this process and after reopening; a relaunch is another point."""
    ledger = Ledger.open(run)
    ledger.append(measured(EAGLE3, 100.0, trial=0))
    with pytest.raises(DuplicateKey, match="next launch ordinal"):
        ledger.append(measured(EAGLE3, 101.0, trial=1))
    with pytest.raises(DuplicateKey):
        Ledger.open(run).append(measured(EAGLE3, 101.0, trial=1))
    ledger.append(measured(EAGLE3, 101.0, trial=1, launch=1))
    assert len(ledger.records) == 2


def test_failures_of_one_trial_may_repeat(run: RunDir) -> None:
    """A failure has no key: a second attempt may fail too, and both stay on record."""
    ledger = Ledger.open(run)
    ledger.append(failure(EAGLE3, trial=0))
    ledger.append(failure(EAGLE3, trial=0))
    assert len(Ledger.open(run).of(0)) == 2


def test_all_files_have_the_same_schema(run: RunDir) -> None:
    """A file whose columns are all empty (a failure) still unites with the others: types are declared, not guessed."""
    ledger = Ledger.open(run)
    ledger.append(failure(PLAIN, trial=0))
    ledger.append(measured(EAGLE3, 100.0, trial=1))
    assert all(pq.read_schema(path).equals(schema()) for path in run.trials_dir.iterdir())


@pytest.mark.parametrize("content", [b"", b"PAR1 and no end", b"not parquet at all"], ids=["empty", "torn", "foreign"])
def test_an_unreadable_file_is_set_aside_and_the_rest_counts(run: RunDir, content: bytes) -> None:
    """A file that a disk ruined costs its own rows only; it is kept, named in the journal, and its trial is free again."""
    ledger = Ledger.open(run)
    ledger.append(measured(PLAIN, 100.0, trial=0))
    ledger.append(measured(EAGLE3, 150.0, trial=1))
    run.trial_file(1).write_bytes(content)
    again = Ledger.open(run)
    assert [record.trial for record in again.records] == [0]
    assert (run.set_aside_dir / "000001.parquet").read_bytes() == content
    assert run.journal.events()[-1]["event"] == "set_aside"
    assert run.journal.events()[-1]["file"] == "000001.parquet"
    again.append(measured(EAGLE3, 150.0, trial=1))
    assert len(pd.read_parquet(run.trials_dir)) == 2


def test_a_cut_file_is_set_aside(run: RunDir) -> None:
    """A file that lost its last 40 bytes has no footer and is no file of rows."""
    Ledger.open(run).append(measured(PLAIN, 100.0, trial=0))
    content = run.trial_file(0).read_bytes()
    run.trial_file(0).write_bytes(content[:-40])
    assert Ledger.open(run).records == []


def test_the_same_file_ruined_twice_is_kept_twice(run: RunDir) -> None:
    """Setting aside never overwrites what was set aside before."""
    for content in (b"first", b"second"):
        run.trial_file(0).write_bytes(content)
        Ledger.open(run)
    assert sorted(path.read_bytes() for path in run.set_aside_dir.iterdir()) == [b"first", b"second"]


def test_half_written_files_are_swept_away_on_open(run: RunDir) -> None:
    """A temporary file that a kill left behind is no row and goes; what others put there stays."""
    stray = run.path / ".000003.parquet.tmp"
    stray.write_bytes(b"half a f")
    other = run.trials_dir / "notes.txt"
    other.write_text("mine")
    Ledger.open(run)
    assert not stray.exists()
    assert other.exists()


def test_reading_beside_a_live_sweep_touches_nothing(run: RunDir) -> None:
    """`read_records` leaves temporary and ruined files alone: they are the driver's."""
    Ledger.open(run).append(measured(PLAIN, 100.0, trial=0))
    stray = run.path / ".000003.parquet.tmp"
    stray.write_bytes(b"half a f")
    run.trial_file(1).write_bytes(b"torn")
    assert [record.trial for record in read_records(run.path)] == [0]
    assert stray.exists()
    assert run.trial_file(1).exists()
    with pytest.raises(Unreadable, match="000001"):
        read_records(run.trial_file(1))


def test_a_full_disk_leaves_earlier_rows_whole(run: RunDir) -> None:
    """No space left: a message with the path and what to do; the trial's earlier rows can be read, and it goes on later."""
    ledger = Ledger.open(run)
    ledger.append(measured(EAGLE3, 100.0, trial=0, concurrency=1))
    (run.path / ".000000.parquet.tmp").symlink_to("/dev/full")  # what is written here meets a full disk
    with pytest.raises(DiskFull, match=r"000000\.parquet.*disk is full.*resume"):
        ledger.append(measured(EAGLE3, 200.0, trial=0, concurrency=8))
    assert [path.name for path in run.trials_dir.iterdir()] == ["000000.parquet"]
    assert len(read_records(run.path)) == len(ledger.records) == 1
    ledger.append(measured(EAGLE3, 200.0, trial=0, concurrency=8))
    assert len(read_records(run.path)) == 2


def test_a_file_of_an_older_version_reads_with_its_missing_columns_empty(run: RunDir) -> None:
    """Columns are only ever added; a row written before has none there, and `results.load` unites both."""
    ledger = Ledger.open(run)
    ledger.append(measured(EAGLE3, 100.0, trial=0))
    table = pq.read_table(run.trial_file(0)).drop_columns(["itl_p99_ms"])
    pq.write_table(table, run.trial_file(0))
    ledger.append(measured(PLAIN, 50.0, trial=1, itl_p99_ms=9.0))
    assert read_file(run.trial_file(0)) == [measured(EAGLE3, 100.0, trial=0)]
    assert sorted(results.load(run).itl_p99_ms.dropna()) == [9.0]


READERS: dict[str, Callable[[Path], int]] = {
    "pandas": lambda trials: len(pd.read_parquet(trials)),
    "polars": lambda trials: len(pl.read_parquet(trials)),
    "polars scan": lambda trials: pl.scan_parquet(trials / "*.parquet").select(pl.len()).collect().item(),
    "duckdb": lambda trials: duckdb.sql(f"select count(*) from read_parquet('{trials}/*.parquet')").fetchall()[0][0],  # noqa: S608
    "ours": lambda trials: len(read_records(trials)),
}


def count_rows(name: str, trials: Path) -> int:
    """Polars asks for sizes before it opens: under a writer that never rests it may have to read again."""
    for _ in range(9):
        try:
            return READERS[name](trials)
        except pl.exceptions.ComputeError:
            assert name.startswith("polars")
    return READERS[name](trials)


@pytest.mark.parametrize("name", READERS)
def test_readers_see_whole_files_while_a_sweep_writes(busy: RunDir, name: str) -> None:
    """pandas, polars and duckdb read the rows of a live sweep at any instant, and never fewer than before."""
    counts = [count_rows(name, busy.trials_dir) for _ in range(15)]
    assert counts == sorted(counts)
    assert counts[0] >= 1


@pytest.mark.parametrize("name", READERS)
def test_readers_agree_afterwards(run: RunDir, name: str) -> None:
    """After a sweep all readers see the same rows."""
    ledger = Ledger.open(run)
    for trial in range(3):
        ledger.append(measured(EAGLE3, 100.0, trial=trial, launch=trial, concurrency=1))
        ledger.append(measured(EAGLE3, 200.0, trial=trial, launch=trial, concurrency=8))
    ledger.append(failure(WIDE, trial=3))
    assert READERS[name](run.trials_dir) == 7


def test_every_acknowledged_row_survives_kill_minus_nine(run: RunDir) -> None:
    """A writer killed again and again, in the middle of writing, never loses a row that it had acknowledged."""
    chance = random.Random(7)  # noqa: S311 - the moments of the kills
    acknowledged: set[tuple[int, int]] = set()
    for _ in range(8):
        writer = start_writer(run)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 12))]
        time.sleep(chance.random() / 300)  # somewhere within the next write
        acknowledged |= {tuple(map(int, line.split())) for line in [*lines, *end(writer)]}  # type: ignore[misc]
        assert len(pd.read_parquet(run.trials_dir)) >= len(acknowledged)
    found = [(record.trial, record.point.repeat) for record in Ledger.open(run).records if record.point]
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))
    assert not run.set_aside_dir.exists()


def test_load_reads_the_compacted_file_or_the_trials_but_never_both(run: RunDir) -> None:
    """A compacted file stands in for trials/ while it is the newer; a later row makes trials/ the truth again."""
    ledger = Ledger.open(run)
    ledger.append(measured(PLAIN, 100.0, trial=0))
    ledger.append(measured(EAGLE3, 150.0, trial=1))
    run.compact_file.parent.mkdir()
    pq.write_table(pa.concat_tables([pq.read_table(run.trial_file(n)) for n in (0, 1)]), run.compact_file)
    assert len(results.load(run)) == len(results.load_records(run.path)) == 2
    ledger.append(measured(WIDE, 170.0, trial=2))
    os.utime(run.trial_file(2), ns=(run.compact_file.stat().st_mtime_ns + 1,) * 2)
    assert len(results.load(run)) == len(results.load_records(run)) == 3


def test_load_gives_an_analyst_typed_columns(run: RunDir) -> None:
    """Whole numbers stay whole beside failures, which have none; flags are lists; the docs of columns are at hand."""
    ledger = Ledger.open(run)
    ledger.append(measured(EAGLE3, 100.0, trial=0))
    ledger.append(failure(WIDE, trial=1))
    frame = results.load(str(run.path))
    assert frame.concurrency.dtype == "Int32"
    assert frame.concurrency.isna().tolist() == [False, True]
    assert frame.loc[frame.status == "failed", "failure_kind"].tolist() == ["oom_graph_capture"]
    assert results.columns()["ttft_p99_ms"] == "Time to first token, 99th percentile. [ms]"
    assert set(results.columns()) == set(frame.columns)


def test_load_of_a_run_without_rows_is_an_empty_frame_with_all_columns(run: RunDir) -> None:
    """A sweep that measured nothing yet can be looked at."""
    frame = results.load(run)
    assert frame.empty
    assert list(frame.columns) == schema().names


def test_load_says_when_there_is_no_run(tmp_path: Path) -> None:
    """A wrong path is a message, not an empty frame."""
    with pytest.raises(RunDirProblem, match="no such directory"):
        results.load(tmp_path / "nowhere")


def test_importing_results_is_cheap() -> None:
    """An analyst's import brings in neither pandas nor pyarrow nor scipy until they are needed."""
    code = (
        "import sys, json, results; print(json.dumps([m for m in ('pandas', 'pyarrow', 'scipy') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
