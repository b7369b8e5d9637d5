"""Launching: how the servers of one worker are started (`engine.launch_mode`), and the standby that waits for the next.

A standby is made while its predecessor boots, held while anything is measured, and becomes the next server or is dropped.
Relaunches, which the final race compares, start plainly; so does whatever is not sure to be the same server either way,
and the reason is kept.  Not here: the standby itself (serving/standby.py), what it imports (imports.py).
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestrator.engines.imports import Imports
from orchestrator.gpus import GpuSet, processes, used_mib
from orchestrator.plan import Plan
from orchestrator.serving.cores import idle_cores
from orchestrator.serving.processes import MARKER
from orchestrator.serving.server import Launch, Server
from orchestrator.serving.standby import Standby, Waiting
from results.redaction import redact_file
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import Trial

Mode = Literal["plain", "overlap", "standby"]
HELD_MIB = 16
"""GPU memory that a waiting standby may hold: a server sizes its cache by what is free, so it must be as good as none."""
READY_S = 120.0
"""How long a measurement waits for a standby to have imported everything."""
_SAID = re.compile(r"launcher: (\w+): (warm|cold)(?:, (.*))?$")


class Importing(Protocol):
    """The part of a dialect that is asked here."""

    def imports(self, settings: Settings) -> Imports | str:
        """What a server of these settings and its children import; or why that is not known."""


@dataclass
class Departure:
    """How one server is started, and what became of it."""

    launch: Launch
    asked: Mode
    standby: Standby | None = None
    why_plain: str = ""
    """Why another mode was not used; empty: none was asked for, or it was."""
    heard: list[str] = field(default_factory=list)
    """Of each child, as the launcher told it: `scheduler warm`."""
    standby_s: float | None = None
    """From the standby's start to ready; None: there was none, or it is not ready yet."""

    def hear(self, line: str) -> None:
        """A line of the server's log."""
        if said := _SAID.search(line):
            name, how, why = said.groups()
            self.heard.append(f"{name} {how}" + (f" ({why})" if why else ""))

    def left(self, server: Server) -> None:
        """The server was started, or could not be: a standby that did not become it is used up all the same."""
        if self.standby is not None and not server.from_standby:
            self.standby.drop()
            self.standby, self.why_plain = None, "the standby could not be used"

    def arrived(self) -> None:
        """The server is ready."""
        if self.standby is not None:
            self.standby_s = time.monotonic() - self.standby.began

    @property
    def how(self) -> str:
        """In words: `standby: scheduler warm, detokenizer warm`; `plain`; `plain: ` and why."""
        if self.standby is None and not self.launch.launcher:
            return "plain" + (f": {self.why_plain}" if self.why_plain else "")
        mode = "standby" if self.standby else "overlap"
        told = [child + (f" ×{count}" if count > 1 else "") for child, count in Counter(self.heard).items()]
        return f"{mode}: {', '.join(told)}" if told else mode


class Launching:
    """Owns the standby of one worker, if there is one; `close` ends it."""

    _memory_is_known = False
    """Whether a standby was seen to hold no GPU memory."""

    def __init__(self, plan: Plan, run: RunDir, dialect: Importing, watch: Sequence[int] = ()) -> None:
        self.mode: Mode = plan.engine.launch_mode
        self._plan = plan
        self._run = run
        self._dialect = dialect
        self._watch = watch
        self._standby: Standby | None = None
        self.left_over: list[str] = []
        """Of standbys that were ended, in words; empty: all are gone."""
        self._never: str = ""
        """Why no standby is made any more; empty: one may be."""

    def depart(self, trial: Trial, launch: Launch, gpus: GpuSet, stopping: threading.Event) -> Departure:
        """How to start this server.  The first standby of a worker is made here and waited for, to see what it holds."""
        departure = Departure(launch, self.mode)
        if self.mode == "plain":
            return departure
        imports = "a relaunch" if _is_relaunch(trial) else self._dialect.imports(trial.settings)
        if isinstance(imports, str):
            self.close()
            departure.why_plain = imports
        elif self.mode == "overlap":
            departure.launch, departure.why_plain = _overlapped(launch, imports)
        else:
            self._stand_by(departure, trial, imports, gpus, stopping)
        return departure

    def prepare(self, trial: Trial, departure: Departure) -> None:
        """While this trial's server boots: begin the standby of the next."""
        imports = self._dialect.imports(trial.settings) if self.mode == "standby" and not self._never else ""
        if not isinstance(imports, str) and not _is_relaunch(trial):
            self.close()
            self._standby = self._make(trial, departure.launch, imports)

    def hold(self, stopping: threading.Event) -> None:
        """Nothing is imported while something is measured: wait until all is, then stop all of the standby's processes.

        It is the same time whether it is waited for here or by the next launch; and stopped half-way it might hold a lock
        that the running server needs.
        """
        standby = self._standby
        if standby is not None and not (standby.wait_ready(stopping, READY_S) and standby.hold()):
            self.close()

    def pids(self) -> list[int]:
        """Processes of the standby that waits."""
        return self._standby.pids() if self._standby is not None else []

    def close(self) -> None:
        """End the standby, if there is one."""
        standby, self._standby = self._standby, None
        if standby is not None:
            self.left_over += standby.drop()
            redact_file(standby.waiting.log)

    def _stand_by(
        self, departure: Departure, trial: Trial, imports: Imports, gpus: GpuSet, stopping: threading.Event
    ) -> None:
        launch = departure.launch
        if not self._memory_is_known and not self._never:
            self.close()
            self._never = self._first(trial, launch, imports, gpus, stopping)
        standby, self._standby = self._standby, None
        departure.why_plain = self._never or _misfit(standby, launch, imports)
        if not departure.why_plain:
            departure.standby = standby
        else:
            self._standby = standby
            self.close()

    def _first(self, trial: Trial, launch: Launch, imports: Imports, gpus: GpuSet, stopping: threading.Event) -> str:
        """Make a standby while nothing else is on the GPUs, and look what it holds there; returns why it must be the last."""
        before = used_mib(gpus)
        self._standby = self._make(trial, launch, imports)
        if not self._standby.wait_ready(stopping, self._plan.deadlines.load_s):
            return "" if stopping.is_set() else f"no standby gets ready: {self._standby.last_words()}"
        self._memory_is_known = True
        held = max((used - before.get(id_, 0) for id_, used in used_mib(gpus).items()), default=0)
        if held > HELD_MIB:
            return f"a waiting standby holds {held} MiB of GPU memory, which servers would miss"
        there = processes(gpus)
        return f"a waiting standby computes on the GPU: {'; '.join(map(str, there))}" if there else ""

    def _make(self, trial: Trial, launch: Launch, imports: Imports) -> Standby:
        name = uuid.uuid4().hex
        waiting = Waiting(
            command=imports.launcher(launch.argv, waits=True), imports=imports.names,
            environment=_unmarked(launch.environment), marker=f"{self._run.marker}/standby/{name}",
            log=self._run.standby_log(trial.name, name),
        )  # fmt: skip
        return Standby(waiting, self._plan.deadlines.stop_s, self._watch)


def _is_relaunch(trial: Trial) -> bool:
    """What the final race compares: launches of settings that had been launched before, and none is started as the others were."""
    return trial.kind == "finalist" or trial.launch > 0


def _overlapped(launch: Launch, imports: Imports) -> tuple[Launch, str]:
    """With a launcher, as many children importing beside the server as there are cores for; or why with none."""
    idle = idle_cores()
    imports = imports.first(max(0, int(idle + 0.5) - 1))
    if len(imports.names) == 1:
        return launch, f"no core is free for an import beside the server's own ({idle:.1f} are idle)"
    return dataclasses.replace(launch, launcher=imports.launcher(launch.argv, waits=False)), ""


def _misfit(standby: Standby | None, launch: Launch, imports: Imports) -> str:
    """Why this standby cannot become this server; empty: it can."""
    if standby is None:
        return "no standby was made"
    if not standby.alive:
        return f"the standby had ended: {standby.last_words()}"
    if standby.waiting.command != imports.launcher(launch.argv, waits=True):
        return "the standby was made for another interpreter, program or tp_size"
    was, now = standby.waiting.environment, _unmarked(launch.environment)
    names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    return f"the environment is not the standby's any more: {', '.join(names)}" if names else ""


def _unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != MARKER}
