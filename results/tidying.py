"""Putting a run directory in order after a kill or a full disk: half-written files go, ruined ones are set aside and named.

For the process that holds the lock (driving.py).  Not here: how files are written so that few are ruined (files.py).
"""

from __future__ import annotations

import logging
from pathlib import Path

from results.begun import read_begun
from results.files import Unreadable, explained, write_whole
from results.redaction import redact_file
from results.rundir import RunDir

log = logging.getLogger(__name__)


def tidy(run: RunDir) -> None:
    """Remove half-written files; move what cannot be read of begun/ to set-aside/, named in the journal.

    For the process that holds the lock.

    Raises:
        RunDirProblem: it cannot be done.
    """
    with explained(run.path, "tidy a run directory"):
        for folder in (run.path, run.begun_dir, run.outputs_dir, run.compact_file.parent):
            for stray in folder.glob(".*.tmp"):
                stray.unlink()
    for path in sorted(run.begun_dir.glob("[!.]*.json")):
        try:
            read_begun(path)
        except Unreadable as error:
            set_aside(run, path, str(error))
    with explained(run.path, "read the journal"):
        content, mended, ruined = run.journal.ruined()
    if ruined:
        kept = _place_aside(run, run.journal.path.name)
        write_whole(kept, content)
        write_whole(run.journal.path, mended)
        _note_aside(run, run.journal.path, kept, f"{ruined} of its lines were ruined; the others stay")


def set_aside(run: RunDir, path: Path, reason: str) -> None:
    """Keep a ruined file under set-aside/, where it is in nobody's way, and note it; nothing there is overwritten."""
    kept = _place_aside(run, path.name)
    with explained(run.path, "set a ruined file aside"):
        path.rename(kept)
    _note_aside(run, path, kept, reason)


def _place_aside(run: RunDir, name: str) -> Path:
    """A name in set-aside/ that is free."""
    with explained(run.path, "set a ruined file aside"):
        run.set_aside_dir.mkdir(exist_ok=True)
        count = len(list(run.set_aside_dir.glob(f"{name}*")))
    return run.set_aside_dir / (name if count == 0 else f"{name}.{count}")


def _note_aside(run: RunDir, path: Path, kept: Path, reason: str) -> None:
    log.warning("%s: %s; kept as %s", path.name, reason, kept)
    run.journal.note("set_aside", file=path.name, kept=str(kept.relative_to(run.path)), reason=reason)


def redact_logs(run: RunDir) -> None:
    """Take secrets out of logs whose driver died before it could; for the process that holds the lock.

    Raises:
        RunDirProblem: there is no room for it, or no permission.
    """
    with explained(run.logs_dir, "tidy the logs"):
        for path in sorted(run.logs_dir.rglob("*.log")):
            redact_file(path)
