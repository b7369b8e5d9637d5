"""Ledger: the measured truth of a run, one Parquet file a trial, written anew after each load point.

A file is written beside trials/ and renamed into it, so pandas, duckdb and polars see whole files only, at any instant.
(Within trials/ no temporary name is safe: polars and duckdb read `.x.parquet`, and polars refuses a folder that holds
anything not called .parquet.  And polars asks for a file's size first and opens it then: in the millisecond in which the
file of a running trial is replaced it can meet the wrong one, says so, and has to read again.)  All files have the same schema, results.record.schema().

compact/trials.parquet holds the same rows in one file, for fast reading.  It is derived: it remembers which files it was
made from and is read only while trials/ still holds exactly these.  (By name, size and time of change, so neither a clock
that was set nor a file that was put back can make an old one pass for new.)

Not here: what was merely started (rundir.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from results.files import RunDirProblem, Unreadable, write_whole
from results.record import Record, schema
from results.redaction import redacted
from results.rundir import RunDir
from results.tidying import set_aside, tidy
from sweeps.trial import Trial

log = logging.getLogger(__name__)

Key = tuple[str, int, str, int, int]
"""(settings key as asked, launch, workload, concurrency, repeat)."""
COMPACT_FROM = 200
"""Files of trials/ from which on a compacted file is worth its while."""
_MADE_FROM = b"made_from"
_NEVER_NULL = (
    "trial",
    "attempt",
    "launch",
    "kind",
    "status",
    "flags",
    "asked_settings",
    "server_args",
    "gpus",
    "argv",
    "started_at",
)


class DuplicateKey(Exception):  # noqa: N818 - what happened, as a noun
    """A point was measured twice: a mistake of the program, never of the person."""


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
        """The ledger of `run`, tidied: half-written files are removed, unreadable ones moved to set-aside/ and noted, and
        trials that have rows stand in begun/.

        Raises:
            RunDirProblem: it cannot be tidied, for want of room or permission.
        """
        tidy(run)
        try:
            run.trials_dir.mkdir(exist_ok=True)
        except OSError as error:
            raise RunDirProblem.of(run.trials_dir, error) from error
        ledger = cls(run)
        for path in sorted(run.trials_dir.glob("[!.]*.parquet")):
            try:
                ledger._take_file(path)
            except Unreadable as error:
                set_aside(run, path, str(error))
        ledger._begin_again()
        return ledger

    def _begin_again(self) -> None:
        """Rows whose file in begun/ was lost or ruined: their trial was begun all the same, and its number is taken."""
        for number in sorted(self._rows):
            if not self._run.begun_file(number).exists():
                self._run.begin(_trial(self._rows[number]))

    def _take_file(self, path: Path) -> None:
        """Raises Unreadable when it holds other rows than its name says, or points that stand elsewhere already."""
        records = read_file(path)
        keys = [record.key for record in records if record.key is not None]
        if any(self._run.trial_file(record.trial) != path for record in records):
            raise Unreadable(f"{path}: holds rows of other trials")
        if len(set(keys)) < len(keys) or self._keys.intersection(keys):
            raise Unreadable(f"{path}: holds points that were measured already")
        for record in records:
            self._take(record)

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
            DiskFull, NotWritable: the rows written before are untouched and this one is not taken.
        """
        if record.key is not None and record.key in self._keys:
            raise DuplicateKey(
                f"trial {record.trial}: the point {record.key} was measured already. A deliberate relaunch takes the next launch ordinal."
            )
        record = _without_secrets(record)
        rows = [*self.of(record.trial), record]
        write_whole(self._run.trial_file(record.trial), _parquet(rows), by_way_of=self._run.path)
        self._take(record)

    def amend(self, trial: int, change: Callable[[Record], Record]) -> None:
        """Write the rows of a trial anew, each changed: what is learned of a launch after it has ended.

        Raises:
            DiskFull, NotWritable: the rows stand as they were.
        """
        rows = [_without_secrets(change(record)) for record in self.of(trial)]
        if rows:
            write_whole(self._run.trial_file(trial), _parquet(rows), by_way_of=self._run.path)
            self._rows[trial] = rows

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
    """Where the rows of `run` are read from: its compacted file while it is made from all that trials/ holds, else trials/."""
    try:
        made_from = (pq.read_schema(run.compact_file).metadata or {}).get(_MADE_FROM)
    except (pa.ArrowException, OSError):
        return run.trials_dir
    return run.compact_file if made_from == _fingerprint(run) else run.trials_dir


def compact(run: RunDir) -> bool:
    """Write compact/trials.parquet anew, if trials/ has so many files that it is worth it; whether there is one now.

    Not while a file of trials/ cannot be read: what is missing is to be said at each reading.

    Raises:
        DiskFull, NotWritable: an old compacted file is untouched.
    """
    if rows_path(run) == run.compact_file:
        return True
    made_from, files = _fingerprint(run), sorted(run.trials_dir.glob("[!.]*.parquet"))
    if len(files) < COMPACT_FROM:
        return False
    try:
        tables = [_table(file) for file in files]
    except Unreadable as error:
        log.warning("%s; no compacted file is made", error)
        return False
    table = joined(tables)
    try:
        run.compact_file.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise RunDirProblem.of(run.compact_file, error) from error
    write_whole(run.compact_file, _bytes(table.replace_schema_metadata({**schema().metadata, _MADE_FROM: made_from})))
    return True


def _fingerprint(run: RunDir) -> bytes:
    """Of the names, sizes and times of change of all files of trials/."""
    try:
        with os.scandir(run.trials_dir) as entries:
            found = sorted((entry.name, entry.stat()) for entry in entries if entry.name.endswith(".parquet"))
    except OSError:
        return b"not to be read"
    text = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in found)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest().encode()


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


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """All rows in their order, with every column that there is.

    Neighbours of one release are put together first: to unify a thousand equal schemas takes longer than to read them.
    """
    alike = [
        pa.concat_tables(run)
        for _, run in itertools.groupby(tables, key=lambda table: (table.schema.names, table.schema.types))
    ]
    return pa.concat_tables([schema().empty_table(), *alike], promote_options="default")


def read_file(path: Path) -> list[Record]:
    """The rows of one file; columns it does not have yet are taken as not measured.

    Raises:
        Unreadable: it is torn, empty or holds something else.
    """
    try:
        return Record.from_table(_table(path))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Unreadable(f"{path}: its rows are none of ours ({type(error).__name__}: {error})") from error


def _table(path: Path) -> pa.Table:
    """The rows of a file as they stand.  One thread: starting more takes longer than reading so small a file.

    Raises:
        Unreadable: it is torn, a page of it is not what was written (they carry checksums), or it holds something else.
    """
    try:
        content = pa.py_buffer(path.read_bytes())
        table = pq.ParquetFile(content, pre_buffer=False, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise Unreadable(f"{path}: not a whole Parquet file ({type(error).__name__}: {error})") from error
    if wrong := _wrong_column(table):
        raise Unreadable(f"{path}: its rows are none of ours ({wrong})")
    return table


def _trial(rows: list[Record]) -> Trial:
    """The trial that these are rows of, without the sampler's coordinates, which no row holds."""
    last = rows[-1]
    points = sorted({row.point for row in rows if row.point is not None})
    return Trial(last.trial, last.asked, last.kind, tuple(points), launch=last.launch, attempt=last.attempt)


def _wrong_column(table: pa.Table) -> str | None:
    """What a table of rows cannot be like; columns that are missing or more are another release's."""
    ours = {field.name: field.type for field in schema()}
    names = table.schema.names
    if len(set(names)) < len(names):
        return "a column is there twice"
    for field in table.schema:
        if field.name in ours and field.type != ours[field.name]:
            return f"{field.name} is {field.type}, not {ours[field.name]}"
    missing = [name for name in _NEVER_NULL if name not in names or table.column(name).null_count]
    if not missing and set(names) - ours.keys():  # columns are only ever added: no release knows one and lacks another
        missing = [name for name in ours if name not in names]
    return f"{missing[0]} is missing" if missing else None


def _parquet(records: list[Record]) -> pa.Buffer:
    """Plain pages: for so few rows dictionaries, statistics and compression take longer to read than they save (by 40 %)."""
    table = pa.Table.from_pylist([record.row() for record in records], schema=schema())
    return _bytes(table, use_dictionary=False, write_statistics=False, compression="none")


def _bytes(table: pa.Table, **how: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True, **how)
    return sink.getvalue()


def _without_secrets(record: Record) -> Record:
    """Whatever a server or a library said may stand in a message, and a person's words in a command line."""
    failure = record.failure
    if failure is not None:  # a message may hold what is no text: Parquet would refuse it
        message = redacted(failure.message).encode(errors="replace").decode()
        failure = dataclasses.replace(failure, message=message)
    argv = tuple(map(redacted, record.origin.argv))
    return dataclasses.replace(record, failure=failure, origin=dataclasses.replace(record.origin, argv=argv))
