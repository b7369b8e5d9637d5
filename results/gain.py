"""What a ratio to the plain server is called: a speedup, or a gain in the metric that the objective names.

Not here: how large it is, and how sure (comparison.py).
"""

from __future__ import annotations

from sweeps.observation import Goal


def gain(goal: Goal) -> str:
    """`speedup`, or e.g. `gain in tpot_p50_ms`."""
    return "speedup" if goal.metric == "output_tok_s" else f"gain in {goal.metric}"


def gain_explained(goal: Goal) -> str:
    """A sentence that says what a gain is; empty where it is a speedup."""
    if goal.metric == "output_tok_s":
        return ""
    return f"A gain of 1.2 is {goal.metric} 1.2 times {_better(goal)} than the best plain server's."


def metric_named(goal: Goal, ratio: float | None) -> str:
    """What follows a ratio, e.g. ` lower tpot_p50_ms`, ` by tpot_p50_ms` of a loss; empty where it is the throughput."""
    if goal.metric == "output_tok_s":
        return ""
    return f" by {goal.metric}" if (ratio or 0.0) < 1 else f" {_better(goal)} {goal.metric}"


def _better(goal: Goal) -> str:
    return "lower" if goal.minimize else "higher"
