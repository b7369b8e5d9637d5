"""The verb plan: what a sweep would launch, without launching anything or touching a GPU."""

from __future__ import annotations

import json
import shlex

from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.schedule import launchable
from orchestrator.trials import load_points

SHOWN_PORT = 30000
MARKER = "speculation-sweep"


def plan_command(words: list[str], as_json: bool) -> int:
    plan = load_plan(words)
    dialect, settings = dialect_for(plan), launchable(plan)
    if as_json:
        commands = [
            {"key": s.key, "settings": s.as_dict(), "argv": dialect.argv(s, SHOWN_PORT, MARKER)} for s in settings
        ]
        print(json.dumps({"grid": plan.space.size, "distinct": len(settings), "launches": commands}))
        return 0
    points = load_points(plan)
    print(f"{plan.space.size} points in the grid, {len(settings)} distinct legal launches (plain servers included).")
    print(f"Budget: {plan.budget.launches or 'no bound on'} launches; {len(points)} load points each: {plan.workload.concurrency}")  # fmt: skip
    for one in settings:
        print(f"\n# {one.key}  {one}\n{shlex.join(dialect.argv(one, SHOWN_PORT, MARKER))}")
    return 0
