"""A standby: a process that has imported what the next server needs, and becomes that server when it is told what to start.

It is a launcher (launcher.py) under a guard of its own, like a server: whoever dies, nothing of it is left.  It is used
once, or dropped.  While anything is measured it is held: every process of it is stopped, so that nothing of it runs.
Not here: when one is made and for whom (engines/launching.py), what it imports (engines/imports.py).
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.serving.guarded import Guarded, marked_environment, spec_of
from orchestrator.serving.logs import read_log
from orchestrator.serving.processes import end, find_in_group, find_marked, is_stopped

IMPORTED = "launcher: {}: imported\n"
POLL_S = 0.1
HOLD_S = 5.0
KILL_ALL_S = 10.0
LONGEST_GO = 60_000
"""Bytes that a pipe takes at once whether they are read or not."""


@dataclass(frozen=True)
class Waiting:
    """What to begin ahead."""

    command: tuple[str, ...]
    """The launcher's."""
    imports: Sequence[str]
    """Names of the processes that import: the server and each of its children begun ahead, repeated as there are several."""
    environment: Mapping[str, str]
    """Of the server, and the same in it; the marker is added."""
    marker: str
    """As long as the marker of any launch of this run, or longer: theirs is written in its place."""
    log: Path
    """Gets what the imports say; it becomes the head of the server's log."""


class Standby:
    """Owns its processes until `go` has handed them over, or `drop`."""

    def __init__(self, waiting: Waiting, stop_s: float, watch: Sequence[int] = ()) -> None:
        """Begins at once; `stop_s` and `watch` as a server's.  Where it cannot, it has ended."""
        self.waiting = waiting
        self._stop_s = stop_s
        self.began = time.monotonic()
        self._held = False
        waiting.log.parent.mkdir(parents=True, exist_ok=True)
        waiting.log.write_bytes(b"")
        environment = marked_environment(waiting.environment, waiting.marker)
        spec = spec_of(waiting.command, environment, waiting.log, stop_s, listens=True)
        self._guard = Guarded(spec, watch, waiting.log, on_lost=self._end_orphans)
        self._group = self._guard.wait_started()[0] or 0

    @property
    def alive(self) -> bool:
        return self._guard.running

    def ready(self) -> bool:
        """Whether every process of it has imported everything."""
        said, wanted = read_log(self.waiting.log), [IMPORTED.format(name) for name in self.waiting.imports]
        return self.alive and all(said.count(line) >= wanted.count(line) for line in wanted)

    def wait_ready(self, stopping: threading.Event, within_s: float) -> bool:
        """False: it has ended, is late, or a stop was asked for."""
        until = time.monotonic() + within_s
        while not self.ready():
            if not self.alive or time.monotonic() > until or stopping.wait(POLL_S):
                return False
        return True

    def pids(self) -> list[int]:
        """Every process of it but its guard."""
        group = find_in_group(self._group) if self._group else []
        return sorted({*find_marked(self.waiting.marker), *group})

    def hold(self) -> bool:
        """Stop all of its processes; returns once none runs.  False: one still did after some seconds."""
        until = time.monotonic() + HOLD_S
        self._held = True
        while moving := [pid for pid in self.pids() if not is_stopped(pid)]:
            if time.monotonic() > until:
                return False
            self._send(signal.SIGSTOP, moving)
            time.sleep(0.01)
        return True

    def go(self, words: Sequence[str], marker: str, log: Path) -> Guarded | None:
        """Become the server of these words; its log is `log`, and has what the standby said at its head.

        Returns its guard, whose `on_lost` is the caller's to set; None: it cannot, and is dropped.
        """
        line = json.dumps({"words": list(words), "marker": marker, "cwd": str(log.parent)}).encode()
        if not self.alive or len(line) > LONGEST_GO or len(marker) > len(self.waiting.marker):
            self.drop()
            return None
        try:
            self.waiting.log.replace(log)
        except OSError:
            self.drop()
            return None
        if self._held:
            self._send(signal.SIGCONT, self.pids())
        self._guard.tell(line)
        return self._guard

    def drop(self) -> list[str]:
        """End it; returns what is left of it after `stop_s`, in words."""
        self._guard.release()
        gone = self._guard.wait_gone(self._stop_s)
        return [] if gone and not self.pids() else [f"processes {self.pids()} of the standby {self.waiting.marker}"]

    def last_words(self) -> str:
        """The last line of its log, for a person."""
        lines = [line.strip() for line in read_log(self.waiting.log, head=0).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def _send(self, number: int, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end_orphans(self) -> None:
        """The guard was killed: end what it guarded."""
        end(self.pids, 0.0, KILL_ALL_S)
