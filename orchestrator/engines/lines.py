"""Lines: a recording kept as JSON lines, one a launch and concurrency, as the rows that the replay engine answers with.

Of each line are read

    name, run_dir, condition   lines with the same three are of one launch (the last two may be missing)
    argv                       the words of SGLang's command line: its settings, by the flags' own names
    target                     what was served
    ready, time_to_ready_s     whether it came up, and after how many seconds
    failure, rc                of one that did not: lines of its log (a list or one text) and its exit status
    concurrency, out_tok_s, out_tokens, requests, ok, dur_s
    ttft_ms_p50, tpot_ms_p50, per_user_tok_s_p50, accept_len_client

and anything else is left alone.  A drafter is called by the last part of its path.  No acceptance histogram: one request's
is not the load point's.  Not here: recordings of our own, which are Parquet (results/ledger.py).
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from orchestrator.engines.sglang import SGLang
from orchestrator.errors import MachineError
from results.failure import Failure
from results.measurement import Measurement
from results.record import Origin, Record
from sweeps.settings import Settings, knobs, spelt
from sweeps.trial import Kind, LoadPoint, Trial

OF_THE_LAUNCH = {"model_path", "host", "port", "nccl_port", "served_model_name", "random_seed", "dtype", "context_length", "trust_remote_code", "log_level", "m"}  # fmt: skip
"""Arguments that are no choice of a sweep: who is served where."""
NEEDED = ("name", "argv", "ready")
log = logging.getLogger(__name__)
WORKLOAD = "recorded in lines"
GRAPHS = "cuda_graph_max_bs_decode"
"""Follows from max_running_requests where nobody chose it (sglang.py)."""
FIELDS = {
    "output_tok_s": "out_tok_s", "output_tokens": "out_tokens", "requests": "requests", "measure_s": "dur_s",
    "ttft_p50_ms": "ttft_ms_p50", "tpot_p50_ms": "tpot_ms_p50", "user_tok_s": "per_user_tok_s_p50",
    "acceptance_length": "accept_len_client",
}  # fmt: skip
"""Metric → the line's name for it."""


def read_lines(path: Path) -> list[Record]:
    """The rows of a file of lines.  One that does not say what was launched and whether it came up is left out, with a warning.

    Raises:
        MachineError: a line is no JSON object; the message names it.
    """
    launches: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = _parsed(path, number, text)
        if all(name in line for name in NEEDED):
            launches[tuple(str(line.get(part, "")) for part in ("name", "run_dir", "condition"))].append(line)
        elif text.strip():
            log.warning("%s: line %d is left out: it lacks one of %s", path, number, ", ".join(NEEDED))
    found: list[Record] = []
    times: Counter[str] = Counter()
    for number, lines in enumerate(launches.values()):
        settings = settings_of([str(word) for word in lines[0]["argv"]])
        kind: Kind = "trial" if settings.speculative else "baseline"
        found += _rows(path, Trial(number, settings, kind, (), launch=times[settings.key]), lines)
        times[settings.key] += 1
    return found


def _parsed(path: Path, number: int, text: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text or "{}")
    except json.JSONDecodeError as why:
        raise MachineError(f"engine.recording: {path}: line {number} is no JSON ({why.msg}).") from why
    if not isinstance(line, dict):
        raise MachineError(f"engine.recording: {path}: line {number} is {type(line).__name__}, not an object.")
    return line


def settings_of(argv: Sequence[str]) -> Settings:
    """What a command line of SGLang asks for."""
    by_name = {knob.server_name: knob for knob in knobs().values()}
    values: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for name, words in _flags(argv):
        knob = by_name.get(name)
        if knob is not None and knob.name == "cuda_graph":
            values["cuda_graph"] = False
        elif knob is not None and words:
            values[knob.name] = PurePath(words[0]).name if knob.name == "drafter" else knob.type(words[0])
        elif name not in OF_THE_LAUNCH:
            arguments[name] = words[0] if len(words) == 1 else words or True
    if arguments.get(GRAPHS) == str(values.get("max_running_requests")):
        del arguments[GRAPHS]
    return Settings.from_dict({**values, "server_args": arguments})


def _flags(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("-"):
            found.append((spelt(word), []))
        elif found:
            found[-1][1].append(word)
    return found


def _rows(path: Path, trial: Trial, lines: Sequence[Mapping[str, Any]]) -> list[Record]:
    first = lines[0]
    origin = Origin(
        run=path.name, engine="sglang", engine_version="", simulated=False, host=str(first.get("host", "")), gpus=("0",),
        gpu_name="", driver_version="", target=str(first.get("target", "")), workload=WORKLOAD, argv=tuple(map(str, first["argv"])),
    )  # fmt: skip
    common = {"started_at": datetime.fromtimestamp(0, UTC), "launch_s": first.get("time_to_ready_s")}
    if not first["ready"]:
        return [Record.of(trial, origin, failure=_failure(first), **common)]
    repeats: Counter[int] = Counter()
    found = []
    for line in lines:
        if line.get("concurrency") and line.get("out_tok_s"):
            concurrency = int(line["concurrency"])
            point = LoadPoint(concurrency, repeats[concurrency])
            found.append(Record.of(trial, origin, point=point, measurement=_measurement(line), **common))
            repeats[concurrency] += 1
    return found


def _measurement(line: Mapping[str, Any]) -> Measurement:
    values = {metric: line[name] for metric, name in FIELDS.items() if line.get(name) is not None}
    if line.get("requests"):
        values["success_rate"] = float(line.get("ok", line["requests"])) / float(line["requests"])
    return Measurement(**values)


def _failure(line: Mapping[str, Any]) -> Failure:
    told = line.get("failure") or ""
    text = told if isinstance(told, str) else "\n".join(map(str, told))
    code = line.get("rc")
    found = SGLang.diagnose(text, code if isinstance(code, int) else None)
    return Failure.of(found.kind, found.stage, found.message)
