"""What follows from a plan about its trials: their load points, the first plain server, and when one is over.

Not here: which trial comes next (schedule.py).
"""

from __future__ import annotations

from orchestrator.launches import Launches
from orchestrator.plan import Plan
from results.failure import FailureKind
from results.record import Record
from sweeps.facts import NOTHING_KNOWN, Facts
from sweeps.rules import problems, settle
from sweeps.settings import Settings
from sweeps.trial import LoadPoint


def whole(plan: Plan, rows: list[Record]) -> bool:
    """Whether a trial with these rows is over: every load point measured, or failed for good."""
    measured = {record.point for record in rows if record.measured}
    return measured.issuperset(load_points(plan)) or over(rows)


def over(rows: list[Record]) -> bool:
    """Whether a trial with these rows failed for good and is not tried again."""
    kinds = [record.failure.kind for record in rows if record.failure is not None]
    return any(kind.over(times) for times, kind in enumerate(filter(_counts, kinds), start=1))


def failures(rows: list[Record]) -> int:
    """Attempts of a trial that failed and count as such: in a broken environment none was made."""
    return len(_failed(rows))


def charged(plan: Plan, rows: list[Record]) -> int:
    """Launches of a trial that count against the budget: each attempt that failed, and the one that came to its end."""
    failed = _failed(rows)
    return len(failed) + (whole(plan, rows) and max(row.attempt for row in rows) not in failed)


def _failed(rows: list[Record]) -> set[int]:
    return {row.attempt for row in rows if row.failure is not None and _counts(row.failure.kind)}


def _counts(kind: FailureKind) -> bool:
    return kind.blame != "environment"


def load_points(plan: Plan) -> tuple[LoadPoint, ...]:
    """Every load point of a launch, the lightest load first."""
    work = plan.workload
    return tuple(LoadPoint(c, repeat) for c in sorted(work.concurrency) for repeat in range(work.repeats))


def first_plain(plan: Plan, facts: Facts = NOTHING_KNOWN) -> Settings:
    """The plain server at the first value of everything that is swept; at the first legal ones, if those cannot run."""
    first = settle(plan.space.settings({}).plain(), facts).settings
    return first if not problems(first, facts) else next(iter(Launches(plan, facts).plain), first)
