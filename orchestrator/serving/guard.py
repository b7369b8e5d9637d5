"""A guard: a small process that lets a server live exactly as long as its owner holds a pipe.

Run, never imported: `python -I -S guard.py [--watch PID]…`, standard library only, so that it starts in a moment.

    stdin   one line of JSON, the spec (see `Spec`); what follows is passed on to the server.  Its end means: stop the server.
    stdout  a JSON object a line: started, failed, stopping, exited, done.  Nobody needs to read them.
    stderr  the server's log, for a guard that cannot start.

It forks once and leaves its caller's session, so whatever ends the caller's children or process group does not end the guard;
it is the subreaper of all the server starts, so a descendant that calls setsid or loses its parent stays below it.  Once stdin
has ended, a watched process has died, the deadline has passed, SIGTERM came or the server has exited, everything below is sent
TERM, then KILL, until there is no child left to wait for: only then it says done.  If the guard itself is killed, the kernel
kills the server (PR_SET_PDEATHSIG); what the server had started is then its owner's to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NotRequired, TypedDict

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
WATCH_POLL_S = 0.5


class Spec(TypedDict):
    """What to start, and how long to let it live and end."""

    argv: list[str]
    environment: dict[str, str]
    """The whole of it: nothing is inherited."""
    log: str
    """Gets stdout and stderr, appended."""
    cwd: str
    stop_grace_s: float
    """Seconds between TERM and KILL."""
    deadline_s: float | None
    """Seconds the server may live; None: as long as its owner wants."""
    listens: NotRequired[bool]
    """Whether the server reads what its owner still has to say on its stdin; otherwise that is /dev/null."""


def main(words: list[str]) -> None:
    watched = [int(pid) for flag, pid in zip(words[::2], words[1::2], strict=True) if flag == "--watch"]
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    wakeup = _be_a_subreaper()
    spec, rest = _read_spec()
    if spec is None:
        return
    hears, tell = os.pipe2(os.O_CLOEXEC) if spec.get("listens") else (os.open(os.devnull, os.O_RDONLY), None)
    try:
        server = _start(spec, hears)
    except OSError as error:
        _say(event="failed", error=f"{spec['argv'][0]}: {error}")
        return
    _say(event="started", pid=server, process_group=server, guard=os.getpid())
    os.close(hears)
    _pass_on(rest, tell)
    children = Children(server)
    _say(event="stopping", why=_wait_for_a_reason(children, watched, wakeup, spec["deadline_s"], tell))
    _end_all(children, spec["stop_grace_s"])
    _say(event="done", left=0, returncode=children.returncode)


def _be_a_subreaper() -> int:
    """Take in orphans; returns a file descriptor that becomes readable when a signal arrives."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, _note_signal)
    return readable


_signals: set[int] = set()


def _note_signal(number: int, _frame: object) -> None:
    _signals.add(number)


def _read_spec() -> tuple[Spec | None, bytes]:
    """The first line of stdin (None: the owner died before it was written), and what came with it."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            return None, b""
        data += piece
    line, _, rest = data.partition(b"\n")
    spec: Spec = json.loads(line)
    return spec, rest


def _pass_on(said: bytes, tell: int | None) -> None:
    if tell is not None and said:
        with contextlib.suppress(BrokenPipeError):  # the server has ended, or listens no more
            os.write(tell, said)


def _start(spec: Spec, hears: int) -> int:
    """Start the server as leader of a session and process group of its own; returns its pid, which is also theirs."""
    libc = ctypes.CDLL(None)
    inherited = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD)

    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in inherited:
            signal.signal(number, signal.SIG_DFL)

    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        server = subprocess.Popen(
            spec["argv"],
            env=spec["environment"],
            cwd=spec["cwd"],
            stdin=hears,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=before_exec,  # safe: this process has one thread
        )
    finally:
        os.close(log)
    server.returncode = 0  # we wait for every child ourselves: tell Popen not to
    return server.pid


class Children:
    """Everything below this process."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.returncode: int | None = None
        """The server's; negative: the signal that ended it; None while it runs."""

    def reap(self) -> bool:
        """Wait for those that have ended.  True: there is none left, so (being the subreaper) no descendant either."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.server:
                self.returncode = os.waitstatus_to_exitcode(status)
                _say(event="exited", returncode=self.returncode)

    def living(self) -> list[int]:
        """The pids of all descendants that are no zombies."""
        below: dict[int, list[tuple[int, str]]] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and (parent_and_state := _parent_and_state(entry.path)):
                below.setdefault(parent_and_state[0], []).append((int(entry.name), parent_and_state[1]))
        found, todo = [], [os.getpid()]
        while todo:
            for pid, state in below.get(todo.pop(), ()):
                todo.append(pid)
                if state != "Z":
                    found.append(pid)
        return found


def _parent_and_state(proc: str) -> tuple[int, str] | None:
    try:
        with open(f"{proc}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123 - pathlib starts slowly
            state, parent = stat.read().rpartition(")")[2].split()[:2]
    except OSError:
        return None  # it ended while we were looking
    return int(parent), state


def _wait_for_a_reason(
    children: Children, watched: list[int], wakeup: int, deadline_s: float | None, tell: int | None
) -> str:
    """Block until the server has to end (or has ended), passing on what its owner says; says why."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    ends = None if deadline_s is None else time.monotonic() + deadline_s
    handles, unwatchable = _open_watches(watched)
    for handle in handles:
        poller.register(handle, select.POLLIN)
    while True:
        children.reap()
        if children.returncode is not None:
            return "exited"
        if signal.SIGTERM in _signals:
            return "terminated"
        if gone := [pid for pid in unwatchable if not os.path.exists(f"/proc/{pid}")]:  # noqa: PTH110
            return f"watched {gone[0]} died"
        left_s = None if ends is None else ends - time.monotonic()
        if left_s is not None and left_s <= 0:
            return "deadline"
        wait_s = min((s for s in (left_s, WATCH_POLL_S if unwatchable else None) if s is not None), default=None)
        for fd, _ in poller.poll(None if wait_s is None else wait_s * 1000):
            if fd in handles:
                return f"watched {handles[fd]} died"
            said = os.read(fd, 65536)
            if fd == 0 and not said:
                return "owner closed"
            if fd == 0:
                _pass_on(said, tell)


def _open_watches(pids: list[int]) -> tuple[dict[int, int], list[int]]:
    """A pidfd (readable once its process has ended, zombie or not) → pid, and the pids for which there is none."""
    handles, unwatchable = {}, []
    for pid in pids:
        try:
            handles[os.pidfd_open(pid)] = pid
        except OSError:  # it is gone already, or this kernel has no pidfd: /proc tells
            unwatchable.append(pid)
    return handles, unwatchable


def _end_all(children: Children, grace_s: float) -> None:
    """TERM once to each descendant, KILL after `grace_s`, until none is left, however long the kernel takes."""
    asked: set[int] = set()
    kill_at = time.monotonic() + grace_s
    while not children.reap():
        if time.monotonic() < kill_at:
            _send(signal.SIGTERM, [pid for pid in children.living() if pid not in asked], asked)
        else:
            _send(signal.SIGKILL, children.living(), asked)
        time.sleep(POLL_S)


def _send(number: int, pids: list[int], asked: set[int]) -> None:
    for pid in pids:
        asked.add(pid)
        try:
            os.kill(pid, number)
            if number == signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)  # a stopped process hears TERM only then
        except (ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is another user's: the wait goes on


def _say(**event: Any) -> None:
    with contextlib.suppress(OSError):  # the owner is gone
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
