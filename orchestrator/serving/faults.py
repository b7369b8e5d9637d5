"""Faults of a launch, one tree: what can be wrong with a server, each with the log it left.

    ServerFault
    ├── ServerDied       it ended by itself, or could not be started
    ├── Abandoned        what its life hangs on died: its guard, the driver, the raylet
    ├── ServerHung       no progress in its log
    ├── ServerTooSlow    not ready in time, whatever the progress
    ├── WrongServer      another server answers on its port
    ├── PortTaken        another process has its port
    └── Interrupted      it was stopped while starting, as was asked

Not here: which failure a fault makes of a trial (worker.py).
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.serving.logs import read_log


class ServerFault(Exception):  # noqa: N818 - a fault of the server, not of ours
    """Something is wrong with a launch; `log` is where it wrote, `tail` the end of it."""

    def __init__(self, what: str, log: Path) -> None:
        self.log = log
        self.tail = read_log(log, head=0)
        last = next((line.strip() for line in reversed(self.tail.splitlines()) if line.strip()), "(empty)")
        super().__init__(f"{what}. Its log ends: {last[:400]}")


class ServerDied(ServerFault):
    """`returncode`: negative is the signal that ended it; None if it never ran or nobody saw how it ended."""

    def __init__(self, what: str, log: Path, returncode: int | None) -> None:
        self.returncode = returncode
        super().__init__(what, log)


class Abandoned(ServerFault):
    """What the server's life hangs on died, not the server by itself: its guard, or (`watched`) the driver or the raylet."""

    def __init__(self, what: str, log: Path, watched: bool) -> None:
        self.watched = watched
        super().__init__(what, log)


class ServerHung(ServerFault):
    def __init__(self, idle_s: float, log: Path) -> None:
        super().__init__(f"the server wrote nothing for {idle_s:.0f} s (deadlines.load_idle_s) and was not ready", log)


class ServerTooSlow(ServerFault):
    def __init__(self, load_s: float, log: Path) -> None:
        super().__init__(f"the server was not ready {load_s:.0f} s after its launch (deadlines.load_s)", log)


class WrongServer(ServerFault):
    pass


class PortTaken(ServerFault):
    pass


class Interrupted(ServerFault):
    pass
