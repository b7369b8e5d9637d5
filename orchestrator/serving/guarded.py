"""The owner's end of a guard (guard.py): the pipe that keeps a server alive, and what the guard has said so far."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.serving.processes import MARKER

GUARD = Path(__file__).with_name("guard.py")
START_S = 30.0
GRACE_S = 8.0
"""Between TERM and KILL; SGLang was seen to end 5-6 s after TERM.  Never more than half of `deadlines.stop_s`."""


def spec_of(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    stop_s: float,
    deadline_s: float | None = None,
    listens: bool = False,
) -> dict[str, Any]:
    """`guard.Spec`, for a server that works in its log's folder; `stop_s`: from asking it to stop to the proof."""
    return {
        "argv": list(argv), "environment": dict(environment), "log": str(log), "cwd": str(log.parent),
        "stop_grace_s": min(GRACE_S, stop_s / 2), "deadline_s": deadline_s, "listens": listens,
    }  # fmt: skip


def marked_environment(environment: Mapping[str, str], marker: str) -> dict[str, str]:
    """The whole environment of a server: with its marker, which setproctitle would write over but for SPT_NOENV."""
    return {"PYTHONUNBUFFERED": "1", **environment, MARKER: marker, "SPT_NOENV": "1"}


class Guarded:
    """A server under a guard.  It lives until `release`, until this object or this process is gone, or until it ends itself.

    Args:
        spec: `guard.Spec`.
        watch: Pids whose death ends the server too.
        complaints: File that gets what a guard says that cannot start.
        on_lost: Called, from a thread, when the guard was killed and the server may be left without one.
    """

    def __init__(
        self, spec: dict[str, Any], watch: Sequence[int], complaints: Path, on_lost: Callable[[], None]
    ) -> None:
        self.on_lost = on_lost
        self._said: dict[str, dict[str, Any]] = {}
        self._closed = False
        self._changed = threading.Condition()
        life, keep = os.pipe()
        status, speak = os.pipe()
        self._life = os.fdopen(keep, "wb")
        try:
            _run_guard(life, speak, watch, complaints)
        finally:
            os.close(life)
            os.close(speak)
            threading.Thread(target=self._listen, args=(status,), name="guard", daemon=True).start()
        self.tell(json.dumps(spec).encode())  # if it died already, wait_started says so

    def wait_started(self) -> tuple[int | None, str]:
        """The server's pid, which is also its session and process group; or None and why it does not run."""
        with self._changed:
            self._changed.wait_for(lambda: self._said or self._closed, START_S)
            if "started" in self._said:
                return int(self._said["started"]["pid"]), ""
            return None, self._said.get("failed", {}).get("error", "its guard did not start; the log may say why")

    @property
    def running(self) -> bool:
        with self._changed:
            return "started" in self._said and "exited" not in self._said and not self._closed

    def tell(self, line: bytes) -> None:
        """Pass a line on to a server that listens; one that has ended does not hear it."""
        with contextlib.suppress(BrokenPipeError):
            self._life.write(line + b"\n")
            self._life.flush()

    def ending(self) -> tuple[int | None, str]:
        """The server's return code (None: nobody saw it), and why the guard ended it (empty: it ended by itself)."""
        with self._changed:
            code = self._said.get("exited", {}).get("returncode")
            why = self._said.get("stopping", {}).get("why", "")
        return code, "" if why == "exited" else why

    def release(self) -> None:
        """Ask the guard to end the server; returns at once."""
        with contextlib.suppress(BrokenPipeError):
            self._life.close()

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the guard has gone: it has ended everything, or it was killed and `on_lost` has returned."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def still_there(self) -> int | None:
        """The guard's pid while it has not gone; None if it has."""
        with self._changed:
            return None if self._closed or "started" not in self._said else int(self._said["started"]["guard"])

    def _listen(self, status: int) -> None:
        with os.fdopen(status, encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                with self._changed:
                    self._said[event["event"]] = event
                    self._changed.notify_all()
        self._reap()
        try:
            if "started" in self._said and "done" not in self._said:
                self.on_lost()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _reap(self) -> None:
        """Where this process is a subreaper itself, the guard has become its child: leave no zombie."""
        if started := self._said.get("started"):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(started["guard"], 0)


def _run_guard(life: int, speak: int, watch: Sequence[int], complaints: Path) -> None:
    """Run guard.py.  It forks at once: the process we start ends right away, the guard itself is nobody's child."""
    words = [word for pid in watch for word in ("--watch", str(pid))]
    environment = {name: value for name, value in os.environ.items() if name != MARKER}
    with complaints.open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", "-S", str(GUARD), *words],
            stdin=life,
            stdout=speak,
            stderr=log,
            env=environment,
            check=True,
        )
