"""Output that outlives its reader: a sweep goes on when the terminal, the pipe or the disk it talks to is gone.

Not here: what is said (progress.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


@contextmanager
def outliving(lost: Callable[[str], None]) -> Iterator[None]:
    """Whatever is written to standard output and error meanwhile raises nothing; `lost` is told once of each that cannot be
    written any more, by its name, and from then on it goes nowhere."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Outliving(stream, lost) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Outliving:
    """A text stream; all but writing is the other's."""

    def __init__(self, stream: TextIO, lost: Callable[[str], None]) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lose()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self) -> None:
        """What the stream still holds, and all that follows, is written to nowhere."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        self._lost(self._stream.name)
