"""Plans for tests: a small simulated sweep, any section replaced, and a setting of its space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.plan import Budget, ClusterConf, Deadlines, EngineConf, Plan, SamplerConf, Target, Workload
from sweeps.observation import Goal
from sweeps.settings import Settings
from sweeps.space import Choice, Held, Range, SearchSpace

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

CHAIN = Settings(
    algorithm="EAGLE3", drafter="own", num_steps=3, eagle_topk=1, num_draft_tokens=4, attention_backend="fa3",
    max_running_requests=8,
)  # fmt: skip


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
