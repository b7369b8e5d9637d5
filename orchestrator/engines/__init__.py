"""Engines by name."""

from __future__ import annotations

from orchestrator.engines.engine import Dialect
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.simulated import Simulated
from orchestrator.plan import Plan


def dialect_for(plan: Plan) -> Dialect:
    return Simulated(plan) if plan.engine.name == "simulated" else SGLang(plan)
