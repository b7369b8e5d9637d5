"""Output that cannot be written: a sweep goes on when the terminal, the pipe or the disk it talks to is gone, and any
other verb says so in a message.

Not here: what is said (progress.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO


class OutputLost(OSError):  # noqa: N818 - it is said to a person, as are its kin
    """What a verb answers could not be written; the message says why."""


class ReaderGone(OutputLost):
    """Whoever read it has seen enough, as `head` does."""


@contextmanager
def answering() -> Iterator[None]:
    """Whatever is written to standard output meanwhile is written when this ends.

    Raises:
        OutputLost: it cannot be, and goes nowhere from then on.
    """
    before = sys.stdout
    sys.stdout = _Answering(before)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = before


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


class _Stream:
    """A text stream; all but writing is the other's.  One that was closed before we began is none at all: nowhere, then."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: TextIO = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as we live

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:  # noqa: ARG002 - those that do more want it
        """What the stream still holds, and all that follows, is written to nowhere."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class _Outliving(_Stream):
    def __init__(self, stream: TextIO | None, lost: Callable[[str], None]) -> None:
        super().__init__(stream)
        self._lost = lost

    def _lose(self, error: OSError) -> None:
        super()._lose(error)
        self._lost(self._stream.name)


class _Answering(_Stream):
    def _lose(self, error: OSError) -> None:
        super()._lose(error)
        kind = ReaderGone if isinstance(error, BrokenPipeError) else OutputLost
        raise kind(f"standard output could not be written ({error.strerror or error}).") from error
