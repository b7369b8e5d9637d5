"""Files of a run: written whole or not at all, and what a person is told when they cannot be.

Not here: which files a run has (rundir.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


class RunDirProblem(Exception):  # noqa: N818 - it is said to a person, as are its kin in the orchestrator
    """A run directory that is busy, not empty, damaged or full; the message says which, where, and what to do."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> RunDirProblem:
        """Why `path` could not be written, as the system says it."""
        if is_full(error):
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


class Unreadable(Exception):  # noqa: N818 - what is the matter, as a word
    """A file of a run is torn, empty or foreign; the message names it."""


def encoded(text: str) -> bytes:
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
            write_all(fd, content)
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


def write_all(fd: int, content: bytes) -> None:
    """One write where the system grants it."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def opened(path: Path, flags: int) -> int:
    """A descriptor; RunDirProblem when there is none to be had."""
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        raise RunDirProblem.of(path, error) from error


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise RunDirProblem.of(path, error) from error
        raise RunDirProblem(
            f"{path}: cannot {what} here ({error.strerror}). Name another place with out=DIR."
        ) from error
