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
from orchestrator.drafters import Inspected, found_here, line_of, require_fit
from orchestrator.engines import dialect_for
from orchestrator.engines.attached import Attached
from orchestrator.errors import ConfError, MachineError
from orchestrator.estimate import Estimate, estimate
from orchestrator.facts import facts_of
from orchestrator.launches import Launches
from orchestrator.needs import lacking
from orchestrator.plan import Plan
from orchestrator.trials import load_points
from results.acceptance import Pair
from results.counted import counted
from results.coverage import named
from sweeps.settings import Settings

SHOWN_PORT = 30000
"""Stands for the ports that a launch looks for; the next one for NCCL's."""
MARKER = "speculation-sweep"
MOST_LISTED = 10_000
"""Launches whose command line is given as JSON."""
LAUNCHING_NOTHING = ("attached", "replay")
"""Engines of which there are no command lines to show: the server runs already, or has run."""
EXAMPLES = 5
"""Launches whose command line a person is shown, beside the plain servers."""


def plan_command(words: list[str], as_json: bool) -> int:
    plan = load_plan(words, to_run=False, inputs=True)
    facts = facts_of(plan)
    inspected = found_here(plan, facts.version)
    require_fit(plan, inspected)
    launches = Launches(plan, facts, frozenset(inspected.refused))
    lacks = _not_here(words, plan)
    shown = (
        [json.dumps(facts_shown(launches, inspected, lacks))] if as_json else lines_shown(launches, inspected, lacks)
    )
    for line in shown:
        print(line)
    launches.require_some()
    return 0


def _not_here(words: list[str], plan: Plan) -> list[str]:
    """What a sweep of the same words would refuse on this machine, which need not be the one it is meant for."""
    wrong: list[str] = []
    try:
        load_plan(words)
    except ConfError as error:
        wrong = error.mistakes
    return [*wrong, *lacking(plan, plan.out)]


def facts_shown(launches: Launches, inspected: Inspected, lacks: list[str]) -> dict[str, Any]:
    """All there is to say, as plain values."""
    plan, counted = launches.plan, launches.legal
    expected = estimate(plan, launches.count)
    return {
        "conf": plan.name, "engine_version": launches.facts.version, "facts": asdict(launches.facts),
        "warnings": launches.warnings(), "not_here": lacks, "grid": plan.space.size, "counted": counted.total, "exact": counted.exact,
        "legal": len(launches.kept), "collapsed": counted.collapsed, "refused": dict(counted.refused),
        "dropped": [{"algorithm": a, "drafter": d, "settings": _settings_of(launches, (a, d))} for a, d in inspected.refused],
        "drafter_findings": [
            {"algorithm": a, "drafter": d, "severity": one.severity, "check": one.check, "text": str(one)}
            for (a, d), one in inspected.said()
        ],
        "reasons": dict(counted.reasons), "plain_servers": len(launches.plain), "distinct": launches.count,
        "load_points": [asdict(point) for point in load_points(plan)],
        "estimate": {**asdict(expected), "hours": round(expected.hours, 3), "gpu_hours": round(expected.gpu_hours, 3)},
        "launches": [
            {"key": one.key, "settings": one.as_dict(), "argv": argv} for one, argv in _commands(plan, launches)
        ],
    }  # fmt: skip


def lines_shown(launches: Launches, inspected: Inspected, lacks: list[str]) -> Iterator[str]:
    plan = launches.plan
    if plan.engine.name == "attached":
        yield from _attached_lines(plan)
    else:
        yield from _space_lines(launches, reasons=launches.anything)
        yield from _dropped_lines(launches, inspected)
        if launches.count:
            yield ""
            yield from _time_lines(launches, estimate(plan, launches.count))
    yield from (f"\nNote: {warning}" for warning in launches.warnings())
    if lacks:
        yield "\nNote: on this machine a sweep would not start:"
        yield from (f"  {one}" for one in lacks)
    if plan.engine.name not in LAUNCHING_NOTHING:
        yield from _command_lines(launches)


def _command_lines(launches: Launches) -> Iterator[str]:
    listed = len(launches.plain) + EXAMPLES
    for one, argv in itertools.islice(_commands(launches.plan, launches), listed):
        yield f"\n# {one.key}  {one}\n{shlex.join(argv)}"
    if launches.count > listed:
        all_of = "all" if launches.count <= MOST_LISTED else f"the first {MOST_LISTED:,}"
        yield f"\n… and {launches.count - listed:,} more; with --json plan prints {all_of} of them."


def _attached_lines(plan: Plan) -> Iterator[str]:
    """What runs there, as it says itself, and what is measured of it; nothing is launched."""
    dialect, expected = Attached(plan), estimate(plan, 1)
    try:
        runs = f"{plan.engine.url}: SGLang {dialect.version} with {dialect.target}, {dialect.as_run(dialect.info, Settings())}"
        runs += " (simulated: no GPU is used)" if dialect.simulated else ""
    except MachineError:
        runs = f"{plan.engine.url}: does not answer"
    yield f"{'Server':10} {runs}"
    yield f"{'Measures':10} {_points_of(plan)}, {expected.measure_s:.0f} s ({expected.source})"


def _points_of(plan: Plan) -> str:
    return f"{counted(len(load_points(plan)), 'load point')} ({', '.join(map(str, sorted(plan.workload.concurrency)))} streams)"


def _dropped_lines(launches: Launches, inspected: Inspected) -> Iterator[str]:
    """What a sweep would never launch, and other findings."""
    for pair in inspected.refused:
        yield f"{'Dropped':10} {counted(_settings_of(launches, pair), 'setting')} of {named(pair)}: inspection finds it unfit"
    for pair, finding in inspected.said():
        yield f"{'':10} {finding.severity}: {line_of(launches.plan, pair, finding)}"


def _settings_of(launches: Launches, pair: Pair) -> int:
    return sum((one.algorithm, one.drafter) == pair for one in launches.legal.settings)


def _space_lines(launches: Launches, reasons: bool) -> Iterator[str]:
    """Not `reasons`: they follow, for nothing can run."""
    counted = launches.legal
    yield f"{'Grid':10} {launches.plan.space.size:,} points{'' if counted.exact else f'; of {counted.total:,} drawn at random:'}"
    yield f"{'Legal':10} {len(launches.kept):,} distinct settings; plain servers to compare with: {len(launches.plain)}"
    if launches.recorded is not None:
        yield f"{'Left out':10} {len(counted.settings) - len(launches.kept):,} settings that are not in the recording"
    yield f"{'Collapsed':10} {counted.collapsed:,} points that are twins of another"
    yield f"{'Refused':10} {sum(counted.refused.values()):,} points"
    for rule, points in counted.refused.most_common():
        yield f"{'':10} {points:,} {rule}{f', e.g. {counted.reasons[rule]}' if reasons else ''}"


def _time_lines(launches: Launches, expected: Estimate) -> Iterator[str]:
    more, plain = "" if launches.legal.exact else " and more", launches.count - len(launches.kept)
    beside = f", {counted(plain, 'plain server')} outside the space among them" if plain else ""
    distinct = f"{launches.count:,}{more} distinct{beside}"
    yield f"{'Launches':10} {expected.launches:,} with the final race, of {distinct}; each measures {_points_of(launches.plan)}"
    each = f"start {expected.start_s:.0f} s, measure {expected.measure_s:.0f} s, stop {expected.stop_s:.0f} s"
    yield f"{'Each':10} {each} ({expected.source})"
    sets = "one GPU set assumed" if expected.gpu_sets is None else f"GPU sets at once: {expected.gpu_sets}"
    yield f"{'In all':10} {expected.hours:.2f} hours, {expected.gpu_hours:.2f} GPU-hours ({sets}, GPUs each: {expected.gpus_per_set})"


def _commands(plan: Plan, launches: Launches) -> Iterator[tuple[Settings, list[str]]]:
    """Of what would be launched."""
    if plan.engine.name in LAUNCHING_NOTHING:
        return iter(())
    dialect = dialect_for(plan)
    return (
        (one, dialect.argv(one, SHOWN_PORT, MARKER, SHOWN_PORT + 1)) for one in itertools.islice(launches, MOST_LISTED)
    )
