"""Plans for tests: a small simulated sweep, any section replaced; and rows as a server would have given them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.plan import Budget, ClusterConf, Deadlines, EngineConf, Plan, SamplerConf, Target, Workload
from results.failure import Failure, FailureKind, Stage
from results.measurement import Measurement
from results.record import Origin, Record
from sweeps.observation import Goal
from sweeps.space import Choice, Held, Range, SearchSpace
from sweeps.trial import Trial

SPACE = {
    "algorithm": Choice(("none", "EAGLE3")),
    "drafter": Choice(("own", "public")),
    "num_steps": Range(1, 3),
    "eagle_topk": Choice((1, 2)),
    "num_draft_tokens": Range(2, 8),
    "attention_backend": Choice(("fa3", "flashinfer")),
    "max_running_requests": Held(8),
    "tp_size": Held(1),
}


def plan(space: dict[str, Any] | None = None, **sections: Any) -> Plan:
    """A plan of the simulated demo engine; `space` replaces or adds domains, None removes one."""
    domains = {name: domain for name, domain in (SPACE | (space or {})).items() if domain is not None}
    given: dict[str, Any] = {
        "name": "test", "target": Target(path="demo-8b"), "drafters": {"own": "own", "public": "public"},
        "engine": EngineConf(name="simulated"), "cluster": ClusterConf(), "space": SearchSpace(domains),
        "workload": Workload(concurrency=[1, 8], output_tokens=16, requests_per_stream=1), "goal": Goal(),
        "budget": Budget(launches=8, finalists=0), "sampler": SamplerConf(seed=1), "warm_start": (),
        "deadlines": Deadlines(), "out": Path("runs"), "conf": {},
    }  # fmt: skip
    return Plan(**given | sections)


ORIGIN = Origin(
    run="test", engine="simulated", engine_version="0.5.17", simulated=True, host=os.uname().nodename, gpus=("0",), gpu_name="none",
    driver_version="", target="demo-8b", workload="w",
)  # fmt: skip


def rows(trial: Trial, tok_s: float = 100.0) -> list[Record]:
    """One measured row for each of the trial's load points."""
    return [
        Record.of(trial, ORIGIN, point=point, measurement=Measurement(output_tok_s=tok_s * point.concurrency**0.5))
        for point in trial.load_points
    ]


def failed(trial: Trial, kind: FailureKind = FailureKind.CRASH_START) -> Record:
    return Record.of(trial, ORIGIN, failure=Failure(kind, Stage.WEIGHTS, "it died"))
