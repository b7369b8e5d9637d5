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
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from results.redaction import redact_file, redacted, redacted_values
from sweeps.settings import Settings, knobs
from sweeps.trial import Kind, LoadPoint, Trial

log = logging.getLogger(__name__)

FOLDERS = ("begun", "trials", "logs")
PRIVATE = 0o700
"""Mode of a run directory: prompts and answers in its logs are nobody else's business."""
MOST_SILENT_S = 24 * 3600.0
"""Between two lines of a journal without a steady clock: a longer step is a clock that was set, not time that passed."""


class RunDirProblem(Exception):  # noqa: N818 - it is said to a person, as are its kin in the orchestrator
    """A run directory that is busy, not empty, damaged or full; the message says which, where, and what to do."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> RunDirProblem:
        """Why `path` could not be written, as the system says it."""
        if _is_full(error):
            return DiskFull(
                f"{path}: could not be written, the disk is full. Everything written before is whole. "
                f"Free some space on that file system, then resume the run."
            )
        return NotWritable(
            f"{path}: could not be written ({error.strerror or error}). Everything written before is whole. "
            f"Make that directory writable for this user, then resume the run."
        )


class DiskFull(RunDirProblem):
    """No room was left for a file; whatever stood under its name before is untouched."""


class NotWritable(RunDirProblem):
    """A file could not be written for another reason: no permission, a read-only file system."""


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

    def server_log(self, trial_name: str, attempt: int = 1) -> Path:
        """A log for each attempt: what an earlier failure says of its log stays true."""
        return self.logs(trial_name) / ("server.log" if attempt == 1 else f"server-{attempt}.log")

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
                    path.mkdir(mode=PRIVATE)
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
            run.path.chmod(PRIVATE)
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
        frame = {self.lock_file.name, self.events_file.name, self.environment.name, *FOLDERS}
        return sorted(item.name for item in self.path.iterdir() if item.name not in frame and item.suffix != ".tmp")

    def _with_folders(self) -> RunDir:
        for name in FOLDERS:
            (self.path / name).mkdir(exist_ok=True)
        return self

    def require_new(self) -> None:
        """Raises RunDirProblem when another driver began a run here after this directory was found empty."""
        if self._holds_a_run():
            raise RunDirProblem(f"{self.path}: another driver began a run in it just now. Name a new directory.")

    def require_room(self) -> None:
        """Write a little and take it away again.

        Raises:
            DiskFull, NotWritable: not even that can be written.
        """
        probe = self.path / ".room"
        write_whole(probe, bytes(2**16))
        probe.unlink(missing_ok=True)

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
            RunDirProblem: another process holds it; the message names its pid and host.  Or it cannot be written.
        """
        fd = _opened(self.lock_file, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirProblem(
                    f"{self.path}: busy, {_holder(fd)} drives this run. Wait for it, or stop it with Ctrl-C there; "
                    f"`python -m orchestrator status {self.path}` shows how far it is."
                ) from None
            except OSError as error:  # a file system without locks
                raise RunDirProblem.of(self.lock_file, error) from error
            os.ftruncate(fd, 0)
            with contextlib.suppress(OSError):  # a full disk: who holds it cannot be said, but it is held
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
        """Append one line to events.jsonl: the time in UTC, a steady clock, `event`, and `facts` (plain JSON values).

        `steady_s` is CLOCK_MONOTONIC: of one driver's lines it tells how far they are apart, even when the wall clock was
        set in between.  A last line that was torn by a kill is closed first, so that it spoils no other.

        Raises:
            DiskFull: no room; the journal may end in a torn line, which readers skip.
            NotWritable: it cannot be written for another reason.
        """
        stamps = {"at": datetime.now(UTC).isoformat(), "steady_s": round(time.monotonic(), 3)}
        line = json.dumps({**stamps, "event": event, **redacted_values(facts)}, default=str) + "\n"
        fd = _opened(self.events_file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            _write_all(fd, (("\n" if torn else "") + line).encode())
        except OSError as error:
            raise RunDirProblem.of(self.events_file, error) from error
        finally:
            os.close(fd)

    def events(self) -> list[dict[str, Any]]:
        """Every line of the journal that is whole, in order; `at` is a UTC time in ISO form, `event` a text.

        Lines that a kill or a disk ruined are skipped.
        """
        try:
            lines = self.events_file.read_bytes().split(b"\n")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s: cannot be read (%s)", self.events_file, error.strerror)
            return []
        return [event for event in map(_parsed, lines) if event is not None and _is_event(event)]

    def gpu_hours_spent(self) -> float:
        """GPU-hours of all trials that ended: seconds held × GPUs, from the journal's `trial_ended` lines."""
        ended = [event for event in self.events() if event["event"] == "trial_ended"]
        return sum(_seconds(event.get("held_s")) * _count(event.get("gpus")) for event in ended) / 3600

    def hours_spent(self) -> float:
        """Hours in which a driver ran: from each start or resume to the last line it wrote.

        Counted by the steady clock of the lines.  Lines of an older release have none: there the wall clock counts, and a
        step back or of more than MOST_SILENT_S as nothing.
        """
        seconds, before = 0.0, None
        for event in self.events():
            starts = event["event"] in ("sweep_started", "sweep_resumed")
            seconds += 0.0 if starts or before is None else _seconds_between(before, event)
            before = event if starts or before is not None else None
        return seconds / 3600

    # What was started.

    def begin(self, trial: Trial) -> None:
        """Remember, durably and before its launch, that `trial` is started.

        Raises:
            DiskFull: no room; nothing is remembered and nothing should be launched.
            NotWritable: it cannot be written for another reason.
        """
        entry = {
            "trial": trial.number, "attempt": trial.attempt, "kind": trial.kind, "launch": trial.launch,
            "settings": trial.settings.as_dict(),
            "load_points": [[point.concurrency, point.repeat] for point in trial.load_points],
            "coordinates": dict(trial.coordinates), "started_at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        self._write_begun(trial.number, entry)

    def amend(self, trial_number: int, **facts: Any) -> None:
        """Add what became known of a begun trial: `process_group`, `host`, `marker`, or any plain JSON value.

        Raises:
            RunDirProblem: what was begun cannot be read any more, or not be written.
        """
        path = self.begun_file(trial_number)
        try:
            entry = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunDirProblem(
                f"{path}: was written by this run and cannot be read ({error}). Resume the run."
            ) from error
        self._write_begun(trial_number, {**entry, **facts})

    def _write_begun(self, trial_number: int, entry: Mapping[str, Any]) -> None:
        write_whole(self.begun_file(trial_number), json.dumps(entry, indent=1).encode())

    def begun(self) -> list[Begun]:
        """Every trial that was begun, in the order of their numbers; a file that cannot be read is named and skipped."""
        found = []
        for path in sorted(self.begun_dir.glob("[!.]*.json")):
            try:
                found.append(_read_begun(path))
            except Unreadable as error:
                log.warning("%s; skipped", error)
        return sorted(found, key=lambda item: item.trial.number)

    # Putting in order.

    def tidy(self) -> None:
        """Remove half-written files; move what cannot be read of begun/ to set-aside/, named in the journal.

        For the process that holds the lock.

        Raises:
            RunDirProblem: it cannot be done.
        """
        with _explained(self.path, "tidy a run directory"):
            for folder in (self.path, self.begun_dir, self.compact_file.parent):
                for stray in folder.glob(".*.tmp"):
                    stray.unlink()
        for path in sorted(self.begun_dir.glob("[!.]*.json")):
            try:
                _read_begun(path)
            except Unreadable as error:
                self.set_aside(path, str(error))
        self._mend_journal()

    def _mend_journal(self) -> None:
        """Take ruined lines out of the journal; the journal as it was is kept beside other ruined files."""
        if not self.events_file.exists():
            return
        with _explained(self.path, "read the journal"):
            content = self.events_file.read_bytes()
        lines = [line for line in content.split(b"\n") if line.strip()]
        good = [line for line in lines if (entry := _parsed(line)) is not None and _is_event(entry)]
        if len(good) < len(lines):
            kept = self._place_aside(self.events_file.name)
            write_whole(kept, content)
            write_whole(self.events_file, b"".join(line + b"\n" for line in good))
            self._note_aside(
                self.events_file, kept, f"{len(lines) - len(good)} of its lines were ruined; the others stay"
            )

    def set_aside(self, path: Path, reason: str) -> None:
        """Keep a ruined file under set-aside/, where it is in nobody's way, and note it; nothing there is overwritten."""
        kept = self._place_aside(path.name)
        with _explained(self.path, "set a ruined file aside"):
            path.rename(kept)
        self._note_aside(path, kept, reason)

    def _place_aside(self, name: str) -> Path:
        """A name in set-aside/ that is free."""
        with _explained(self.path, "set a ruined file aside"):
            self.set_aside_dir.mkdir(exist_ok=True)
            count = len(list(self.set_aside_dir.glob(f"{name}*")))
        return self.set_aside_dir / (name if count == 0 else f"{name}.{count}")

    def _note_aside(self, path: Path, kept: Path, reason: str) -> None:
        log.warning("%s: %s; kept as %s", path.name, reason, kept)
        self.note("set_aside", file=path.name, kept=str(kept.relative_to(self.path)), reason=reason)

    def redact_logs(self) -> None:
        """Take secrets out of logs whose driver died before it could; for the process that holds the lock.

        Raises:
            RunDirProblem: there is no room for it, or no permission.
        """
        with _explained(self.logs_dir, "tidy the logs"):
            for path in sorted(self.logs_dir.rglob("*.log")):
                redact_file(path)

    def write_text(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Put a text at `path`, whole or not at all, without the secrets of this process's environment.

        Raises:
            DiskFull, NotWritable: the old file is untouched.
        """
        write_whole(path, _encoded(redacted(text)), mode)


class Unreadable(Exception):  # noqa: N818 - what is the matter, as a word
    """A file of a run is torn, empty or foreign; the message names it."""


def _encoded(text: str) -> bytes:
    """Names of files in the bytes they have; what is no text at all as question marks."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def write_whole(path: Path, content: bytes, mode: int = 0o644, by_way_of: Path | None = None) -> None:
    """Put `content` at `path` so that a reader sees the old file or the new one, whatever dies in between.

    It is written to a temporary name (a dot before, `.tmp` after) in the directory `by_way_of`, which lies on the same
    file system and is the file's own unless given, and renamed.

    Raises:
        DiskFull: no room; the old file is untouched.
        NotWritable: it cannot be written for another reason; so is then.
    """
    temporary = (by_way_of or path.parent) / f".{path.name}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            _write_all(fd, content)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunDirProblem.of(path, error) from error


def _write_all(fd: int, content: bytes) -> None:
    """One write where the system grants it."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _opened(path: Path, flags: int) -> int:
    """A descriptor; RunDirProblem when there is none to be had."""
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        raise RunDirProblem.of(path, error) from error


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
            raise RunDirProblem.of(path, error) from error
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
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_event(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("event"), str) and _time(entry.get("at")) is not None


def _time(text: object) -> datetime | None:
    """A point in time from its ISO form; None for anything else, a time without a zone included."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.utcoffset() is not None else None


def _seconds(value: object) -> float:
    """A plausible number of seconds; 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < math.inf else 0.0  # type: ignore[arg-type, operator]


def _seconds_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Between two lines of one driver."""
    if "steady_s" in before and "steady_s" in after:
        return max(0.0, _seconds(after["steady_s"]) - _seconds(before["steady_s"]))
    earlier, later = _time(before["at"]), _time(after["at"])
    step_s = (later - earlier).total_seconds() if earlier and later else 0.0
    return step_s if 0 <= step_s <= MOST_SILENT_S else 0.0


def _count(gpus: object) -> int:
    return len(gpus) if isinstance(gpus, list) else gpus if isinstance(gpus, int) and gpus > 0 else 0


def _read_begun(path: Path) -> Begun:
    """Raises Unreadable when this is no file that `begin` wrote."""
    try:
        found = _begun(json.loads(path.read_bytes()))
        mistake = _mistake(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if mistake or path.name != f"{found.trial.name}.json":
        raise Unreadable(f"{path}: cannot be what was begun: {mistake or f'it says trial {found.trial.number}'}")
    return found


def _mistake(begun: Begun) -> str | None:
    """What cannot be in a begun trial; None when everything can."""
    trial = begun.trial
    whole = {"trial": trial.number, "launch": trial.launch, "attempt": trial.attempt - 1}
    whole |= {f"load_points[{i}]": n for i, p in enumerate(trial.load_points) for n in (p.concurrency - 1, p.repeat)}
    wrong = [f"{name} is {value!r}" for name, value in whole.items() if not _is_whole(value)]
    wrong += [] if trial.kind in get_args(Kind) else [f"kind is {trial.kind!r}"]
    wrong += [] if all(isinstance(name, str) for name in trial.coordinates) else ["coordinates have no names"]
    wrong += [] if begun.process_group is None or _is_whole(begun.process_group) else ["process_group is no number"]
    wrong += [f"{text!r} is no text" for text in (begun.host, begun.marker) if not isinstance(text, str | None)]
    blank = Settings()
    for name, knob in knobs().items():
        value = getattr(trial.settings, name)
        if value != getattr(blank, name) and (text := knob.mistake(value)):
            wrong.append(f"{name}: {text}")
    return wrong[0] if wrong else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _begun(entry: dict[str, Any]) -> Begun:
    given = dict(entry)
    trial = Trial(
        number=given.pop("trial"), settings=Settings.from_dict(given.pop("settings")), kind=given.pop("kind"),
        load_points=tuple(LoadPoint(*point) for point in given.pop("load_points")), launch=given.pop("launch"),
        attempt=given.pop("attempt"), coordinates=given.pop("coordinates"),
    )  # fmt: skip
    known = {name: given.pop(name, None) for name in ("host", "process_group", "marker")}
    started_at = _time(given.pop("started_at"))
    if started_at is None:
        raise ValueError("started_at is no time")
    return Begun(trial=trial, started_at=started_at, **known, facts=given)


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
