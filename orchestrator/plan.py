"""Plan: everything a sweep was asked to do, whole, checked and frozen; one field a key of the YAML.

The docs beside the fields are the config's reference.  Not here: reading and checking YAML (config/).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sweeps.observation import Goal
from sweeps.space import SearchSpace

RANDOM = "random"
"""The name of prompts that are made up of random words."""
LEAST_REQUESTS = 6
"""Measured at a point however few streams there are: fewer say little of a mean (the flag low_samples)."""


def _key(default: Any, doc: str, **more: Any) -> Any:
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"doc": doc, **more})
    return field(default=default, metadata={"doc": doc, **more})


@dataclass(frozen=True)
class Target:
    path: str = _key("", "Directory of the target model (or its hub name).")
    context_length: int | None = _key(None, "Longest context to serve; empty: the model's own.", low=1)
    tp_size: int = _key(1, "GPUs of one server (tensor parallel).", low=1, high=64)
    dtype: str = _key("auto", "Weights' dtype as SGLang names it.")
    trust_remote_code: bool = _key(False, "Let the engine run code that comes with the checkpoint.")


@dataclass(frozen=True)
class EngineConf:
    name: Literal["sglang", "simulated", "attached", "replay"] = _key(
        "sglang",
        "Which engine serves; attached: the server that already runs at url, measured and left as it is; replay: none, rows that were measured before answer.",
    )
    url: str | None = _key(None, "Of the server to measure, http://host:port (attached).")
    python: str | None = _key(None, "Interpreter of the engine's own environment (sglang).")
    env: dict[str, str] = _key({}, "More environment for the server; stored with the run, so no secrets.")
    host: str = _key("127.0.0.1", "Address the servers bind.")
    launch_mode: Literal["plain", "overlap", "standby"] = _key(
        "plain",
        "overlap: a server's processes import at the same time, where cores are free.  standby: a process that has imported everything waits for the next launch while a server boots and is measured (sglang).",
    )
    recording: str | None = _key(None, "Rows to answer with: a run directory or Parquet (replay).")
    profile: str = _key("demo", "What the simulated engine pretends to be: a name in conf/profiles or a path.")


@dataclass(frozen=True)
class ClusterConf:
    address: str = _key("local", "local: a Ray cluster of our own; otherwise the address of one to connect to.")
    gpus: str | list[str] = _key("all", "all, none (the engine runs on the CPU), or a list of GPU indices or UUIDs.")
    accelerator: str = _key("any", "Ray accelerator type to use (e.g. H200) in a mixed cluster.")


@dataclass(frozen=True)
class Workload:
    """The load of every point.  Its `key` names it in the rows."""

    prompts: str = _key(
        "chat-mix",
        "chat-mix (shipped), or a JSONL file of {prompt, category} or {messages, category}, where a prompt's fill {slot: [text, …]} stands for every combination of its {slot}s; random: words of no language.",
    )
    input_tokens: int | Literal["natural"] = _key(
        "natural",
        "natural: prompts keep their length.  A number: about so many tokens each, other prompts put before them as context.",
        low=1,
    )
    output_tokens: int = _key(256, "Most tokens to generate per request.", low=1)
    temperature: float = _key(0.0, "Sampling temperature; 0 is greedy.", low=0.0)
    concurrency: list[int] = _key([1, 8, 32], "Load points: streams at once.", low=1)
    requests_per_stream: int = _key(
        6, "Requests each stream sends at a point, warm-up not counted; all streams together send six at least.", low=1
    )
    repeats: int = _key(1, "Times each load point is measured on one launch.", low=1)
    arrival: Literal["closed", "poisson"] = _key(
        "closed",
        "closed: a stream sends its next request when the last has ended.  poisson: requests come at random times, request_rate a second for each of a point's streams, however many are out.",
    )
    request_rate: float | None = _key(
        None,
        "Requests per second and stream (arrival: poisson); a point's rate is this times its concurrency.",
        low=0.001,
    )
    prefix_cache: Literal["flushed", "kept"] = _key(
        "flushed", "Whether the server's prefix cache is emptied before each point."
    )
    ignore_eos: bool = _key(False, "Generate to output_tokens even past the end-of-text token (distorts acceptance).")
    seed: int = _key(0, "Seed of the prompts' order.")
    random_prompts: bool = _key(
        False, "Measure speculation on prompts: random all the same; acceptance says nothing of real text then."
    )
    client: Literal["own", "bench_serving"] = _key(
        "own", "bench_serving: sglang.bench_serving of the engine's environment sends the requests, as a cross-check."
    )

    def requests_at(self, concurrency: int) -> int:
        """Requests of one load point, all streams together, warm-up not counted."""
        return max(LEAST_REQUESTS, concurrency * self.requests_per_stream)


@dataclass(frozen=True)
class Budget:
    """The first bound reached ends the search."""

    launches: int | None = _key(
        24,
        "Server launches, failed and repeated ones counted too; one that was interrupted and begun again counts once.",
        low=1,
    )
    gpu_hours: float | None = _key(None, "GPU-hours: GPUs held times hours.", above=0.0)
    hours: float | None = _key(None, "Hours by the clock, over all resumes.", above=0.0)
    finalists: int = _key(
        4, "Launches kept back for the final race, at most a third: the plain server and the best settings once more.",
        low=0,
    )  # fmt: skip

    @property
    def kept_back(self) -> int:
        """Launches that only the race may use; 0 where launches are not what bounds the search."""
        return 0 if self.launches is None else min(self.finalists, self.launches // 3)


@dataclass(frozen=True)
class SamplerConf:
    name: Literal["default", "spec", "gp", "tpe", "random", "grid"] = _key(
        "default",
        "spec (the default) knows speculation; tpe and gp (needs torch) are Optuna's; random; grid, in order.",
    )
    seed: int | None = _key(None, "Base seed of the proposals; empty: drawn anew.", low=0)
    ends: bool = _key(
        True, "Let spec end the search before the budget does, once no setting is likely to be worth a launch."
    )


@dataclass(frozen=True)
class Deadlines:
    """How long to wait, in seconds."""

    load_idle_s: float = _key(300.0, "Without a new line in the log while starting: a hang.", low=1)
    load_s: float = _key(3600.0, "From launch to ready, whatever the progress.", low=1)
    request_s: float = _key(600.0, "One request.", low=1)
    stop_s: float = _key(60.0, "From asking a server to stop to the proof that its GPUs are free.", low=1)


@dataclass(frozen=True)
class Plan:
    name: str
    """The conf's name, e.g. eagle3; the folder under `out`."""
    target: Target
    drafters: dict[str, str]
    """Name → directory."""
    engine: EngineConf
    cluster: ClusterConf
    space: SearchSpace
    workload: Workload
    goal: Goal
    budget: Budget
    sampler: SamplerConf
    warm_start: tuple[Path, ...]
    """Earlier run directories whose rows the sampler learns from."""
    deadlines: Deadlines
    out: Path
    """Absolute.  A sweep makes `<out>/<name>/<utc stamp>/` there; given as a word, out=DIR is the run directory itself."""
    conf: dict[str, Any]
    """The resolved config as plain YAML types: what plan.yaml stores and what a resume compares."""
    drafters_unchecked: bool = False
    """Launch drafters that inspection refuses, too; their rows carry the flag `drafter_unchecked`."""
    notify: tuple[str, ...] = ()
    """A command to run when the sweep ends, well or badly; empty: none."""
