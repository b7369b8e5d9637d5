"""Engines by name."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.engines.attached import Attached, AttachedEngine
from orchestrator.engines.engine import Dialect, ServedEngine
from orchestrator.engines.replay import Replay
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.simulated import Simulated
from orchestrator.measuring.workload import PromptBook
from orchestrator.plan import Plan
from results.rundir import RunDir


def dialect_for(plan: Plan) -> Dialect:
    kinds = {"simulated": Simulated, "attached": Attached, "replay": Replay}
    return kinds.get(plan.engine.name, SGLang)(plan)


def engine_for(plan: Plan, run: RunDir, prompts: PromptBook, watch: Sequence[int] = ()) -> ServedEngine:
    """`watch`: pids whose death ends a server of ours, too."""
    kind = AttachedEngine if plan.engine.name == "attached" else ServedEngine
    return kind(plan, run, dialect_for(plan), prompts, watch)
