"""Bounded reading of files that may be damaged, huge or no files at all; what cannot be used says why.

Not here: what the files mean (checkpoint.py, headers.py).
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from sweeps.finding import shown


class UnreadableError(Exception):
    """A file cannot be used; the message says why, in words that follow the file's name."""


def read_bytes(path: Path, most: int) -> bytes:
    """A regular file's bytes, at most `most` of them."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError("is no file")
        if found.st_size > most:
            raise UnreadableError(f"has {found.st_size} bytes, far more than such a file can have")
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise UnreadableError("is missing") from None
    except (OSError, ValueError) as reason:
        raise UnreadableError(f"cannot be read: {words_of(reason)}") from None


def read_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except RecursionError:
        raise UnreadableError("is nested too deeply") from None
    except ValueError as reason:
        raise UnreadableError(f"is not JSON: {shown(str(reason))}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"holds no object but {shown(value)}")
    return value


def whole(value: object) -> int | None:
    """A whole number, not negative and of a size that a model can have; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48 else None


def words_of(reason: OSError | ValueError) -> str:
    return (reason.strerror or str(reason)) if isinstance(reason, OSError) else str(reason)


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []
