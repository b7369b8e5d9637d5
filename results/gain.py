"""What a ratio to the plain server is called: a speedup, or a gain in the metric that the objective names.

Not here: how large it is, and how sure (comparison.py).
"""

from __future__ import annotations

from sweeps.observation import Goal

_OF_ALL_STREAMS = ("output_tok_s", "steady_output_tok_s")


def gain(goal: Goal) -> str:
    """`speedup`, or e.g. `gain in tpot_p50_ms`."""
    return "speedup" if goal.metric == "output_tok_s" else f"gain in {goal.metric}"


def gain_explained(goal: Goal) -> str:
    """A sentence that says what a gain is; empty where it is a speedup."""
    if goal.metric == "output_tok_s":
        return ""
    return f"A gain of 1.2 is {goal.metric} 1.2 times {_better(goal)} than the best plain server's."


def capped(goal: Goal, arrival: object) -> str:
    """A sentence that warns of a goal whose metric the load itself bounds; empty where it does not."""
    if arrival != "poisson" or goal.metric not in _OF_ALL_STREAMS:
        return ""
    return (
        f"Requests come at a fixed rate (`workload.arrival: poisson`): a server that keeps up gives what arrives and no more, so "
        f"a {gain(goal)} says little here. `objective.minimize=tpot_p50_ms`, or ttft_p99_ms, tells servers apart."
    )


def metric_named(goal: Goal, ratio: float | None) -> str:
    """What follows a ratio, e.g. ` lower tpot_p50_ms`, ` by tpot_p50_ms` of a loss; empty where it is the throughput."""
    if goal.metric == "output_tok_s":
        return ""
    return f" by {goal.metric}" if (ratio or 0.0) < 1 else f" {_better(goal)} {goal.metric}"


def _better(goal: Goal) -> str:
    return "lower" if goal.minimize else "higher"
