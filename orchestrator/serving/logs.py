"""A server's log file: following it while it grows, reading its ends, capping its size.  What its lines mean is the engine's."""

from __future__ import annotations

import os
from pathlib import Path

KIB = 1024
LONGEST_LINE = 64 * KIB
MOST_AT_ONCE = 1024 * KIB


class Follower:
    """Reads a growing file piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> tuple[bool, list[str]]:
        """Has it grown since the last call (a part of a line counts: progress bars), and the lines completed since."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                piece = log.read(MOST_AT_ONCE)
        except FileNotFoundError:
            return False, []
        self._offset += len(piece)
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        return bool(piece), [line.decode("utf-8", errors="replace") for line in lines]

    def read_all(self) -> list[str]:
        """Every line there is by now, the last also if it has no end."""
        found: list[str] = []
        grown = True
        while grown:
            grown, lines = self.read()
            found += lines
        return [*found, self._rest.decode("utf-8", errors="replace")]


def read_log(path: Path, head: int = 64 * KIB, tail: int = 256 * KIB) -> str:
    """The first `head` and the last `tail` bytes of a log, whole if it is not longer, with a line that says what is left out.

    A log that does not exist reads as empty: the server never came to write it.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(0)
            if size <= head + tail:
                return log.read().decode("utf-8", errors="replace")
            first = log.read(head)
            log.seek(size - tail)
            last = log.read(tail)
    except FileNotFoundError:
        return ""
    return (first + _cut_line(size - head - tail) + last).decode("utf-8", errors="replace")


def cap_log(path: Path, max_bytes: int) -> None:
    """Shorten a log to `max_bytes`: a quarter of it from the head, the rest from the tail.  For when its writer has ended.

    The file is replaced by rename, so it is whole at any instant; one that is short enough, or absent, is left alone.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return
    if size <= max_bytes:
        return
    room = max(0, max_bytes - len(_cut_line(size)))
    head = room // 4
    capped = path.with_name(f".{path.name}.capped")
    with path.open("rb") as log:
        first = log.read(head)
        log.seek(size - (room - head))
        capped.write_bytes(first + _cut_line(size - room) + log.read(room - head))
    capped.replace(path)


def _cut_line(cut_bytes: int) -> bytes:
    return f"\n[... {cut_bytes} bytes of this log were cut here ...]\n".encode()
