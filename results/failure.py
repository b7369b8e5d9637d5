"""Failure: why a trial has no measurement, as a closed set of kinds and the stage it had reached.

Each kind says whose doing it is, and so what the sampler learns and whether a second attempt makes sense.
Not here: reading a log (orchestrator/engines), catching exceptions (orchestrator/worker.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

ATTEMPTS = 2
"""A trial that ended by the machine's fault, or hung, is tried this often in all."""

Blame = Literal["setting", "environment", "infrastructure", "person"]


class Stage(StrEnum):
    """How far a launch had come, in order."""

    PREFLIGHT = "preflight"
    VALIDATE = "validate"
    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    SERVING = "serving"
    TEARDOWN = "teardown"


class FailureKind(StrEnum):
    """`blame`: setting (told to the sampler as infeasible), environment (every launch would fail: the sweep stops),
    infrastructure (told to nobody, tried once more), person (a stop that was asked for)."""

    blame: Blame
    remedy: str

    def __new__(cls, value: str, blame: Blame = "setting", remedy: str = "") -> FailureKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.blame = blame
        kind.remedy = remedy
        return kind

    CONFIG_ILLEGAL = (
        "config_illegal",
        "setting",
        "The server refused one of these values, or all of them together; see the message.",
    )
    BACKEND_UNSUPPORTED = "backend_unsupported", "setting", "Another attention backend, or topk 1."
    MODEL_UNSUPPORTED = (
        "model_unsupported",
        "setting",
        "This target cannot be used with this algorithm in this SGLang version.",
    )
    DRAFTER_MISMATCH = (
        "drafter_mismatch",
        "setting",
        "The drafter does not fit the target: check hidden size, vocabulary, aux layers.",
    )
    CONTEXT_MISMATCH = "context_mismatch", "setting", "Set target.context_length to what the drafter was trained for."
    OOM_WEIGHTS = "oom_weights", "setting", "The weights do not fit: more GPUs (tp_size) or a smaller model."
    OOM_KV_POOL = "oom_kv_pool", "setting", "Raise mem_fraction_static: no room is left for the KV cache."
    OOM_GRAPH_CAPTURE = "oom_graph_capture", "setting", "Lower mem_fraction_static or max_running_requests."
    OOM_RUNNING = "oom_running", "setting", "Lower mem_fraction_static, the concurrency or num_draft_tokens."
    PORT_CONFLICT = (
        "port_conflict",
        "infrastructure",
        "Another process took the port; the trial is tried again on another.",
    )
    ENVIRONMENT_BROKEN = (
        "environment_broken",
        "environment",
        "Repair the engine's environment (engine.python), then resume.",
    )
    START_TIMEOUT = "start_timeout", "infrastructure", "Raise deadlines.load_s if the model is large."
    START_HANG = (
        "start_hang",
        "infrastructure",
        "No progress in the log: see its tail; raise deadlines.load_idle_s if this is normal here.",
    )
    CRASH_START = "crash_start", "setting", "The server died while starting; see the log."
    CRASH_SERVING = "crash_serving", "setting", "The server died under load; see the log."
    HANG_SERVING = "hang_serving", "setting", "The server stopped answering under load; see the log."
    HOST_OOM = "host_oom", "infrastructure", "The kernel killed the server for memory: free host memory."
    NODE_LOST = "node_lost", "infrastructure", "The worker or its machine went away."
    GPU_NOT_FREE = "gpu_not_free", "infrastructure", "Something else holds GPU memory; see the message for its pid."
    GPU_FAULT = (
        "gpu_fault",
        "infrastructure",
        "A GPU reports a fault of its own: see dmesg for Xid; reset it, or leave it out (cluster.gpus).",
    )
    BENCHMARK_INVALID = (
        "benchmark_invalid",
        "setting",
        "Too few requests succeeded, or no tokens came: the message has what the first was answered; mend that.",
    )
    INTERRUPTED = "interrupted", "person", "Resume the run."
    UNKNOWN = "unknown", "setting", "See the log."

    @property
    def retried(self) -> bool:
        """Whether one such end of a trial says too little: it is tried once more."""
        return self.blame == "infrastructure" or self is FailureKind.HANG_SERVING

    def over(self, times: int) -> bool:
        """Whether a trial is over that failed for the `times`-th time, now so; a broken environment is repaired and resumed."""
        return self.blame != "environment" and (times >= ATTEMPTS or not self.retried)


@dataclass(frozen=True)
class Failure:
    """`message` carries the cause in the server's words, the log's path and what to do: `cause\\nLog: path\\nremedy`.

    A new one is made by `of`; the plain constructor takes a message back from a row.
    """

    kind: FailureKind
    stage: Stage
    message: str

    @classmethod
    def of(cls, kind: FailureKind, stage: Stage, cause: str, log: Path | None = None) -> Failure:
        """`log`: where the server wrote; None where none was started or its log is out of reach."""
        named = f"Log: {log}\n" if log is not None else ""
        return cls(kind, stage, f"{cause}\n{named}{kind.remedy}")

    @property
    def cause(self) -> str:
        """What happened, without the log's path and the remedy."""
        return self._parts[0]

    @property
    def log(self) -> str | None:
        """Path of the log that the message names; None where it names none."""
        return self._parts[1]

    def cause_in_short(self, most: int = 300) -> str:
        """The cause as one line of at most `most` characters, a full stop at its end."""
        line = " ".join(self.cause.split()) or "nothing was said of it"
        line = line if len(line) <= most else line[: most - 1] + "…"
        return line if line.endswith((".", "…", "!", "?")) else f"{line}."

    @property
    def _parts(self) -> tuple[str, str | None]:
        said = self.message.removesuffix(self.kind.remedy).rstrip()
        cause, named, log = said.rpartition("\nLog: ")
        path = log.strip().partition("\n")[0]  # a row of an earlier version has another remedy after it
        return (cause.strip(), path) if named else (said, None)
