"""A server process that lives exactly as long as a `with` block, and the proof that it is gone afterwards.

    with Server(launch, deadlines, stopping) as server:
        info = server.wait_ready()
        ...                                   # measure at server.url; server.check() between
    server.stop().left_over                   # empty: nothing of it is left

The process itself is started and ended by a guard (guard.py), which outlives a killed owner.  Two rules for the owner: never fork
without exec (a copy of the guard's pipe would keep the server alive), and one `with` block at a time per GPU.
Not here: what to start (the engine's command line), what a log means (the engine), what can be wrong (faults.py),
whether GPU memory came back (gpus.py).
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.plan import Deadlines
from orchestrator.serving.faults import (
    Abandoned,
    Interrupted,
    PortTaken,
    ServerDied,
    ServerHung,
    ServerTooSlow,
    WrongServer,
)
from orchestrator.serving.guarded import Guarded, marked_environment, spec_of
from orchestrator.serving.logs import Follower
from orchestrator.serving.ports import can_bind, listens
from orchestrator.serving.processes import describe, end, find_in_group, find_marked
from orchestrator.serving.standby import Standby

KILL_ALL_S = 10.0
QUICK_POLL_S, POLL_S = 0.05, 0.2
MOST_BYTES = 4 * 2**20
"""Longest answer about the server; SGLang's have some ten thousand bytes."""
ANSWER_S = 10.0
"""Longest wait for one answer about the server; a generation may take `deadlines.request_s`."""


@dataclass(frozen=True)
class Launch:
    """What to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """The server's whole environment; the marker is added."""
    log: Path
    """Gets its stdout and stderr; begun anew.  Its folder is the server's working directory."""
    host: str
    port: int
    marker: str
    """<run>/<trial>/<attempt>-<random>; the server must say it back as `served_model_name`."""
    launcher: tuple[str, ...] = ()
    """Starts what `argv` starts, given the words behind its `-m MODULE`; empty: `argv` is executed itself."""

    @property
    def words(self) -> tuple[str, ...]:
        """The server's own, behind `PYTHON -m MODULE`."""
        return self.argv[3:]

    @property
    def command(self) -> tuple[str, ...]:
        return (*self.launcher, *self.words) if self.launcher else self.argv


@dataclass(frozen=True)
class Teardown:
    stop_s: float
    left_over: tuple[str, ...]
    """What was not proven gone, in words: processes, an open port."""


class Server:
    """Owns one server process, from `__enter__` to `stop` (which `__exit__` calls).  Usable from any thread.

    Args:
        launch: What to start.
        deadlines: `load_idle_s`, `load_s` and `request_s` bound `wait_ready`, `stop_s` bounds `stop`.
        stopping: When set, `wait_ready` raises Interrupted within a moment.
        watch: Pids (the driver, the raylet) whose death also ends the server.
        deadline_s: Seconds after which the server is ended whatever happens; None: no such bound.
        standby: Becomes the server, if it still can; used up either way.
    """

    process_group: int
    """Also the server's pid; 0 until it was started."""

    def __init__(
        self,
        launch: Launch,
        deadlines: Deadlines,
        stopping: threading.Event | None = None,
        watch: Sequence[int] = (),
        deadline_s: float | None = None,
        standby: Standby | None = None,
    ) -> None:
        self.url = f"http://{launch.host}:{launch.port}"
        self._launch = launch
        self._deadlines = deadlines
        self._stopping = stopping or threading.Event()
        self._watch = watch
        self._deadline_s = deadline_s
        self._standby = standby
        self.from_standby = False
        """Whether a standby became this server."""
        self._log = launch.log.absolute()
        self.process_group = 0
        self._guard: Guarded | None = None
        self._began = 0.0
        self._port_is_foreign = False
        self._teardown: Teardown | None = None
        self._one_stop = threading.Lock()

    def __enter__(self) -> Server:
        """Start the process.

        Raises:
            PortTaken: something listens on the port already.
            ServerDied: it could not be started; the message says why.
        """
        if self._guard is not None:
            raise RuntimeError("a Server is entered once: make another for another launch")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_bytes(b"")
        if not can_bind(self._launch.host, self._launch.port):
            raise self._port_taken("another process listens there before the launch")
        self._began = time.monotonic()
        self._guard = self._from_standby() or self._under_new_guard()
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.process_group = self._wait_started(self._guard)
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self, on_log: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Block until the server is ours and generates; returns its `/server_info`.

        Args:
            on_log: Called with each complete line of its log, in order.

        Raises:
            ServerFault: one of its kinds, as soon as it is known.
        """
        follower, heard_at, over = Follower(self._log), time.monotonic(), threading.Event()
        answer: Future[dict[str, Any]] = Future()
        threading.Thread(target=self._ask, args=(over, answer), name="ask-server", daemon=True).start()
        try:
            while True:
                gone = not self.alive()
                grown, lines = (True, follower.read_all()) if gone else follower.read()
                heard_at = time.monotonic() if grown and not all(map(_is_access, lines or [""])) else heard_at
                self._hear(lines, on_log)
                self.check()
                if answer.done():
                    return answer.result()
                self._check_clocks(heard_at)
                if self._stopping.wait(self._pause_s()):
                    raise Interrupted("the server was stopped while starting, as was asked", self._log)
        except WrongServer:
            self._port_is_foreign = True
            raise
        finally:
            over.set()

    def alive(self) -> bool:
        return self._guard is not None and self._guard.running

    def check(self) -> None:
        """Raises ServerDied when the process is gone, Abandoned when it was ended because something else died."""
        if self._guard is None:
            raise RuntimeError("the server is not started yet: use `with Server(…)`")
        if self._guard.running:
            return
        code, why = self._guard.ending()
        if why:
            raise Abandoned(f"the server was ended by its guard: {why}", self._log, watched=why.startswith("watched"))
        if code is None:
            raise Abandoned("the server's guard was killed, and the server with it", self._log, watched=False)
        raise ServerDied(f"the server ended with {_words(code)}", self._log, code)

    def stop(self) -> Teardown:
        """End the server and prove it; blocks up to `deadlines.stop_s`.  A second call returns the first one's answer."""
        with self._one_stop:
            if self._teardown is None:
                self._teardown = self._stop(self._guard) if self._guard else Teardown(0.0, ())
            return self._teardown

    def _stop(self, guard: Guarded) -> Teardown:
        began = time.monotonic()
        until = began + self._deadlines.stop_s
        guard.release()
        guard.wait_gone(self._deadlines.stop_s)
        left = self._left_over()
        while left and time.monotonic() < until:
            time.sleep(QUICK_POLL_S)
            left = self._left_over()
        return Teardown(time.monotonic() - began, tuple(left))

    def _wait_started(self, guard: Guarded) -> int:
        pid, why = guard.wait_started()
        if pid is None:
            raise ServerDied(f"the server could not be started: {why}", self._log, None)
        return pid

    def _from_standby(self) -> Guarded | None:
        """The guard of the standby that becomes this server; None: there is none that can."""
        if self._standby is None:
            return None
        guard = self._standby.go(self._launch.words, self._launch.marker, self._log)
        if guard is not None:
            guard.on_lost = self._end_orphans
            self.from_standby = True
        return guard

    def _under_new_guard(self) -> Guarded:
        environment = marked_environment(self._launch.environment, self._launch.marker)
        spec = spec_of(self._launch.command, environment, self._log, self._deadlines.stop_s, self._deadline_s)
        return Guarded(spec, self._watch, self._log, on_lost=self._end_orphans)

    def _hear(self, lines: Iterable[str], on_log: Callable[[str], None] | None) -> None:
        for line in lines:
            if on_log:
                on_log(line)
            if "address already in use" in line.lower() or "[Errno 98]" in line:
                raise self._port_taken(f"the server says: {line.strip()[:300]}")

    def _port_taken(self, how: str) -> PortTaken:
        self._port_is_foreign = True
        return PortTaken(f"port {self._launch.port} of {self._launch.host} is taken: {how}", self._log)

    def _check_clocks(self, heard_at: float) -> None:
        now = time.monotonic()
        if now - self._began > self._deadlines.load_s:
            raise ServerTooSlow(self._deadlines.load_s, self._log)
        if now - heard_at > self._deadlines.load_idle_s:
            raise ServerHung(self._deadlines.load_idle_s, self._log)

    def _pause_s(self) -> float:
        return QUICK_POLL_S if time.monotonic() - self._began < 1.0 else POLL_S

    def _ask(self, over: threading.Event, answer: Future[dict[str, Any]]) -> None:
        """Ask until the server generates.  A thread of its own, so that a silent server hides neither its death nor a stop."""
        try:
            while not over.wait(self._pause_s()):
                info = self._server_info()
                if info is not None and self._generates():
                    answer.set_result(info)
                    return
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            answer.set_exception(error)

    def _server_info(self) -> dict[str, Any] | None:
        info = _ask_json(f"{self.url}/server_info", None, ANSWER_S)
        if info is not None and info.get("served_model_name") != self._launch.marker:
            raise WrongServer(
                f"{self.url}/server_info answers as {info.get('served_model_name')!r}, not as {self._launch.marker!r}: "
                f"another server has this port; end it or leave the port to it",
                self._log,
            )
        return info

    def _generates(self) -> bool:
        question = {"text": "The", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        return _ask_json(f"{self.url}/generate", question, self._deadlines.request_s) is not None

    def _ours(self) -> list[int]:
        group = find_in_group(self.process_group) if self.process_group else []
        return sorted({*find_marked(self._launch.marker), *group})

    def _end_orphans(self) -> None:
        """The guard was killed: end what it guarded."""
        end(self._ours, 0.0, KILL_ALL_S)

    def _left_over(self) -> list[str]:
        left = [describe(pid) for pid in self._ours()]
        if self._guard and (guard := self._guard.still_there()):
            left.append(f"{describe(guard)}, the guard, still waits for a process that does not end")
        if not self._port_is_foreign and listens(self._launch.host, self._launch.port):
            left.append(f"port {self._launch.port} of {self._launch.host} is still open")
        return left


def _is_access(line: str) -> bool:
    """Whether a log line only says that the server was asked something: our own polls are no progress of its."""
    return '"GET /' in line or '"POST /' in line


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A server of ours sends nobody elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
"""Never through http_proxy: these are loopback addresses."""


def _ask_json(url: str, question: object, timeout_s: float) -> dict[str, Any] | None:
    """GET, or POST `question` as JSON; None if there is no proper answer (yet), or none of a bearable length in time."""
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - always http
    try:
        with _direct.open(request, timeout=timeout_s) as response:
            answer = json.loads(_whole(response, timeout_s))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _whole(response: http.client.HTTPResponse, timeout_s: float) -> bytes:
    """Raises OSError when it is too long or takes too long: the timeout of a socket is for each piece only."""
    until, content = time.monotonic() + timeout_s, b""
    while piece := response.read1(2**16):
        content += piece
        if len(content) > MOST_BYTES or time.monotonic() > until:
            raise OSError("the answer comes to no end")
    return content


def _words(returncode: int) -> str:
    if returncode >= 0:
        return f"return code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    return f"signal {-returncode} ({name})"
