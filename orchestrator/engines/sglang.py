"""SGLang as a dialect: its command line, what its info says, and how its log is read.  Known: 0.5.17 and 0.5.23.

SGLang runs in an environment of its own and is never imported here.  File names in comments are of SGLang 0.5.17.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from orchestrator.engines.decode_log import DecodeLog
from orchestrator.engines.engine import Diagnosis
from orchestrator.engines.environment import server_environment
from orchestrator.engines.imports import Imports, sglang_imports
from orchestrator.errors import MachineError
from orchestrator.nearest import near, nearest
from orchestrator.plan import Plan
from orchestrator.serving.ports import free_port
from results.failure import FailureKind, Stage
from sweeps.settings import Knob, Settings, knobs

MILESTONES: tuple[tuple[Stage, str], ...] = (
    (Stage.WEIGHTS, "server_args="),
    (Stage.WEIGHTS, "Load weight begin."),
    (Stage.KV_POOL, "Load weight end."),
    (Stage.GRAPH_CAPTURE, "Memory pool end."),
    (Stage.WARM_UP, "Uvicorn running on"),
    (Stage.SERVING, "The server is fired up and ready to roll!"),
)
"""A line and the stage that begins with it; the last one in the log counts (target and drafter load one after the other)."""

SIGNATURES: tuple[tuple[FailureKind, str], ...] = (
    (FailureKind.GPU_FAULT, r"uncorrectable (?:ECC|NVLink) error|No CUDA GPUs are available|system not yet initialized|GPU is lost|fallen off the bus"),
    (FailureKind.PORT_CONFLICT, r"\[Errno 98\]|is not available in \d+ seconds"),
    (FailureKind.OOM_KV_POOL, r"try to increase --mem-fraction-static|leave no GPU memory for the KV cache"),
    (FailureKind.CONFIG_ILLEGAL, r"selected index k out of range"),
    (FailureKind.DRAFTER_MISMATCH, r"hot_token_id|draft_vocab_size|shapes cannot be multiplied|Attempted to load weight|size mismatch for |'set_embed"),
    (FailureKind.MODEL_UNSUPPORTED, r"set_eagle3_layers_to_capture|are not supported for now|-: 'Tensor' and 'NoneType'|get_embed_and_head"),
    (FailureKind.CONTEXT_MISMATCH, r"is greater than the derived context_length"),
    (FailureKind.BACKEND_UNSUPPORTED, r"attention backend|FlashAttention v3 Backend|no kernel image is available|backend for (?:prefill|decode)|only supports topk|Backend requires"),
    (FailureKind.ENVIRONMENT_BROKEN, r"No module named|'ninja'|Could not import module|(?:sglang-kernel|flashinfer_python).*version|CUDA driver version|cannot open shared object"),
)  # fmt: skip
"""Matched against the log's error lines, first kind first; texts are SGLang's, PyTorch's and uvicorn's own."""

KILLED = r"exit code: -9\b"
"""What a server says of a scheduler that was killed while loading, before any other error: it ends with 1 itself."""
OUT_OF_MEMORY = r"CUDA out of memory|OutOfMemoryError"
OOM_KINDS = {
    Stage.WEIGHTS: FailureKind.OOM_WEIGHTS,
    Stage.KV_POOL: FailureKind.OOM_KV_POOL,
    Stage.GRAPH_CAPTURE: FailureKind.OOM_GRAPH_CAPTURE,
    Stage.WARM_UP: FailureKind.OOM_RUNNING,
    Stage.SERVING: FailureKind.OOM_RUNNING,
}
ANSWERS_WITHIN_S = 120.0
"""How long an interpreter may take to say a version."""
OUTSIDE_SIGNALS = (-1, -2, -15)
"""HUP, INT and TERM: nobody sends them to itself."""
LEFT_TO_THE_SERVER = ("mem_fraction_static",)
"""Knobs whose automatic value moves from launch to launch: when not given they stay None in the row."""


class SGLang:
    name = "sglang"
    environment: Mapping[str, str] = {}

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def simulated(self) -> bool:
        return False

    @property
    def target(self) -> str:
        return self._plan.target.path

    @cached_property
    def version(self) -> str:
        """As a server would find it.  Raises MachineError when the interpreter or SGLang in it is missing, or it is too slow."""
        ask = "import importlib.metadata as m; print(m.version('sglang'))"
        python = str(self._plan.engine.python)
        try:
            done = subprocess.run(
                [python, "-c", ask],
                env=server_environment(self._plan.engine),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWERS_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"engine.python: {python} did not say its SGLang's version within {ANSWERS_WITHIN_S:.0f} s: a slow disk? Try again, or {python} -c 'import importlib.metadata'.") from error  # fmt: skip
        except OSError as error:
            raise MachineError(f"engine.python: {python} cannot be run ({error.strerror}). Point it at the interpreter of SGLang's own environment.") from error  # fmt: skip
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise MachineError(f"engine.python: {python} has no SGLang ({last}). Install it there: {python} -m pip install sglang")  # fmt: skip
        return done.stdout.strip()

    def imports(self, settings: Settings) -> Imports | str:
        return sglang_imports(self.version, settings.tp_size, {**self._plan.engine.env, **dict(settings.server_args)})

    def argv(self, settings: Settings, port: int, marker: str, nccl_port: int | None = None) -> list[str]:
        words = [*self._program(), "--model-path", self.target]
        words += ["--host", self._plan.engine.host, "--port", str(port), "--served-model-name", marker]
        words += ["--nccl-port", str(nccl_port or free_port(self._plan.engine.host)), *self._target_words()]
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
                said = self._value_of(name, info[knob.server_name])
                ran[name] = said if _can_be(knob, said) else wanted
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
        states = info.get("internal_states")
        first = states[0] if isinstance(states, list) and states else None
        limit = first.get("effective_max_running_requests_per_dp") if isinstance(first, dict) else None
        return limit if isinstance(limit, int) and not isinstance(limit, bool) else None

    @staticmethod
    def stage(log: str) -> Stage:
        reached, stage = max((log.rfind(line), stage) for stage, line in MILESTONES)
        return stage if reached >= 0 else Stage.VALIDATE

    @staticmethod
    def diagnose(log: str, returncode: int | None) -> Diagnosis:
        stage = SGLang.stage(log)
        evidence = error_lines(log)
        for kind, pattern in SIGNATURES:
            if found := next((line for line in evidence if re.search(pattern, line)), None):
                return Diagnosis(kind, stage, found)
        if found := next((line for line in evidence if re.search(OUT_OF_MEMORY, line)), None):
            return Diagnosis(OOM_KINDS.get(stage, FailureKind.OOM_WEIGHTS), stage, found)
        if (returncode == -9 and not evidence) or (evidence and re.search(KILLED, evidence[0])):
            return Diagnosis(FailureKind.HOST_OOM, stage, "killed (signal 9) without a word in the log: most likely the kernel's out-of-memory killer")  # fmt: skip
        if returncode in OUTSIDE_SIGNALS and not evidence:
            return Diagnosis(FailureKind.NODE_LOST, stage, f"ended from outside by signal {-returncode}")
        last = evidence[-1] if evidence else f"exit status {returncode}"
        if stage is Stage.VALIDATE:
            return Diagnosis(FailureKind.CONFIG_ILLEGAL, stage, f"{last}{_flag_meant(last, log)}")
        return Diagnosis(FailureKind.CRASH_SERVING if stage is Stage.SERVING else FailureKind.CRASH_START, stage, last)

    def decoding(self, log: str) -> DecodeLog:
        return DecodeLog.of(log)


def _can_be(knob: Knob, value: object) -> bool:
    """Whether a value that a server reports is one of this knob at all: another program may say anything."""
    if value is None:
        return getattr(Settings(), knob.name) is None
    if knob.type is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e9
    if isinstance(value, bool) or knob.type is bool:
        return isinstance(value, bool) and knob.type is bool
    if knob.type is int:
        return isinstance(value, int) and 0 <= value < 2**31
    return isinstance(value, str) and value.isprintable()


def _flag_words(name: str, value: Any) -> list[str]:
    """SGLang's flags: a bare flag when true, left out when false, several words for a list."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag] if value else []
    values = value if isinstance(value, list | tuple) else [value]
    return [flag, *map(str, values)]


_ERROR = re.compile(
    r"^(?:\[[^\]]*\] )?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?::|$)|: error: |ERROR: .*\[Errno|Capture cuda graph failed"
)


def _flag_meant(line: str, log: str) -> str:
    """Of a flag that the server's parser does not know, the nearest of those that its usage names; empty where none is."""
    unknown = re.search(r"unrecognized arguments: (--[\w-]+)", line)
    there = set(re.findall(r"\[(--[\w-]+)", log))
    return f".{nearest(unknown[1], there, ())}" if unknown and near(unknown[1], there) else ""


def error_lines(log: str) -> list[str]:
    """The lines that name an exception, in order; one without a text gets the frame that raised it."""
    lines = log.splitlines()
    found = []
    for index, raw in enumerate(lines):
        line = raw.strip()
        if _ERROR.search(line):
            frame = f" at {lines[index - 2].strip()}" if re.fullmatch(r"[\w.]+", line) and index >= 2 else ""
            found.append(line + frame)
    return found
