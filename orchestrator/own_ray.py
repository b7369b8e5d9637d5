"""A Ray cluster of our own: its folder, how it is brought up, and what a killed driver leaves of it.

Not here: Ray itself, which only pool.py imports, and clusters that others run.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from orchestrator.errors import MachineError
from orchestrator.gpus import PCI_ORDER
from orchestrator.serving.processes import VISIBLE
from results.rundir import RunDir

FOLDER = "sweep-"
"""What its folder in the temporary folder begins with; tempfile adds eight of [a-z0-9_]."""
PUT_BACK_EVERY_S = 0.02
NOT_UP = "timed out during startup"
"""Ray's words (_private/node.py) for a node that is not up after 30 s."""


def new_folder(run: RunDir) -> Path:
    """In the temporary folder, and named in the run's journal, so that a later driver finds it."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    run.journal.note("ray_started", folder=str(folder))
    return folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def clear_folders(run: RunDir) -> None:
    """Remove what killed drivers of this run left of their Ray clusters; only for the process that holds the run's lock."""
    for event in run.journal.events():
        folder = Path(event.get("folder", "")) if event["event"] == "ray_started" else None
        if folder is not None and folder.name.startswith(FOLDER) and folder.parent == Path(tempfile.gettempdir()):
            remove(folder)


class Keeper:
    """A thread which Ray is begun in and which stays, so that whoever listens to Ctrl-C and SIGTERM goes on listening.

    Begun on the main thread Ray exits on SIGTERM from wherever it is, and Python loses that in a finalizer; begun on any,
    its C++ side tells a SIGTERM as a crash, with an alarm in 3 s that aborts.  So it is begun beside, and while it comes up
    the handlers are put back and the alarm is called off.  The thread stays because Ray's processes end with the thread
    that started them (PR_SET_PDEATHSIG).
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def begin(self, begun: Callable[[], object]) -> None:
        """Only from the main thread; raises what begun raises."""
        ours = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        up = self._thread.submit(begun)
        done = False
        while not done:
            done = up in wait([up], timeout=PUT_BACK_EVERY_S).done
            for number, handler in ours.items():
                signal.signal(number, handler)
            signal.alarm(0)
        up.result()

    def end(self) -> None:
        """When Ray is down."""
        self._thread.shutdown()


def asked_twice(begun: Callable[[], object]) -> None:
    """Begin a Ray of our own: it gives its first processes 30 s, which a machine with much to do may not have.

    What a first try that came to nothing had started is ended before the second.

    Raises:
        MachineError: it did not come up the second time either.
    """
    before = set(psutil.Process().children(recursive=True))
    for _ in range(2):
        try:
            begun()
        except Exception as error:  # Ray raises the bare class
            if NOT_UP not in str(error):
                raise
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.Error):
                    process.kill()
        else:
            return
    load = os.getloadavg()[0]
    raise MachineError(
        f"Ray did not come up within its 30 s, twice: this machine has too much to do (load average {load:.0f}). "
        "Try again when it has less, or name a cluster that runs: cluster.address=…"
    )


@contextmanager
def shown(gpus: Sequence[str]) -> Iterator[None]:
    """What is started meanwhile sees these GPUs alone, counted as the driver does; with none, what we see ourselves."""
    before = os.environ.copy()
    if gpus:
        os.environ.update({VISIBLE: ",".join(gpus), **PCI_ORDER})
    try:
        yield
    finally:
        for name in (VISIBLE, *PCI_ORDER):
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})
