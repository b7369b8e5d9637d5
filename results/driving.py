"""Who drives a run: one process alone, which holds its run.lock.  Not here: where that file is (rundir.py)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator

from results.files import RunDirProblem, opened
from results.journal import parsed
from results.rundir import RunDir


@contextlib.contextmanager
def lock(run: RunDir) -> Iterator[None]:
    """Hold run.lock, so that one process alone drives this run; it frees itself when that process dies.

    Raises:
        RunDirProblem: another process holds it; the message names its pid and host.  Or it cannot be written.
    """
    fd = opened(run.lock_file, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirProblem(
                f"{run.path}: busy, {_holder(fd)} drives this run. Wait for it, or stop it with Ctrl-C there; "
                f"`python -m orchestrator status {run.path}` shows how far it is."
            ) from None
        except OSError as error:  # a file system without locks
            raise RunDirProblem.of(run.lock_file, error) from error
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):  # a full disk: who holds it cannot be said, but it is held
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(fd)


def driver_of(run: RunDir) -> str | None:
    """Who drives a run now, e.g. `process 4711 on node-3`; None when nobody does."""
    try:
        fd = os.open(run.lock_file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(fd)
    else:
        return None
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    holder = parsed(os.pread(fd, 4096, 0)) or {}
    return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"
