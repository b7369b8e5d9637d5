"""Worker: owns a GpuSet and runs one trial at a time; the one place where a mishap becomes a Failure.

Plain Python: it knows nothing of Ray (pool.py) and nothing of other workers.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

from orchestrator.engines import engine_for
from orchestrator.events import Event, TrialEnded
from orchestrator.gpus import GpuSet, processes, used_mib, wait_free
from orchestrator.measuring.chat_template import ChatTemplate
from orchestrator.measuring.faults import HangError, MeasureError, Stopped
from orchestrator.measuring.workload import load_prompts
from orchestrator.nvml import GpuLostError
from orchestrator.plan import Plan
from orchestrator.serving.faults import (
    Abandoned,
    Interrupted,
    PortTaken,
    ServerDied,
    ServerFault,
    ServerHung,
    ServerTooSlow,
    WrongServer,
)
from orchestrator.serving.logs import cap_log, read_log
from orchestrator.serving.processes import describe, find_orphans, wait_gone
from results.failure import Failure, FailureKind, Stage
from results.record import Record
from results.redaction import redact_file, redacted
from results.rundir import RunDir
from sweeps.trial import Trial

OWNER_GONE = "the driver or this worker's raylet died"
LOG_MIB = 16
"""A server's log larger than this keeps its head and tail."""

Mishap = ServerFault | MeasureError | HangError
_BY_TYPE: dict[type[Exception], FailureKind] = {
    ServerHung: FailureKind.START_HANG,
    ServerTooSlow: FailureKind.START_TIMEOUT,
    WrongServer: FailureKind.PORT_CONFLICT,
    PortTaken: FailureKind.PORT_CONFLICT,
    Abandoned: FailureKind.NODE_LOST,
    MeasureError: FailureKind.BENCHMARK_INVALID,
    HangError: FailureKind.HANG_SERVING,
}


class Worker:
    """`watch`: pids whose death must end the server too (the driver's, the raylet's)."""

    def __init__(self, plan: Plan, run: RunDir, gpus: GpuSet, watch: Sequence[int] = ()) -> None:
        reads = plan.engine.name == "sglang" or (plan.engine.name == "attached" and plan.target.path)
        template = ChatTemplate.from_directory(plan.target.path) if reads else None
        self._engine = engine_for(plan, run, load_prompts(plan.workload, template), watch)
        self._plan = plan
        self._run = run
        self._gpus = gpus
        self.stopping = threading.Event()
        """Set from another thread: stop now."""
        self.enough = threading.Event()
        """Set from another thread: stop after the load point that is being measured."""

    def close(self) -> None:
        """Nothing more is run: what still waits for a trial is ended."""
        self._engine.close()

    def run(self, trial: Trial) -> Iterator[Event]:
        """Everything that happens on this trial, the proof of a free GPU last."""
        started = time.monotonic()
        before: dict[str, int] | None = None
        measured = 0
        failure: Failure | None = None
        busy: tuple[str, ...] = ()
        try:
            self._await_orphans()
            before = used_mib(self._gpus)
            self._refuse_busy_gpus()
            for event in self._engine.run(trial, self._gpus, self.stopping, self.enough):
                measured += isinstance(event, Record)
                yield event
        except (Interrupted, Stopped):
            pass
        except (GpuBusyError, GpuLostError) as error:
            busy = (str(error),)
            failure = Failure.of(FailureKind.GPU_NOT_FREE, Stage.PREFLIGHT, str(error))
        except Abandoned as lost:
            if lost.watched:
                busy = (OWNER_GONE,)
            else:
                failure = self._failure(trial, lost)
        except (ServerFault, MeasureError, HangError) as mishap:
            failure = self._failure(trial, mishap)
        except OSError:
            self._run.require_room()  # a full disk ends the sweep; anything else is a bug
            raise
        if failure is not None:
            self._run.require_room()  # on a full disk a server dies of what is no fault of its settings
            failure = dataclasses.replace(failure, message=redacted(failure.message))
            yield Record.of(trial, self._engine.origin(trial, self._gpus), failure=failure)
        over = measured == len(trial.load_points) if failure is None else failure.kind.over(trial.failures + 1)
        yield TrialEnded(
            trial=trial.number,
            complete=over,
            held_s=time.monotonic() - started,
            gpus=self._gpus.ids,
            left_over=busy or (*_sick(failure), *(() if before is None else self._prove_free(trial, before))),
            retry=failure is not None and failure.kind.retried and not over,
        )

    def _await_orphans(self) -> None:
        """Until what a killed worker of this run had on these GPUs has ended, for which its guard needs some seconds.

        Raises:
            GpuBusyError: it has not after `deadlines.stop_s`.
            Stopped: a stop was asked for meanwhile.
        """
        orphans = partial(find_orphans, self._run.marker, self._gpus.ids)
        left = wait_gone(orphans, self._plan.deadlines.stop_s, self.stopping)
        if left and self.stopping.is_set():
            raise Stopped("stopped before the launch, while an earlier server of this run was ending")
        if left:
            named = "; ".join(describe(pid) for pid in left)
            raise GpuBusyError(
                f"{self._named()} is still held by an earlier server of this run, which does not end: {named}"
            )

    def _named(self) -> str:
        return f"GPU {', '.join(self._gpus.ids)}" if self._gpus.ids else "This machine"

    def _refuse_busy_gpus(self) -> None:
        ours = self._engine.launching.pids()
        others = [process for process in processes(self._gpus) if process.pid not in ours]
        if others:
            named = "; ".join(str(process) for process in others)
            raise GpuBusyError(f"{self._named()} is in use by others: {named}. They are not ours to end.")

    def _prove_free(self, trial: Trial, before: dict[str, int]) -> tuple[str, ...]:
        """What is left of the server, in words; empty when it is gone and GPU memory is back."""
        teardown = self._engine.teardown
        left = [*(teardown.left_over if teardown else ()), *self._engine.launching.left_over]
        left += wait_free(self._gpus, before, timeout_s=self._plan.deadlines.stop_s)
        log = self._run.server_log(trial.name, trial.attempt)
        try:
            redact_file(log)
            cap_log(log, LOG_MIB * 2**20)
        except OSError:
            self._run.require_room()
            raise
        return tuple(left)

    def _failure(self, trial: Trial, mishap: Mishap) -> Failure:
        log = self._run.server_log(trial.name, trial.attempt)
        read = self._engine.dialect.diagnose(
            read_log(log), mishap.returncode if isinstance(mishap, ServerDied) else None
        )
        kind = read.kind if isinstance(mishap, ServerDied) else _BY_TYPE[type(mishap)]
        if isinstance(mishap, ServerDied) and mishap.returncode is None:
            return Failure.of(FailureKind.ENVIRONMENT_BROKEN, Stage.VALIDATE, str(mishap), log)
        if kind is FailureKind.START_HANG and read.stage is Stage.SERVING:
            kind = FailureKind.HANG_SERVING  # up and healthy, but no token comes
        cause = read.message if isinstance(mishap, ServerDied) else str(mishap)
        return Failure.of(kind, read.stage, cause, log)


def _sick(failure: Failure | None) -> tuple[str, ...]:
    """A card that reports a fault of its own is not handed over, though its memory is free."""
    return (failure.cause_in_short(),) if failure is not None and failure.kind is FailureKind.GPU_FAULT else ()


class GpuBusyError(Exception):
    """A process, foreign or of an earlier launch, is on a card that should be free."""
