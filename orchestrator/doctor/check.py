"""Check: one thing that was looked at, how it stands and what to do.  And how looks are made: none hangs, none raises.

Not here: what is looked at (the other files of this package), how it is shown (__init__.py).
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import SweepError

MIB = 2**20
GIB = 2**30
LEAST_ROOM = GIB


class Level(StrEnum):
    """From good to bad."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"


@dataclass(frozen=True)
class Check:
    name: str
    level: Level
    """Red: the sweep cannot run, or not to its end.  Yellow: it may suffer, or this could not be looked at."""
    what: str
    remedy: str = ""
    """What to do; never empty unless green."""


def green(name: str, what: str) -> Check:
    return Check(name, Level.GREEN, what)


def yellow(name: str, what: str, remedy: str) -> Check:
    return Check(name, Level.YELLOW, what, remedy)


def red(name: str, what: str, remedy: str) -> Check:
    return Check(name, Level.RED, what, remedy)


@dataclass(frozen=True)
class Question:
    """One look at the machine, which may give several checks."""

    group: str
    name: str
    look: Callable[[], Sequence[Check]]
    timeout_s: float = 15.0


def ask(questions: Sequence[Question]) -> list[tuple[Question, Sequence[Check]]]:
    """Look at everything at once; what does not answer in its time, or cannot be looked at, is a yellow check."""
    asked = [(question, _Asked(question)) for question in questions]
    return [(question, look.answer()) for question, look in asked]


class _Asked:
    """A look in a thread of its own, which is left behind when it is late (a dead file system, a lost card)."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._until = time.monotonic() + question.timeout_s
        self._answers: queue.SimpleQueue[Sequence[Check] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._look, name=question.name, daemon=True).start()

    def answer(self) -> Sequence[Check]:
        name = self._question.name
        try:
            answer = self._answers.get(timeout=max(0.0, self._until - time.monotonic()))
        except queue.Empty:
            late = f"no answer within {self._question.timeout_s:g} s"
            return [yellow(name, late, "Look at it by hand: a sweep would hang there as well.")]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _look(self) -> None:
        try:
            self._answers.put(self._question.look())
        except (OSError, ValueError, SweepError, subprocess.SubprocessError) as error:
            cannot = f"could not be looked at ({type(error).__name__}: {error})"
            self._answers.put([yellow(self._question.name, cannot, "Look at it by hand before a long sweep.")])
        except BaseException as error:  # noqa: BLE001 - a bug: carried to the thread that waits
            self._answers.put(error)


def by_room(name: str, free: int, low: int, what: str, remedy: str) -> Check:
    """Red below a GiB, yellow below `low` bytes."""
    if free < LEAST_ROOM:
        return red(name, what, remedy)
    return yellow(name, what, remedy) if free < low else green(name, what)


def gib(size: float) -> str:
    """Bytes for a person: `72.0 GiB`, `13 MiB`, `under 1 MiB`."""
    if size >= GIB:
        return f"{size / GIB:.1f} GiB"
    return f"{size / MIB:.0f} MiB" if size >= MIB else "under 1 MiB" if size else "0 MiB"
