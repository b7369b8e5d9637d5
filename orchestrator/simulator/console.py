"""The server's log and its death, in SGLang's words; orchestrators read both."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

Log = Callable[[str], None]

_FRAME = '  File "sglang/srt/managers/scheduler.py", line 4931, in run_scheduler_process'


def log(line: str) -> None:
    """One time-stamped line on stderr, as SGLang's logger writes it."""
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}\n")
    sys.stderr.flush()


def plain(text: str) -> None:
    """Text without a time stamp: tracebacks and progress bars."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def refuse(cause: str) -> NoReturn:
    """A rule of the arguments is broken: traceback, exit code 1."""
    plain("Traceback (most recent call last):")
    plain('  File "sglang/launch_server.py", line 68, in <module>\n    server_args = prepare_server_args(sys.argv[1:])')
    plain(cause)
    sys.exit(1)


def scheduler_exception(cause: str, serving: bool = False) -> NoReturn:
    """The scheduler fails: SGLang logs the traceback, then kills its whole process tree, itself included (exit code -9)."""
    log(f"Scheduler hit an exception: Traceback (most recent call last):\n{_FRAME}\n{cause}\n")
    log(
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
        if serving
        else "Received sigquit from a child process. It usually means the child failed."
    )
    killed()


def warm_up_failed(cause: str) -> NoReturn:
    log(f"Initialization failed. warmup error: Traceback (most recent call last):\n{_FRAME}\n{cause}")
    killed()


def killed() -> NoReturn:
    log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def out_of_memory(wanted_gib: float, gpu_gib: float, free_gib: float) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {max(wanted_gib, 0.02):.2f} GiB. GPU 0 has a total "
        f"capacity of {gpu_gib:.2f} GiB of which {max(free_gib, 0.0):.2f} GiB is free."
    )


def no_memory_left(gpu_gib: float) -> str:
    """The message when a card is full for no reason that is modelled: a fault that was asked for, or work that does not fit."""
    return out_of_memory(1.5, gpu_gib, 0.1)
