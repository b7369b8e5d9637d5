"""The verb plan: what a sweep would launch and how long it would take; launches nothing and touches no GPU.

Models and drafters need not be on this machine.  Imports neither Ray nor Optuna.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.estimate import Estimate, estimate
from orchestrator.facts import facts_of
from orchestrator.launches import Launches
from orchestrator.plan import Plan
from orchestrator.trials import load_points
from sweeps.settings import Settings

SHOWN_PORT = 30000
"""Stands for the ports that a launch looks for; the next one for NCCL's."""
MARKER = "speculation-sweep"
MOST_LISTED = 10_000
"""Launches whose command line is shown."""


def plan_command(words: list[str], as_json: bool) -> int:
    plan = load_plan(words, to_run=False)
    launches = Launches(plan, facts_of(plan))
    for line in [json.dumps(facts_shown(launches))] if as_json else lines_shown(launches):
        print(line)
    return 0


def facts_shown(launches: Launches) -> dict[str, Any]:
    """All there is to say, as plain values."""
    plan, counted = launches.plan, launches.legal
    expected = estimate(plan, launches.count)
    return {
        "conf": plan.name, "engine_version": launches.facts.version, "facts": asdict(launches.facts),
        "warnings": launches.warnings(), "grid": plan.space.size, "counted": counted.total, "exact": counted.exact,
        "legal": len(counted.settings), "collapsed": counted.collapsed, "refused": dict(counted.refused),
        "reasons": dict(counted.reasons), "plain_servers": len(launches.plain), "distinct": launches.count,
        "load_points": [asdict(point) for point in load_points(plan)],
        "estimate": {**asdict(expected), "hours": round(expected.hours, 3), "gpu_hours": round(expected.gpu_hours, 3)},
        "launches": [
            {"key": one.key, "settings": one.as_dict(), "argv": argv} for one, argv in _commands(plan, launches)
        ],
    }  # fmt: skip


def lines_shown(launches: Launches) -> Iterator[str]:
    plan = launches.plan
    yield from _space_lines(launches)
    yield ""
    yield from _time_lines(plan, estimate(plan, launches.count), launches.count, launches.legal.exact)
    yield from (f"\nNote: {warning}" for warning in launches.warnings())
    for one, argv in _commands(plan, launches):
        yield f"\n# {one.key}  {one}\n{shlex.join(argv)}"
    if launches.count > MOST_LISTED:
        yield f"\n… and {launches.count - MOST_LISTED:,} more"


def _space_lines(launches: Launches) -> Iterator[str]:
    counted = launches.legal
    yield f"{'Grid':10} {launches.plan.space.size:,} points{'' if counted.exact else f'; of {counted.total:,} drawn at random:'}"
    yield f"{'Legal':10} {len(counted.settings):,} distinct settings; plain servers to compare with: {len(launches.plain)}"
    yield f"{'Collapsed':10} {counted.collapsed:,} points that are twins of another"
    yield f"{'Refused':10} {sum(counted.refused.values()):,} points"
    for rule, points in counted.refused.most_common():
        yield f"{'':10} {points:,} {rule}, e.g. {counted.reasons[rule]}"


def _time_lines(plan: Plan, expected: Estimate, distinct: int, exact: bool) -> Iterator[str]:
    streams = ", ".join(map(str, sorted(plan.workload.concurrency)))
    yield f"{'Launches':10} {expected.launches:,} of {distinct:,}{'' if exact else ' and more'} and the final race; {len(load_points(plan))} load points each ({streams} streams)"
    each = f"start {expected.start_s:.0f} s, measure {expected.measure_s:.0f} s, stop {expected.stop_s:.0f} s"
    yield f"{'Each':10} {each} ({expected.source})"
    sets = "one GPU set assumed" if expected.gpu_sets is None else f"GPU sets at once: {expected.gpu_sets}"
    yield f"{'In all':10} {expected.hours:.2f} hours, {expected.gpu_hours:.2f} GPU-hours ({sets}, GPUs each: {expected.gpus_per_set})"


def _commands(plan: Plan, launches: Launches) -> Iterator[tuple[Settings, list[str]]]:
    dialect = dialect_for(plan)
    return (
        (one, dialect.argv(one, SHOWN_PORT, MARKER, SHOWN_PORT + 1)) for one in itertools.islice(launches, MOST_LISTED)
    )
