"""A launcher: starts a Python server whose imports are done ahead, and changes nothing else about it.

Run, never imported: `PYTHON launcher.py SPEC [words…]`, by the server's own interpreter; standard library alone until it
imports what SPEC names.  SPEC is JSON (see `Spec`); what it starts is what `PYTHON -m MODULE words…` would start.

    overlap   (`waits` false)  the modules of the server's children are imported beside its own
    standby   (`waits` true)   all of it is imported at once; then a line of JSON on stdin (see `Go`) says what to start,
                               or the end of stdin that nothing is to be started

A child is begun ahead as a process of its own.  No fork, for the import may start CUDA.  It imports and waits; when the server
spawns a process of this kind by multiprocessing, the waiting one is handed all that a new one would get (command, descriptors,
environment) and goes on as that one: "warm".  Where anything differs that an import may have read, a new process is spawned as
ever: "cold".  Each line it writes about itself begins with `launcher: `, so that a log tells which it was.
Not here: what is imported for which version (engines/imports.py), who starts and stops a standby (standby.py).
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import re
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

PR_SET_PDEATHSIG = 1
RESERVED = range(3, 256)
"""Descriptors of these numbers are kept free in a waiting child: what it is handed must get the numbers it has in the server."""
LONGEST_MESSAGE = 2**20

Environment = dict[str, str]


class Kind(TypedDict):
    """Processes of the server that may be begun ahead."""

    name: str
    function: str
    """Name of the function that such a process is spawned to run."""
    imports: list[str]
    count: int


class Spec(TypedDict):
    module: str
    waits: bool
    imports: list[str]
    """Of the server itself, in this order, after its own module's; `module:function` is called, too."""
    kinds: list[Kind]
    sets: Environment
    """Environment that the server sets for its children in any case."""
    defaults: Environment
    """Environment that the server sets for its children unless it is set."""
    late: list[str]
    """Environment that no import reads: it may differ from what a child was begun with."""
    marker: str
    """Name of the variable by which others find a process; its new value must show in /proc, too."""
    patience_s: float
    """How long a child waits for its part once the server is being started; one that is not needed must not stay."""


class Go(TypedDict):
    words: list[str]
    marker: str
    cwd: str


def main(words: list[str]) -> None:
    spec = json.loads(words[0])
    _search_like_dash_m()
    if "gate" in spec:
        _be_a_child(**spec)
    else:
        _be_the_server(spec, words[1:])


def _be_the_server(spec: Spec, words: list[str]) -> None:
    sys.argv = [spec["module"], *words]
    ahead = Ahead(spec)
    if spec["waits"]:
        _import_all(spec["module"], spec["imports"], "__launcher__")
        say("server: imported")
        go = _read_go()
        if go is None:
            return
        _take_on({spec["marker"]: go["marker"]}, spec["marker"])
        _move_to(go["cwd"])
        ahead.go(go)
        words = go["words"]
    ahead.take_over_spawning()
    sys.argv = [spec["module"], *words]
    runpy.run_module(spec["module"], run_name="__main__", alter_sys=True)


def _read_go() -> Go | None:
    """One line of stdin, which is /dev/null from then on; None: it ended."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            return None
        data += piece
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    go: Go = json.loads(data)
    return go


class Child:
    """A process that was begun ahead, as the server sees it."""

    def __init__(self, kind: Kind, spec: Spec) -> None:
        from multiprocessing import util

        self.name, self.function = kind["name"], kind["function"]
        self.begun_with = {**spec["defaults"], **os.environ, **spec["sets"]}
        self._gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        task = {
            "name": kind["name"], "module": spec["module"], "imports": kind["imports"], "gate": theirs.fileno(),
            "parent": os.getpid(), "hurries": not spec["waits"], "marker": spec["marker"], "patience_s": spec["patience_s"],
        }  # fmt: skip
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        words = [sys.executable, *flags, str(Path(__file__).absolute()), json.dumps(task)]
        empty = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        self.pid = os.posix_spawn(sys.executable, words, self.begun_with, file_actions=[empty])
        theirs.close()
        self._imported_with: Environment | None = None
        self._told: Environment = {}

    def go(self, changes: Environment, cwd: str) -> None:
        """The server is being started, there and with these changes.  Raises OSError: the child is gone."""
        self._send({"changes": changes, "cwd": cwd})
        self._told = changes
        self.begun_with = {**self.begun_with, **changes}

    def has(self) -> Environment:
        """Its environment after its imports, which are waited for.  Raises OSError: the child is gone."""
        if self._imported_with is None:
            said = self._gate.recv(LONGEST_MESSAGE)
            if not said:
                raise ConnectionResetError("it ended before it had imported all")
            self._imported_with = json.loads(said)
        return {**self._imported_with, **self._told}

    def differs(self, late: set[str]) -> list[str]:
        """Environment that a process spawned now would import with, and this one imported without."""
        has = self.has()
        changes = _changes(self.begun_with, dict(os.environ))
        return sorted(name for name, value in changes.items() if has.get(name) != value and name not in late)

    def become(self, numbers: dict[str, int], descriptors: list[int]) -> None:
        """Go on as the process that is being spawned.  Raises OSError: the child is gone."""
        changes = _changes(self.begun_with, dict(os.environ))
        part = {"changes": changes, "cwd": str(Path.cwd()), "numbers": numbers, "descriptors": descriptors}
        self._send(part, descriptors)
        self._gate.close()

    def end(self) -> None:
        self._gate.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return

    def _send(self, part: dict[str, Any], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self._gate, [json.dumps(part).encode()], descriptors or [])


class Ahead:
    """The children that were begun ahead and wait for their part."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._late = {*spec["late"], spec["marker"]}
        self._waiting = [Child(kind, spec) for kind in spec["kinds"] for _ in range(kind["count"])]
        self._spawning = ""
        """Name of the function that a process is being spawned for."""

    def go(self, go: Go) -> None:
        """Tell them; those that are gone are found out when they are to take their part."""
        for child in self._waiting:
            with suppress(OSError):
                child.go({self._spec["marker"]: go["marker"]}, go["cwd"])

    def take_over_spawning(self) -> None:
        """From now on a process that multiprocessing spawns may be one that was begun ahead."""
        from multiprocessing import popen_spawn_posix, util

        popen: Any = popen_spawn_posix.Popen
        launch, spawn = popen._launch, util.spawnv_passfds

        def launch_noting_what(self: Any, process: Any) -> Any:
            ahead._spawning = getattr(getattr(process, "_target", None), "__name__", "")
            try:
                return launch(self, process)
            finally:
                ahead._spawning = ""

        def hand_over_or_spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
            words = [os.fsdecode(word) for word in args]
            handed = ahead._hand_over(os.fsdecode(path), words, sorted(map(int, passfds)))
            return spawn(path, args, passfds) if handed is None else handed

        ahead = self
        popen._launch, util.spawnv_passfds = launch_noting_what, hand_over_or_spawn

    def _hand_over(self, path: str, words: list[str], descriptors: list[int]) -> int | None:
        """The pid of a waiting process that goes on as the one being spawned; None: spawn one."""
        name = next((kind["name"] for kind in self._spec["kinds"] if kind["function"] == self._spawning), None)
        if name is None or words[-1] != "--multiprocessing-fork":
            return None
        child = next((child for child in self._waiting if child.name == name), None)
        if child is None:
            say(f"{name}: cold, none was begun ahead")
            return None
        self._waiting.remove(child)
        try:
            obstacle = self._obstacle(child, path, descriptors)
            if not obstacle:
                child.become(_numbers(words), descriptors)
                say(f"{name}: warm")
                return child.pid
        except OSError as error:
            obstacle = f"the one begun ahead is gone ({error})"
        child.end()
        say(f"{name}: cold, {obstacle}")
        return None

    def _obstacle(self, child: Child, path: str, descriptors: list[int]) -> str:
        """Why this child cannot be what is being spawned; empty: it can.  Raises OSError: it is gone."""
        if path != sys.executable:
            return f"it is to run under {path}"
        if descriptors[-1] not in RESERVED or descriptors[0] not in RESERVED:
            return f"descriptors {descriptors} are outside of {RESERVED}"
        differs = child.differs(self._late)
        return f"its environment was changed since it imported: {', '.join(differs)}" if differs else ""


def _changes(before: Environment, after: Environment) -> dict[str, str | None]:
    """Name → its value from now on; None: it is no more."""
    return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _numbers(words: list[str]) -> dict[str, int]:
    """The descriptors that a spawned process is told of: `… -c 'from … import spawn_main; spawn_main(tracker_fd=5, …)' …`."""
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", words[words.index("-c") + 1])}


def _be_a_child(
    name: str, module: str, imports: list[str], gate: int, parent: int, hurries: bool, marker: str, patience_s: float
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    server = socket.socket(fileno=fcntl.fcntl(gate, fcntl.F_DUPFD_CLOEXEC, RESERVED.stop))
    os.close(gate)
    _reserve()
    sys.argv = ["-c"]
    _import_all(module, imports, "__mp_main__")
    _look_up_title()
    say(f"{name}: imported")
    server.send(json.dumps(dict(os.environ)).encode())
    while True:
        server.settimeout(patience_s if hurries else None)
        try:
            message, received, _, _ = socket.recv_fds(server, LONGEST_MESSAGE, len(RESERVED))
        except TimeoutError:
            message = b""
        if not message:
            return  # the server has no part for it
        part, hurries = json.loads(message), True
        _take_on(part["changes"], marker)
        _move_to(part["cwd"])
        if "numbers" in part:
            break
    server.close()
    _put_in_place(received, part["descriptors"])
    from multiprocessing import spawn

    sys.argv = ["-c", "--multiprocessing-fork"]
    spawn.spawn_main(**part["numbers"])


def _reserve() -> None:
    """Occupy what is RESERVED, so that whatever the imports open gets another number."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in RESERVED:
        if number != nothing:
            os.dup2(nothing, number, inheritable=False)
    if nothing not in RESERVED:
        os.close(nothing)


def _put_in_place(received: list[int], numbers: list[int]) -> None:
    """Give what was received the numbers it has in the server, and free the rest of what is RESERVED."""
    for descriptor, number in zip(received, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    for number in set(RESERVED) - set(numbers):
        os.close(number)


def _import_all(module: str, names: list[str], run_name: str) -> None:
    """What `module` imports when it is run, without running it as the program; then `names`, in order."""
    runpy.run_module(module, run_name=run_name)
    for name in names:
        where, _, function = name.partition(":")
        loaded = importlib.import_module(where)
        if function:
            getattr(loaded, function)()


def _look_up_title() -> None:
    """setproctitle finds the place of a process's title by its environment: it must look before that is changed."""
    if "setproctitle" in sys.modules:
        sys.modules["setproctitle"].getproctitle()


def _take_on(changes: dict[str, str | None], marker: str) -> None:
    """Only what changed: what the imports set or changed themselves stays."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
            continue
        if name == marker:
            _rewrite(name, value)
        os.environ[name] = value


def _rewrite(name: str, value: str) -> None:
    """Change a variable where others look for it (/proc/PID/environ).  Raises ValueError: there is no room for it."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    place = library.getenv(os.fsencode(name))
    room = len(ctypes.string_at(place)) if place else 0
    if len(os.fsencode(value)) > room:
        raise ValueError(f"{name}={value} does not fit where {os.environ.get(name)} stood: begin with a longer one")
    ctypes.memmove(place, os.fsencode(value).ljust(room, b"\0"), room)


def _search_like_dash_m() -> None:
    """`python -m` looks for modules in the working directory first, a script in its own."""
    if sys.path and Path(sys.path[0]).absolute() == Path(__file__).absolute().parent:
        sys.path[0] = str(Path.cwd())


def _move_to(folder: str) -> None:
    from multiprocessing import process

    if sys.path and sys.path[0] == str(Path.cwd()):
        sys.path[0] = folder
    os.chdir(folder)
    process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]


def say(text: str) -> None:
    os.write(2, f"launcher: {text}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
