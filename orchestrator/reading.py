"""What the verbs report, status and compare do: they read run directories, finished, dead or live, and launch nothing.

Not here: reading words (__main__.py), what the reports say (results/report.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.plan import Plan
from orchestrator.stored import OK, said, stored_plan, tell
from results.compare import Change, Comparison, compare
from results.ledger import read_records, rows_path
from results.record import Record
from results.rundir import RunDir


def report_command(path: Path, as_json: bool) -> int:
    from orchestrator.sweep import conclude

    with said():
        run = RunDir.open(path)
        verdict = conclude(stored_plan(run, to_run=False), run, read_records(rows_path(run)))
    return tell(verdict, run, as_json)


def status_command(path: Path, as_json: bool) -> int:
    """From the files alone: what was begun, measured and failed, and whether a driver is alive."""
    with said():
        run = RunDir.open(path)
        records = read_records(rows_path(run))
    facts = _standing(stored_plan(run, to_run=False), run, records)
    print(json.dumps(facts) if as_json else "\n".join(f"{name:18} {value}" for name, value in facts.items()))
    return OK


def _standing(plan: Plan, run: RunDir, records: list[Record]) -> dict[str, Any]:
    """How far a run is, and what to do next."""
    from orchestrator.trials import whole

    rows = {begun.trial.number: [r for r in records if r.trial == begun.trial.number] for begun in run.begun()}
    over = {number for number, found in rows.items() if whole(plan, found)}
    events = run.journal.events()
    ended: dict[str, Any] = next(
        (e for e in reversed(events) if e["event"] in ("sweep_ended", "sweep_started", "sweep_resumed")), {}
    )
    finished = ended.get("event") == "sweep_ended" and not ended.get("interrupted")
    state = "running" if run.driver() else "finished" if finished else "interrupted"
    return {
        "run": str(run.path), "state": state, "driver": run.driver(), "trials_begun": len(rows), "trials_over": len(over),
        "trials_unfinished": len(rows) - len(over),
        "trials_failed": sum(all(not r.measured for r in rows[number]) for number in over),
        "points_measured": sum(r.measured for r in records), "launches_planned": plan.budget.launches,
        "gpu_hours": round(run.journal.gpu_hours_spent(), 3),
        "next": f"python -m orchestrator resume {run.path}" if state == "interrupted" else f"summary: {run.summary}",
    }  # fmt: skip


def compare_command(before: Path, after: Path, as_json: bool) -> int:
    """In the goal of the second run's plan."""
    with said():
        runs = [RunDir.open(path) for path in (before, after)]
        first, second = (read_records(rows_path(run)) for run in runs)
    found = compare(first, second, stored_plan(runs[1], to_run=False).goal)
    if as_json:
        facts = {"before": str(runs[0].path), "after": str(runs[1].path), "metric": found.metric, "differs": found.differs, "warnings": found.warnings}  # fmt: skip
        print(json.dumps({**facts, "changes": [change.as_dict() for change in found.changes]}))
    else:
        print("\n".join(compared(runs, found)))
    return OK


def compared(runs: Sequence[RunDir], found: Comparison) -> Iterator[str]:
    for letter, run, verdict in zip("AB", runs, found.verdicts, strict=True):
        yield f"{letter} {run.path}: {verdict.sentence}"
    yield ""
    yield from (f"{name:16} {before} → {after}" for name, (before, after) in found.differs.items())
    yield from (f"Note: {warning}" for warning in found.warnings)
    for change in found.changes:
        yield ""
        yield f"concurrency {change.concurrency}, {change.what}: {change.answer}"
        yield f"  {_names(change)}"
        yield f"  {found.metric} {change.before_value:.1f} → {change.after_value:.1f}: {change.ratio:.2f}× [{change.low:.2f}, {change.high:.2f}] ({change.basis})"
        yield from (f"  {line}" for line in _more(change))


def _names(change: Change) -> str:
    return str(change.before) if change.before == change.after else f"{change.before} → {change.after}"


def _more(change: Change) -> Iterator[str]:
    if change.before_speedup and change.after_speedup and change.what != "plain server":
        yield f"speedup over its own plain server {change.before_speedup:.2f}× → {change.after_speedup:.2f}×"
    if change.before_acceptance_length and change.after_acceptance_length:
        yield f"acceptance length {change.before_acceptance_length:.2f} → {change.after_acceptance_length:.2f}"
