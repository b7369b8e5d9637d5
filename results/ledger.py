"""Ledger: the measured truth of a run, one Parquet file a trial, written anew after each load point.

A file is written beside trials/ and renamed into it, so pandas, duckdb and polars see whole files only, at any instant.
(Within trials/ no temporary name is safe: polars and duckdb read `.x.parquet`, and polars refuses a folder that holds
anything not called .parquet.  And polars asks for a file's size first and opens it then: in the millisecond in which the
file of a running trial is replaced it can meet the wrong one, says so, and has to read again.)  All files have the same schema, results.record.schema().

Not here: what was merely started (rundir.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from results.record import Record, schema
from results.rundir import RunDir, write_whole

log = logging.getLogger(__name__)

Key = tuple[str, int, str, int, int]
"""(settings key as asked, launch, workload, concurrency, repeat)."""


class DuplicateKey(Exception):  # noqa: N818 - what happened, as a noun
    """A point was measured twice: a mistake of the program, never of the person."""


class Unreadable(Exception):  # noqa: N818 - what is the matter, as a word
    """A Parquet file of trials/ is torn, empty or foreign."""


class Ledger:
    """The rows of one run.  The one process that holds the run's lock may have it open."""

    def __init__(self, run: RunDir, records: Iterable[Record] = ()) -> None:
        self._run = run
        self._rows: dict[int, list[Record]] = {}
        self._keys: set[Key] = set()
        for record in records:
            self._take(record)

    @classmethod
    def open(cls, run: RunDir) -> Ledger:
        """The ledger of `run`, tidied: half-written files are removed, unreadable ones moved to set-aside/ and noted."""
        run.trials_dir.mkdir(exist_ok=True)
        for stray in run.path.glob(".*.parquet.tmp"):
            stray.unlink()
        records: list[Record] = []
        for path in sorted(run.trials_dir.glob("*.parquet")):
            try:
                records += read_file(path)
            except Unreadable as error:
                _set_aside(run, path, str(error))
        return cls(run, records)

    @property
    def records(self) -> list[Record]:
        """All rows, in the order of their trials, and of their writing within a trial."""
        return [record for number in sorted(self._rows) for record in self._rows[number]]

    def of(self, trial: int) -> list[Record]:
        """The rows of one trial, all attempts."""
        return list(self._rows.get(trial, ()))

    def points(self) -> set[Key]:
        """The keys of all points measured."""
        return set(self._keys)

    def append(self, record: Record) -> None:
        """Make `record` durable: when this returns, it survives a kill and a power cut.

        Raises:
            DuplicateKey: a row with its key stands here already.
            DiskFull: no room; the rows written before are untouched and this one is not taken.
        """
        if record.key is not None and record.key in self._keys:
            raise DuplicateKey(
                f"trial {record.trial}: the point {record.key} was measured already. A deliberate relaunch takes the next launch ordinal."
            )
        rows = [*self.of(record.trial), record]
        write_whole(self._run.trial_file(record.trial), _parquet(rows), by_way_of=self._run.path)
        self._take(record)

    def _take(self, record: Record) -> None:
        if record.key is not None:
            self._keys.add(record.key)
        self._rows.setdefault(record.trial, []).append(record)


def read_records(path: Path) -> list[Record]:
    """The rows of a run directory, of its trials/, or of one Parquet file, in trial order; nothing is touched.

    Safe beside a live sweep.  A file of trials/ that cannot be read is named in the log and skipped.

    Raises:
        Unreadable: `path` is itself a file and cannot be read.
    """
    if path.is_file():
        return read_file(path)
    folder = path / "trials" if (path / "trials").is_dir() else path
    records: list[Record] = []
    for file in sorted(folder.glob("[!.]*.parquet")):
        try:
            records += read_file(file)
        except Unreadable as error:
            log.warning("%s; its rows are missing here", error)
    return sorted(records, key=lambda record: record.trial)


def rows_path(run: RunDir) -> Path:
    """Where the rows of `run` are read from: its compacted file where no file of trials/ is newer, else trials/."""
    compact = run.compact_file
    if not compact.exists():
        return run.trials_dir
    newest = max((file.stat().st_mtime_ns for file in run.trials_dir.glob("[!.]*.parquet")), default=0)
    return compact if compact.stat().st_mtime_ns >= newest else run.trials_dir


def read_tables(run: RunDir) -> list[pa.Table]:
    """The rows of `run` as Arrow tables, for whoever wants columns; unreadable files are skipped as in `read_records`."""
    path = rows_path(run)
    tables = []
    for file in [path] if path.is_file() else sorted(path.glob("[!.]*.parquet")):
        try:
            tables.append(_table(file))
        except Unreadable as error:
            log.warning("%s; its rows are missing here", error)
    return tables


def read_file(path: Path) -> list[Record]:
    """The rows of one file; columns it does not have yet are taken as not measured.

    Raises:
        Unreadable: it is torn, empty or holds something else.
    """
    blank = dict.fromkeys(schema().names)
    try:
        return [Record.from_row({**blank, **row}) for row in _table(path).to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path}: its rows are none of ours ({type(error).__name__}: {error})") from error


def _table(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"{path}: not a whole Parquet file ({type(error).__name__}: {error})") from error


def _parquet(records: list[Record]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([record.row() for record in records], schema=schema()), sink)
    return sink.getvalue()


def _set_aside(run: RunDir, path: Path, reason: str) -> None:
    run.set_aside_dir.mkdir(exist_ok=True)
    count = len(list(run.set_aside_dir.glob(f"{path.name}*")))
    kept = run.set_aside_dir / (path.name if count == 0 else f"{path.name}.{count}")
    path.rename(kept)
    log.warning("%s; moved to %s, its points are measured again on resume", reason, kept)
    run.note("set_aside", file=path.name, kept=str(kept.relative_to(run.path)), reason=reason)
