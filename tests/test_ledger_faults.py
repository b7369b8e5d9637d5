"""Ledger under fire: whatever a disk, a kill, a clock or a second driver does, what was finished stays and counts once."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import results
from results.driving import driver_of, lock
from results.files import DiskFull, NotWritable, RunDirProblem
from results.journal import MOST_SILENT_S
from results.ledger import COMPACT_FROM, Ledger, compact, read_records, rows_path
from results.rundir import RunDir
from sweeps.trial import LoadPoint, Trial
from tests.fakes.disks import fill, mounted, read_only
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured

POINTS = (LoadPoint(1, 0), LoadPoint(8, 0))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def trial(number: int) -> Trial:
    return Trial(number, EAGLE3, "trial", POINTS, launch=number)


def fill_ledger(run: RunDir, trials: int) -> None:
    ledger = Ledger.open(run)
    for number in range(trials):
        ledger.append(measured(EAGLE3, 100.0 + number, trial=number, launch=number))


# A power cut: every state that a rename which was cut can leave on a disk.


def cut_before_rename(run: RunDir, whole: bytes) -> None:
    (run.path / ".000001.parquet.tmp").write_bytes(whole)


def cut_while_writing(run: RunDir, whole: bytes) -> None:
    (run.path / ".000001.parquet.tmp").write_bytes(whole[: len(whole) // 2])


def renamed_without_content(run: RunDir, whole: bytes) -> None:
    run.trial_file(1).write_bytes(b"")


def renamed_with_zeros(run: RunDir, whole: bytes) -> None:
    run.trial_file(1).write_bytes(bytes(len(whole)))


def renamed_with_half(run: RunDir, whole: bytes) -> None:
    run.trial_file(1).write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))


def renamed_and_both_names(run: RunDir, whole: bytes) -> None:
    run.trial_file(1).write_bytes(whole)
    os.link(run.trial_file(1), run.path / ".000001.parquet.tmp")


STATES = [
    cut_before_rename, cut_while_writing, renamed_without_content, renamed_with_zeros, renamed_with_half,
    renamed_and_both_names,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_power_cut_in_the_middle_of_a_rename_costs_one_point_at_most(run: RunDir, state: Any) -> None:
    """The rows before it stay, the file it hit counts whole or not at all, and its point can be measured again."""
    fill_ledger(run, 1)
    row = measured(EAGLE3, 150.0, trial=1, launch=1)
    Ledger.open(run).append(row)
    whole = run.trial_file(1).read_bytes()
    run.trial_file(1).unlink()
    state(run, whole)
    ledger = Ledger.open(run)
    assert [record.trial for record in ledger.records] in ([0], [0, 1])
    if not ledger.of(1):
        ledger.append(row)
    assert len(read_records(run.path)) == len(pd.read_parquet(run.trials_dir)) == 2
    assert [path.name for path in run.trials_dir.iterdir() if path.suffix != ".parquet"] == []
    assert not list(run.path.glob(".*.tmp"))


@pytest.mark.parametrize("content", [b"", bytes(300), b'{"trial": 3, "sett'], ids=["empty", "zeros", "torn"])
def test_a_begun_file_that_a_power_cut_ruined_is_set_aside_and_named(run: RunDir, content: bytes) -> None:
    """Nothing is lost but its coordinates: what was measured stands in the ledger."""
    run.begin(trial(0))
    run.begin(trial(3))
    run.begun_file(3).write_bytes(content)
    (run.begun_dir / ".000004.json.tmp").write_bytes(b"{")
    Ledger.open(run)
    assert [begun.trial.number for begun in run.begun()] == [0]
    assert [path.name for path in run.begun_dir.iterdir()] == ["000000.json"]
    assert (run.set_aside_dir / "000003.json").read_bytes() == content
    assert run.journal.events()[-1]["file"] == "000003.json"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), bit=st.integers(0, 7))
def test_a_flipped_bit_never_counts_as_another_measurement(run: RunDir, at: float, bit: int) -> None:
    """Pages carry checksums: a row is what was written, or its file is set aside."""
    row = measured(EAGLE3, 150.0, trial=0)
    if run.set_aside_dir.exists():
        shutil.rmtree(run.set_aside_dir)
    run.trial_file(0).unlink(missing_ok=True)
    Ledger.open(run).append(row)
    content = bytearray(run.trial_file(0).read_bytes())
    content[min(int(at * len(content)), len(content) - 1)] ^= 1 << bit
    run.trial_file(0).write_bytes(content)
    figures = [(r.measurement, r.key) for r in Ledger.open(run).records]
    assert figures in ([], [(row.measurement, row.key)])


def test_a_file_under_another_trials_name_is_set_aside(run: RunDir) -> None:
    """A copy that somebody left in trials/ does not count its points twice."""
    fill_ledger(run, 2)
    shutil.copy(run.trial_file(0), run.trial_file(7))
    shutil.copy(run.trial_file(1), run.trials_dir / "copy.parquet")
    assert len(Ledger.open(run).records) == 2
    assert sorted(path.name for path in run.set_aside_dir.iterdir()) == ["000007.parquet", "copy.parquet"]


# A full disk, and one that cannot be written.


def test_a_full_disk_costs_the_row_that_met_it_and_no_other(tmp_path: Path) -> None:
    """On a real file system without room: the words say what to do; with room again it goes on."""
    with mounted(tmp_path / "disk", size_mib=4) as disk:
        run = RunDir.at(disk / "run")
        fill_ledger(run, 3)
        ledger = Ledger.open(run)
        filler = fill(disk)
        with pytest.raises(DiskFull, match=r"000003\.parquet.*disk is full.*resume"):
            ledger.append(measured(EAGLE3, 1.0, trial=3, launch=3))
        with pytest.raises(DiskFull):
            run.begin(trial(4))
        with pytest.raises(DiskFull):
            run.require_room()
        assert len(Ledger.open(run).records) == len(pd.read_parquet(run.trials_dir)) == 3
        filler.unlink()
        run.require_room()
        ledger.append(measured(EAGLE3, 1.0, trial=3, launch=3))
        assert len(read_records(run.path)) == 4


def test_a_run_that_cannot_be_written_is_one_message_and_can_be_read(tmp_path: Path) -> None:
    """On a read-only file system every writer says so, and every reader works."""
    with mounted(tmp_path / "disk", size_mib=4) as disk:
        run = RunDir.at(disk / "run")
        fill_ledger(run, 2)
        ledger = Ledger.open(run)
        read_only(disk)
        writes = [
            lambda: ledger.append(measured(WIDE, 1.0, trial=3)), lambda: run.begin(trial(4)), lambda: run.journal.note("x"),
            lambda: run.write_text(run.plan, "x"), lambda: lock(run).__enter__(), lambda: RunDir.at(disk / "other"),
        ]  # fmt: skip
        for write in writes:
            with pytest.raises(RunDirProblem, match=r"Read-only file system.*(writable|out=DIR)"):
                write()
        assert len(Ledger.open(run).records) == len(results.load(run)) == 2
        assert driver_of(run) is None
        read_only(disk, on=False)
        ledger.append(measured(WIDE, 1.0, trial=3))


def test_why_a_file_cannot_be_written_is_said_as_the_system_says_it(run: RunDir) -> None:
    """Here a directory stands in the file's place."""
    (run.path / ".000000.parquet.tmp").mkdir()
    with pytest.raises(NotWritable, match=r"000000\.parquet: could not be written \(Is a directory\)"):
        Ledger(run).append(measured(EAGLE3, 1.0, trial=0))


# Clocks.


def journal(run: RunDir, *lines: tuple[str, timedelta, float | None]) -> None:
    """A journal whose lines stand at these wall times and steady seconds."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for event, at, steady_s in lines:
        entry = {"at": (start + at).isoformat(), "event": event}
        with run.journal.path.open("a") as file:
            file.write(json.dumps(entry if steady_s is None else {**entry, "steady_s": steady_s}) + "\n")


HOUR, YEAR = timedelta(hours=1), timedelta(days=365)


@pytest.mark.parametrize("jump", [YEAR, -YEAR, -HOUR, timedelta(0)], ids=str)
def test_a_clock_that_is_set_changes_nothing_about_the_hours_spent(run: RunDir, jump: timedelta) -> None:
    """Two hours of a driver, whatever the wall clock did in between; the hours between drivers do not count."""
    journal(
        run, ("sweep_started", HOUR * 0, 50.0), ("trial_ended", HOUR + jump, 3650.0), ("sweep_ended", HOUR + jump, 3650.0),
        ("sweep_resumed", HOUR * 30 + jump, 7.0), ("trial_ended", HOUR * 31, 3607.0),
    )  # fmt: skip
    assert run.journal.hours_spent() == pytest.approx(2.0)


def test_hours_of_an_older_journal_are_counted_by_the_wall_clock_without_its_jumps(run: RunDir) -> None:
    """Without a steady clock a step back, or of more than a day, is no time that passed."""
    later = timedelta(seconds=MOST_SILENT_S + 1)
    journal(
        run, ("sweep_started", HOUR * 0, None), ("trial_ended", HOUR, None), ("trial_ended", HOUR + later, None),
        ("trial_ended", HOUR * 2 + later, None), ("trial_ended", HOUR * 1, None), ("sweep_ended", HOUR * 2, None),
    )  # fmt: skip
    assert run.journal.hours_spent() == pytest.approx(3.0)


def test_every_line_of_the_journal_has_a_steady_clock(run: RunDir) -> None:
    """It never goes back within one driver."""
    for _ in range(5):
        run.journal.note("anything")
    steady_s = [event["steady_s"] for event in run.journal.events()]
    assert steady_s == sorted(steady_s)


@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.dictionaries(
                st.sampled_from(["at", "event", "held_s", "gpus", "steady_s"]),
                st.one_of(
                    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2),
                    st.sampled_from(["2026-01-01T00:00:00+00:00", "2026-01-01", "sweep_started", "trial_ended"]),
                ),
            ).map(lambda entry: json.dumps(entry).encode()),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_a_journal_of_anything_gives_plausible_hours(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    """Not negative, not infinite, and never an exception."""
    run = RunDir.at(tmp_path_factory.mktemp("journal") / "run")
    run.journal.path.write_bytes(b"\n".join(lines))
    assert 0 <= run.journal.hours_spent() < float("inf")
    assert 0 <= run.journal.gpu_hours_spent() < float("inf")
    run.journal.note("after")
    assert run.journal.events()[-1]["event"] == "after"


# The compacted file.


@pytest.fixture
def long(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that is worth compacting: five trials will do here."""
    monkeypatch.setattr("results.ledger.COMPACT_FROM", 5)
    ledger = Ledger.open(run)
    for number, concurrency in itertools.product(range(4), (1, 8)):
        ledger.append(measured(EAGLE3, 100.0 + number, trial=number, launch=number, concurrency=concurrency))
    ledger.append(failure(WIDE, trial=4))
    return run


def test_a_compacted_file_holds_the_same_rows(long: RunDir) -> None:
    """Row by row and column by column, as Records, as a DataFrame, and for pandas by itself."""
    before, frame = results.load_records(long), results.load(long)
    assert compact(long)
    assert rows_path(long) == long.compact_file
    assert results.load_records(long) == before == read_records(long.path)
    pd.testing.assert_frame_equal(results.load(long), frame)
    assert pq.read_table(long.compact_file).to_pylist() == pq.read_table(long.trials_dir).to_pylist()
    assert [path.name for path in long.compact_file.parent.iterdir()] == ["trials.parquet"]


def test_a_short_run_is_not_compacted(run: RunDir) -> None:
    """Below 200 files reading them is fast enough."""
    fill_ledger(run, 3)
    assert COMPACT_FROM == 200
    assert not compact(run)
    assert not run.compact_file.parent.exists()


def test_a_compacted_file_is_left_as_it_is_while_it_is_whole(long: RunDir) -> None:
    """A second report does not write it again."""
    assert compact(long)
    before = long.compact_file.stat()
    assert compact(long)
    assert long.compact_file.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("years", [-1, 0, 1])
def test_a_compacted_file_is_ignored_once_anything_of_trials_changed(long: RunDir, years: int) -> None:
    """Whatever the clock says of the change: a row more, a file gone, a file replaced."""
    compact(long)
    Ledger.open(long).append(measured(PLAIN, 60.0, trial=9))
    moment = long.compact_file.stat().st_mtime_ns + years * 365 * 86400 * 10**9
    os.utime(long.trial_file(9), ns=(moment, moment))
    assert len(results.load(long)) == 10
    assert compact(long)
    assert rows_path(long) == long.compact_file
    long.trial_file(9).unlink()
    assert rows_path(long) == long.trials_dir
    assert len(results.load(long)) == 9


@pytest.mark.parametrize("content", [b"", b"PAR1 no end", bytes(999)])
def test_a_ruined_compacted_file_is_not_read(long: RunDir, content: bytes) -> None:
    """trials/ is the truth; the next report makes it anew."""
    compact(long)
    long.compact_file.write_bytes(content)
    assert len(results.load(long)) == 9
    assert compact(long)
    assert rows_path(long) == long.compact_file


def test_a_run_with_a_ruined_file_is_not_compacted(long: RunDir) -> None:
    """Else nobody would hear any more of what is missing."""
    long.trial_file(2).write_bytes(b"torn")
    assert not compact(long)
    assert rows_path(long) == long.trials_dir


def test_a_full_disk_leaves_the_old_compacted_file(long: RunDir) -> None:
    """It is written beside its place and renamed, like everything else."""
    compact(long)
    before = long.compact_file.read_bytes()
    Ledger.open(long).append(measured(PLAIN, 60.0, trial=9))
    (long.compact_file.parent / ".trials.parquet.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"compact/trials\.parquet"):
        compact(long)
    assert long.compact_file.read_bytes() == before
    assert len(results.load(long)) == 10


def test_columns_that_an_older_release_did_not_have_are_empty_in_the_compacted_file(long: RunDir) -> None:
    """Old and new files unite."""
    pq.write_table(pq.read_table(long.trial_file(0)).drop_columns(["itl_p99_ms"]), long.trial_file(0))
    assert compact(long)
    assert len(results.load(long)) == 9


def test_rows_of_another_kind_are_none_of_ours(run: RunDir) -> None:
    """A whole Parquet file with the wrong type of a column is set aside like a torn one."""
    pq.write_table(pa.table({"trial": ["a"], "status": [1]}), run.trial_file(0))
    assert read_records(run.path) == []
    assert results.load(run).empty
    assert Ledger.open(run).records == []
    assert (run.set_aside_dir / "000000.parquet").exists()
