"""RunDir: every path of one run, absolute; its journal (events.jsonl) and what was started (begun/).

What is written here survives a kill at any moment: whole files go through a temporary name and a rename, the journal
grows by one write a line.  Not here: who drives it (driving.py), putting it in order (tidying.py), measured values (ledger.py), texts for people (report.py).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.begun import Begun, entry_of, read_begun
from results.files import RunDirProblem, Unreadable, encoded, explained, write_whole
from results.journal import Journal
from results.redaction import redacted
from sweeps.trial import Trial

log = logging.getLogger(__name__)

FOLDERS = ("begun", "trials", "logs")
PRIVATE = 0o700
"""Mode of a run directory: prompts and answers in its logs are nobody else's business."""


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
    def journal(self) -> Journal:
        return Journal(self.path / "events.jsonl")

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
    def outputs_dir(self) -> Path:
        """Finalists' answers that wait to be re-scored; gone once they are, and at the end of a sweep."""
        return self.path / "outputs"

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

    def standby_log(self, trial_name: str, standby: str) -> Path:
        """Of the standby of this name, made while this trial's server boots; moved when it becomes a server.

        A trial that is tried again on other GPUs has another standby, and both may wait.
        """
        return self.logs(trial_name) / f"standby-{standby[:8]}.log"

    # Making one, finding one.

    @classmethod
    def create(cls, out: Path, conf_name: str, now: datetime) -> RunDir:
        """A new directory out/<conf>/<UTC stamp>; a second one in the same second gets -2 and so on.

        Raises:
            RunDirProblem: it cannot be made there.
        """
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = Path(out).expanduser().absolute() / conf_name
        with explained(folder, "make a run directory"):
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
        """`path` itself as a new run directory: it must not exist yet, be empty, or hold a run of which nothing was begun.

        Raises:
            RunDirProblem: it holds a run (the message names `resume`), other files, or cannot be made.
        """
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise RunDirProblem(f"out={path}: this is a file. Name a directory that is new or empty.")
        if run._taken() and not run.plan.exists():
            raise RunDirProblem(
                f"out={path}: there is a run in it whose plan.yaml is missing, so that it cannot be resumed. Name a new "
                f"directory; warm_start=[{path}] takes its rows up."
            )
        if run._taken():
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
        with explained(run.path, "make a run directory"):
            run.path.mkdir(parents=True, exist_ok=True)
            run.path.chmod(PRIVATE)
            return run._with_folders()

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """The run directory at `path`; nothing is written.

        Raises:
            RunDirProblem: there is none, or none with rows; the message names the nearest one it could see.
        """
        run = cls(path)
        if run.trials_dir.is_dir():
            return run
        if run._holds_a_run():
            alone = run.path / "trials.parquet"
            how = f"Put {alone} into it" if alone.is_file() else "Bring it back, or start a new sweep"
            raise RunDirProblem(f"{path}: its rows are missing, there is no {run.trials_dir}. {how}.")
        what = (
            "no such directory"
            if not run.path.exists()
            else "not a run directory (it has neither plan.yaml nor trials/)"
        )
        hint = _nearest_run(run.path)
        raise RunDirProblem(f"{path}: {what}.{f' Did you mean {hint} ?' if hint else ''}")

    def _holds_a_run(self) -> bool:
        return self.plan.exists() or self._begun_any()

    def _begun_any(self) -> bool:
        return any(self.trials_dir.glob("*.parquet")) or any(self.begun_dir.glob("*.json"))

    def _taken(self) -> bool:
        """Whether a new sweep may not be begun here: one that came to nothing before its first launch left a plan and a
        journal; a plan alone is somebody's."""
        return self._begun_any() or (self.plan.exists() and not self.journal.path.exists())

    def _foreign_files(self) -> list[str]:
        """What stands here and is not the bare frame of a run that never began."""
        if not self.path.is_dir():
            return []
        frame = {self.lock_file.name, self.journal.path.name, self.environment.name, self.plan.name, *FOLDERS}
        return sorted(item.name for item in self.path.iterdir() if item.name not in frame and item.suffix != ".tmp")

    def _with_folders(self) -> RunDir:
        for name in FOLDERS:
            (self.path / name).mkdir(exist_ok=True)
        return self

    def require_new(self) -> None:
        """Raises RunDirProblem when another driver began a run here after this directory was found empty."""
        if self._taken():
            raise RunDirProblem(f"{self.path}: another driver began a run in it just now. Name a new directory.")

    def require_room(self) -> None:
        """Write a little and take it away again; every process under a name of its own, since workers ask at once.

        Raises:
            DiskFull, NotWritable: not even that can be written.
        """
        probe = self.path / f".room-{os.getpid()}"
        write_whole(probe, bytes(2**16))
        probe.unlink(missing_ok=True)

    def require_space(self, min_mib: int) -> None:
        """Raises RunDirProblem when fewer than `min_mib` MiB are free where this run is, or would be, written."""
        standing = next(folder for folder in (self.path, *self.path.parents) if folder.is_dir())
        free_mib = shutil.disk_usage(standing).free // 2**20
        if free_mib < min_mib:
            raise RunDirProblem(
                f"{self.path}: only {free_mib} MiB are free on this file system and {min_mib} MiB are wanted for results "
                f"and logs. Free some space, or put the run elsewhere with out=DIR."
            )

    # What was started.

    def begin(self, trial: Trial) -> None:
        """Remember, durably and before its launch, that `trial` is started.

        Raises:
            DiskFull: no room; nothing is remembered and nothing should be launched.
            NotWritable: it cannot be written for another reason.
        """
        self._write_begun(trial.number, entry_of(trial))

    def amend(self, trial_number: int, **facts: Any) -> None:
        """Add what became known of a begun trial: `process_group`, `host`, `marker`, `ready_at`, or any plain JSON value.

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

    def begun(self, besides: Collection[int] = ()) -> list[Begun]:
        """Every trial that was begun but `besides`, in the order of their numbers; a file that cannot be read is named and
        skipped."""
        known = {self.begun_file(number).name for number in besides}
        found = []
        for path in sorted(path for path in self.begun_dir.glob("[!.]*.json") if path.name not in known):
            try:
                found.append(read_begun(path))
            except Unreadable as error:
                log.warning("%s; skipped", error)
        return sorted(found, key=lambda item: item.trial.number)

    def begun_numbers(self) -> list[int]:
        """Of every trial that was begun, by the names of their files alone."""
        if not self.begun_dir.is_dir():
            return []
        names = (name.partition(".") for name in sorted(os.listdir(self.begun_dir)))  # noqa: PTH208 - twice as fast for many
        return [int(stem) for stem, _, ending in names if stem.isdecimal() and ending == "json"]

    def write_text(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Put a text at `path`, whole or not at all, without the secrets of this process's environment.

        Raises:
            DiskFull, NotWritable: the old file is untouched.
        """
        write_whole(path, encoded(redacted(text)), mode)


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
