"""SGLang as a dialect: its command line, what its info says, and how its log is read.  Known: 0.5.17 and 0.5.23.

SGLang runs in an environment of its own and is never imported here.  File names in comments are of SGLang 0.5.17.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from orchestrator.engines.engine import Diagnosis
from orchestrator.errors import MachineError
from orchestrator.plan import Plan
from orchestrator.server import free_port
from results.failure import FailureKind, Stage
from sweeps.settings import Settings, knobs

KNOWN_VERSIONS = ("0.5.17", "0.5.23")

MILESTONES: tuple[tuple[Stage, str], ...] = (
    (Stage.VALIDATE, ""),
    (Stage.WEIGHTS, "server_args="),
    (Stage.KV_POOL, "Load weight end."),
    (Stage.GRAPH_CAPTURE, "Memory pool end."),
    (Stage.WARM_UP, "Uvicorn running on"),
    (Stage.SERVING, "The server is fired up and ready to roll!"),
)
"""A stage has begun once its line is in the log, in this order."""

SIGNATURES: tuple[tuple[FailureKind, str], ...] = (
    (FailureKind.PORT_CONFLICT, r"\[Errno 98\].*|.*address already in use.*|.*is not available in \d+ seconds.*"),
    (FailureKind.OOM_KV_POOL, r".*Not enough memory\. Please try to increase --mem-fraction-static.*|.*mem_fraction_static.*too small.*|.*minimum viable.*"),
    (FailureKind.CONFIG_ILLEGAL, r".*selected index k out of range.*"),
    (FailureKind.DRAFTER_MISMATCH, r".*hot_token_id.*|.*draft_vocab_size.*|.*mat1 and mat2 shapes cannot be multiplied.*|.*size mismatch for .*|.*has no attribute 'set_embed.*|.*loaded_weight.*shape.*"),
    (FailureKind.MODEL_UNSUPPORTED, r".*set_eagle3_layers_to_capture.*|.*Model architectures .* are not supported.*|.*unsupported operand type\(s\) for -: 'Tensor' and 'NoneType'.*|.*get_embed_and_head.*"),
    (FailureKind.CONTEXT_MISMATCH, r".*is greater than the derived context_length.*"),
    (FailureKind.BACKEND_UNSUPPORTED, r".*is not supported in (?:decode )?attention backend.*|.*FlashAttention v3 Backend requires.*|.*no kernel image is available.*|.*backend (?:for|can only|only supports).*|.*only supports topk ?= ?1.*|.*[Bb]ackend.*topk.*"),
    (FailureKind.ENVIRONMENT_BROKEN, r".*No module named .*|.*No such file or directory: 'ninja'.*|.*Could not import module.*|.*sglang-kernel.*version.*|.*flashinfer_python.*version.*|.*CUDA driver version is insufficient.*|.*libcuda.*cannot open shared object.*"),
)  # fmt: skip
"""First match wins; out-of-memory is told apart by stage (below).  Texts from docs of each check in SGLang's source."""

OUT_OF_MEMORY = re.compile(r".*(?:CUDA out of memory|OutOfMemoryError|Capture cuda graph failed: CUDA out of memory).*")
OOM_KINDS = {
    Stage.WEIGHTS: FailureKind.OOM_WEIGHTS,
    Stage.KV_POOL: FailureKind.OOM_KV_POOL,
    Stage.GRAPH_CAPTURE: FailureKind.OOM_GRAPH_CAPTURE,
    Stage.WARM_UP: FailureKind.OOM_RUNNING,
    Stage.SERVING: FailureKind.OOM_RUNNING,
}
LEFT_TO_THE_SERVER = ("mem_fraction_static",)
"""Knobs whose automatic value moves from launch to launch: when not given they stay None in the row."""


class SGLang:
    name = "sglang"
    simulated = False
    environment: Mapping[str, str] = {}  # noqa: RUF012 - read only

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @cached_property
    def version(self) -> str:
        """Raises MachineError when the interpreter or SGLang in it is missing."""
        ask = "import importlib.metadata as m; print(m.version('sglang'))"
        python = str(self._plan.engine.python)
        try:
            done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=120, check=False)
        except OSError as error:
            raise MachineError(f"engine.python: {python} cannot be run ({error.strerror}). Point it at the interpreter of SGLang's own environment.") from error  # fmt: skip
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise MachineError(f"engine.python: {python} has no SGLang ({last}). Install it there: {python} -m pip install sglang")  # fmt: skip
        return done.stdout.strip()

    def argv(self, settings: Settings, port: int, marker: str) -> list[str]:
        words = [*self._program(), "--model-path", self._plan.target.path]
        words += ["--host", self._plan.engine.host, "--port", str(port), "--served-model-name", marker]
        words += ["--nccl-port", str(free_port(self._plan.engine.host)), *self._target_words()]
        words += [word for name in knobs() for word in self._knob_words(name, settings)]
        given = dict(settings.server_args)
        if settings.cuda_graph and settings.max_running_requests and not any("cuda_graph" in name for name in given):
            words += ["--cuda-graph-max-bs-decode", str(settings.max_running_requests)]
        return words + [word for name, value in given.items() for word in _flag_words(name, value)]

    def _program(self) -> list[str]:
        return [str(self._plan.engine.python), "-m", "sglang.launch_server"]

    def _target_words(self) -> list[str]:
        target = self._plan.target
        words = ["--dtype", target.dtype]
        if target.context_length is not None:
            words += ["--context-length", str(target.context_length)]
        return [*words, "--trust-remote-code"] if target.trust_remote_code else words

    def _knob_words(self, name: str, settings: Settings) -> list[str]:
        value = getattr(settings, name)
        if value is None or value == "none":
            return []
        if name == "cuda_graph":
            return [] if value else ["--disable-cuda-graph"]
        return _flag_words(knobs()[name].server_name, self._drafter_path(value) if name == "drafter" else value)

    def _drafter_path(self, name: str) -> str:
        return self._plan.drafters[name]

    def as_run(self, info: Mapping[str, Any], asked: Settings) -> Settings:
        ran: dict[str, Any] = {"server_args": dict(asked.server_args)}
        for name, knob in knobs().items():
            wanted = getattr(asked, name)
            if knob.server_name not in info or (wanted is None and self._stays_open(name, asked)):
                ran[name] = wanted
            else:
                ran[name] = self._value_of(name, info[knob.server_name])
        return Settings.from_dict(ran)

    def _stays_open(self, name: str, asked: Settings) -> bool:
        """A knob that was not given keeps None where SGLang fills in what is no choice of ours."""
        if name in LEFT_TO_THE_SERVER:
            return True
        return knobs()[name].scope == "speculation" and asked.algorithm in ("none", "NGRAM", "DFLASH")

    def _value_of(self, name: str, value: Any) -> Any:
        if name == "algorithm":
            return value or "none"
        if name == "cuda_graph":
            return not value
        if name == "drafter":
            return next((known for known in self._plan.drafters if self._drafter_path(known) == value), value)
        return value

    def running_limit(self, info: Mapping[str, Any]) -> int | None:
        """managers/scheduler.py:4183."""
        states = info.get("internal_states") or [{}]
        limit = states[0].get("effective_max_running_requests_per_dp")
        return int(limit) if limit is not None else None

    def stage(self, log: str) -> Stage:
        return next(stage for stage, line in reversed(MILESTONES) if line in log)

    def diagnose(self, log: str, returncode: int | None) -> Diagnosis:
        stage = self.stage(log)
        for kind, pattern in SIGNATURES:
            if found := re.search(pattern, log):
                return Diagnosis(kind, stage, found.group(0).strip())
        if found := OUT_OF_MEMORY.search(log):
            return Diagnosis(OOM_KINDS.get(stage, FailureKind.OOM_WEIGHTS), stage, found.group(0).strip())
        last = _last_error(log)
        if returncode == -9 and last is None:
            return Diagnosis(FailureKind.HOST_OOM, stage, "killed (signal 9) without a word in the log: most likely the kernel's out-of-memory killer")  # fmt: skip
        if stage is Stage.VALIDATE:
            return Diagnosis(FailureKind.CONFIG_ILLEGAL, stage, last or f"refused its arguments (exit status {returncode})")
        kind = FailureKind.CRASH_SERVING if stage is Stage.SERVING else FailureKind.CRASH_START
        return Diagnosis(kind, stage, last or f"exit status {returncode}")

    def outside_graphs(self, log: str) -> bool:
        """observability/metrics_reporter.py:745-845."""
        lines = [line for line in log.splitlines() if "Decode batch" in line and "cuda graph:" in line]
        return sum("cuda graph: False" in line for line in lines) > len(lines) / 10


def _flag_words(name: str, value: Any) -> list[str]:
    """SGLang's flags: a bare flag when true, left out when false, several words for a list."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag] if value else []
    values = value if isinstance(value, list | tuple) else [value]
    return [flag, *map(str, values)]


def _last_error(log: str) -> str | None:
    """The last line of the log that names an exception, with the frame above it when its text is empty."""
    lines = log.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index].strip()
        if re.match(r"(?:\[[^\]]*\] )?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b", line) or ": error: " in line:
            bare = re.fullmatch(r"[\w.]*(?:Error|Exception)", line)
            return f"{line} at {lines[index - 2].strip()}" if bare and index >= 2 else line
    return None
