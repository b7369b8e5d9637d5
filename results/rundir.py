"""RunDir: every path of one run, absolute; its lock, its journal (events.jsonl) and what was started (begun/).

What is written here survives a kill at any moment: whole files go through a temporary name and a rename, the journal
grows by one write a line.  Not here: measured values (ledger.py), texts for people (report.py).
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial

log = logging.getLogger(__name__)

FOLDERS = ("begun", "trials", "logs")


class RunDirProblem(Exception):  # noqa: N818 - it is said to a person, as are its kin in the orchestrator
    """A run directory that is busy, not empty, damaged or full; the message says which, where, and what to do."""


class DiskFull(RunDirProblem):
    """No room was left for a file; whatever stood under its name before is untouched."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: could not be written, the disk is full. Everything written before is whole. "
            f"Free some space on that file system, then resume the run."
        )


@dataclass(frozen=True)
class Begun:
    """A trial that was started, as begun/ remembers it; it says nothing about how it ended."""

    trial: Trial
    started_at: datetime
    host: str | None = None
    """Where its server runs; None until it was launched."""
    process_group: int | None = None
    marker: str | None = None
    """What the server carries in its arguments and environment, to find it again."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else was amended."""


@dataclass(frozen=True)
class RunDir:
    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())

    @property
    def marker(self) -> str:
        """What every server of this run carries first in its marker; other runs of the same name have another."""
        return f"{self.path.name}-{hashlib.sha256(str(self.path).encode()).hexdigest()[:8]}"

    # Where things are.

    @property
    def name(self) -> str:
        """What the rows of this run carry in their column `run`."""
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def lock_file(self) -> Path:
        return self.path / "run.lock"

    @property
    def begun_dir(self) -> Path:
        return self.path / "begun"

    @property
    def trials_dir(self) -> Path:
        return self.path / "trials"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    @property
    def set_aside_dir(self) -> Path:
        """Files that could not be read, kept for whoever wants to know why."""
        return self.path / "set-aside"

    @property
    def compact_file(self) -> Path:
        return self.path / "compact" / "trials.parquet"

    @property
    def summary(self) -> Path:
        return self.path / "summary.md"

    @property
    def best(self) -> Path:
        return self.path / "best.yaml"

    @property
    def launch_script(self) -> Path:
        return self.path / "launch.sh"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def begun_file(self, trial_number: int) -> Path:
        return self.begun_dir / f"{trial_number:06d}.json"

    def trial_file(self, trial_number: int) -> Path:
        return self.trials_dir / f"{trial_number:06d}.parquet"

    def logs(self, trial_name: str) -> Path:
        return self.logs_dir / trial_name

    def server_log(self, trial_name: str) -> Path:
        return self.logs(trial_name) / "server.log"

    # Making one, finding one.

    @classmethod
    def create(cls, out: Path, conf_name: str, now: datetime) -> RunDir:
        """A new directory out/<conf>/<UTC stamp>; a second one in the same second gets -2 and so on.

        Raises:
            RunDirProblem: it cannot be made there.
        """
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = Path(out).expanduser().absolute() / conf_name
        with _explained(folder, "make a run directory"):
            folder.mkdir(parents=True, exist_ok=True)
            count = 1
            while True:
                path = folder / (stamp if count == 1 else f"{stamp}-{count}")
                try:
                    path.mkdir()
                except FileExistsError:
                    count += 1
                else:
                    return cls(path)._with_folders()

    @classmethod
    def at(cls, path: Path) -> RunDir:
        """`path` itself as a new run directory: it must not exist yet, or be empty.

        Raises:
            RunDirProblem: it holds a run (the message names `resume`), other files, or cannot be made.
        """
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise RunDirProblem(f"out={path}: this is a file. Name a directory that is new or empty.")
        if run._holds_a_run():
            raise RunDirProblem(
                f"out={path}: there is a run in it already. Go on with it by `python -m orchestrator resume {path}`, "
                f"or name a new directory."
            )
        foreign = run._foreign_files()
        if foreign:
            raise RunDirProblem(
                f"out={path}: not empty, it holds {foreign[0]}{' and more' if foreign[1:] else ''}. "
                f"Name a directory that is new or empty; nothing was written."
            )
        with _explained(run.path, "make a run directory"):
            run.path.mkdir(parents=True, exist_ok=True)
            return run._with_folders()

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """The run directory at `path`; nothing is written.

        Raises:
            RunDirProblem: there is none; the message names the nearest one it could see.
        """
        run = cls(path)
        if run._holds_a_run() or run.trials_dir.is_dir():
            return run
        what = (
            "no such directory"
            if not run.path.exists()
            else "not a run directory (it has neither plan.yaml nor trials/)"
        )
        hint = _nearest_run(run.path)
        raise RunDirProblem(f"{path}: {what}.{f' Did you mean {hint} ?' if hint else ''}")

    def _holds_a_run(self) -> bool:
        return self.plan.exists() or any(self.trials_dir.glob("*.parquet")) or any(self.begun_dir.glob("*.json"))

    def _foreign_files(self) -> list[str]:
        """What stands here and is not the bare frame of a run that never began."""
        if not self.path.is_dir():
            return []
        frame = {self.lock_file.name, self.events_file.name, *FOLDERS}
        return sorted(item.name for item in self.path.iterdir() if item.name not in frame)

    def _with_folders(self) -> RunDir:
        for name in FOLDERS:
            (self.path / name).mkdir(exist_ok=True)
        return self

    def require_space(self, min_mib: int) -> None:
        """Raises RunDirProblem when fewer than `min_mib` MiB are free where this run is written."""
        free_mib = shutil.disk_usage(self.path).free // 2**20
        if free_mib < min_mib:
            raise RunDirProblem(
                f"{self.path}: only {free_mib} MiB are free on this file system and {min_mib} MiB are wanted for results "
                f"and logs. Free some space, or put the run elsewhere with out=DIR."
            )

    # Who drives it.

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold run.lock, so that one process alone drives this run; it frees itself when that process dies.

        Raises:
            RunDirProblem: another process holds it; the message names its pid and host.
        """
        fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirProblem(
                    f"{self.path}: busy, {_holder(fd)} drives this run. Wait for it, or stop it with Ctrl-C there; "
                    f"`python -m orchestrator status {self.path}` shows how far it is."
                ) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            yield
        finally:
            os.close(fd)

    def driver(self) -> str | None:
        """Who drives this run now, e.g. `process 4711 on node-3`; None when nobody does."""
        try:
            fd = os.open(self.lock_file, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(fd)
        else:
            return None
        finally:
            os.close(fd)

    # The journal.

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to events.jsonl: the time in UTC, `event`, and `facts` (plain JSON values).

        A last line that was torn by a kill is closed first, so that it spoils no other.

        Raises:
            DiskFull: no room; the journal may end in a torn line, which readers skip.
        """
        line = json.dumps({"at": datetime.now(UTC).isoformat(), "event": event, **facts}, default=str) + "\n"
        fd = os.open(self.events_file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            _write_all(fd, (("\n" if torn else "") + line).encode(), self.events_file)
        finally:
            os.close(fd)

    def events(self) -> list[dict[str, Any]]:
        """Every readable line of the journal, in order; `at` is a UTC time in ISO form."""
        try:
            lines = self.events_file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [event for event in map(_parsed, lines) if event is not None]

    def gpu_hours_spent(self) -> float:
        """GPU-hours of all trials that ended: seconds held × GPUs, from the journal's `trial_ended` lines."""
        ended = [event for event in self.events() if event["event"] == "trial_ended"]
        return sum(float(event.get("held_s") or 0.0) * _count(event.get("gpus")) for event in ended) / 3600

    def hours_spent(self) -> float:
        """Hours by the clock in which a driver ran: from each start or resume to the last line it wrote."""
        seconds, since, last = 0.0, None, None
        for event in self.events():
            at = datetime.fromisoformat(event["at"])
            if event["event"] in ("sweep_started", "sweep_resumed"):
                seconds += (last - since).total_seconds() if since and last else 0.0
                since = at
            last = at
        return (seconds + ((last - since).total_seconds() if since and last else 0.0)) / 3600

    # What was started.

    def begin(self, trial: Trial) -> None:
        """Remember, durably and before its launch, that `trial` is started.

        Raises:
            DiskFull: no room; nothing is remembered and nothing should be launched.
        """
        entry = {
            "trial": trial.number, "attempt": trial.attempt, "kind": trial.kind, "launch": trial.launch,
            "settings": trial.settings.as_dict(),
            "load_points": [[point.concurrency, point.repeat] for point in trial.load_points],
            "coordinates": dict(trial.coordinates), "started_at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        self._write_begun(trial.number, entry)

    def amend(self, trial_number: int, **facts: Any) -> None:
        """Add what became known of a begun trial: `process_group`, `host`, `marker`, or any plain JSON value."""
        entry = json.loads(self.begun_file(trial_number).read_text())
        self._write_begun(trial_number, {**entry, **facts})

    def _write_begun(self, trial_number: int, entry: Mapping[str, Any]) -> None:
        write_whole(self.begun_file(trial_number), json.dumps(entry, indent=1).encode())

    def begun(self) -> list[Begun]:
        """Every trial that was begun, in the order of their numbers; a file that cannot be read is named and skipped."""
        found = []
        for path in sorted(self.begun_dir.glob("[!.]*.json")):
            try:
                found.append(_begun(json.loads(path.read_bytes())))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s: skipped, it cannot be read (%s: %s)", path, type(error).__name__, error)
        return sorted(found, key=lambda item: item.trial.number)


def write_whole(path: Path, content: bytes, mode: int = 0o644, by_way_of: Path | None = None) -> None:
    """Put `content` at `path` so that a reader sees the old file or the new one, whatever dies in between.

    It is written to a temporary name (a dot before, `.tmp` after) in the directory `by_way_of`, which lies on the same
    file system and is the file's own unless given, and renamed.

    Raises:
        DiskFull: no room; the old file is untouched.
    """
    temporary = (by_way_of or path.parent) / f".{path.name}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            _write_all(fd, content, path)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise (DiskFull(path) if _is_full(error) else error) from error
    except DiskFull:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _write_all(fd: int, content: bytes, path: Path) -> None:
    """One write where the system grants it; DiskFull names `path`."""
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise (DiskFull(path) if _is_full(error) else error) from error


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if _is_full(error):
            raise DiskFull(path) from error
        raise RunDirProblem(
            f"{path}: cannot {what} here ({error.strerror}). Name another place with out=DIR."
        ) from error


def _holder(fd: int) -> str:
    holder = _parsed(os.pread(fd, 4096, 0)) or {}
    return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for an empty, torn or foreign one."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _count(gpus: object) -> int:
    return len(gpus) if isinstance(gpus, list) else gpus if isinstance(gpus, int) else 0


def _begun(entry: dict[str, Any]) -> Begun:
    given = dict(entry)
    trial = Trial(
        number=given.pop("trial"), settings=Settings.from_dict(given.pop("settings")), kind=given.pop("kind"),
        load_points=tuple(LoadPoint(*point) for point in given.pop("load_points")), launch=given.pop("launch"),
        attempt=given.pop("attempt"), coordinates=given.pop("coordinates"),
    )  # fmt: skip
    known = {name: given.pop(name, None) for name in ("host", "process_group", "marker")}
    return Begun(trial=trial, started_at=datetime.fromisoformat(given.pop("started_at")), **known, facts=given)


def _nearest_run(path: Path) -> Path | None:
    """A run directory near `path`: around it, the newest below it, or beside it under a similar name."""
    around = [parent for parent in path.parents if (parent / "plan.yaml").exists()]
    if around:
        return around[0]
    below = [found.parent for depth in ("*", "*/*") for found in path.glob(f"{depth}/plan.yaml")]
    if below:
        return max(below, key=lambda run: run.name)
    beside = {found.parent.name: found.parent for found in path.parent.glob("*/plan.yaml")}
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.4)
    return beside[close[0]] if close else None
