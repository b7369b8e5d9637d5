"""What the verbs report, status and compare do: they read run directories, finished, dead or live, and launch nothing.

Not here: reading words (__main__.py), what the reports say (results/report.py).
"""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import changed
from orchestrator.errors import ConfError
from orchestrator.leaders import Best, Reported, best_so_far, reported
from orchestrator.plan import Plan
from orchestrator.rows import Row, rows_of, settings_in, tables_of
from orchestrator.serving.logs import read_log
from orchestrator.standing import Running, Usual, clock, duration, over_and_unfinished, running, time_left
from orchestrator.stored import OK, conclude, fitted, said, stored_plan, tell
from results.begun import read_begun
from results.counted import counted
from results.driving import driver_of
from results.files import Unreadable
from results.journal import gpu_hours_of, hours_of, moment
from results.ledger import read_records, rows_path
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings

if TYPE_CHECKING:
    from results.compare import Change, Comparison

UNKNOWN = "unknown"
"""The state of a run whose events.jsonl is missing, or has lost its lines."""
LOAD_POINTS = "workload.concurrency:"
"""Two runs may have measured other load points and yet be comparable at those in common."""
INDENT = 19
"""Letters before the values of the verb status."""


def report_command(path: Path, as_json: bool, optuna: Path | None = None) -> int:
    """Write the reports anew; `optuna`: also a new file that holds the run as an Optuna study."""
    if optuna is not None and not optuna.absolute().parent.is_dir():
        raise ConfError([f"optuna={optuna}: there is no directory {optuna.absolute().parent}. Name a file in one that there is."])  # fmt: skip
    with said(), _collector_at_rest():
        run = RunDir.open(path)
        plan, records = stored_plan(run, to_run=False), read_records(rows_path(run))
        verdict = conclude(plan, run, records)
    if optuna is not None:
        _write_study(optuna, records, plan, run)
    return tell(verdict, run, as_json)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Python looks for cycles among all that lives whenever much is made; of a long run that is a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _write_study(path: Path, records: Sequence[Record], plan: Plan, run: RunDir) -> None:
    from sweeps.sampler.export import url_of, write_study

    try:
        count = write_study(
            [record.observation(plan.goal) for record in records], plan.goal, path, f"{plan.name} {run.name}"
        )
    except FileExistsError:
        raise ConfError([f"optuna={path}: is there already. Name a new file."]) from None
    except OSError as error:
        raise ConfError(
            [f"optuna={path}: could not be written ({error.strerror or error}). Name a file elsewhere."]
        ) from None
    print(f"{counted(count, 'trial')} in {path}: optuna-dashboard {shlex.quote(url_of(path))}", file=sys.stderr)


def status_command(path: Path, as_json: bool) -> int:
    """From the files alone, of a sweep that runs or died, also on another machine."""
    with said(), _collector_at_rest():
        run = RunDir.open(path)
        facts = standing_facts(stored_plan(run, to_run=False), run)
    if as_json:
        print(json.dumps(facts))
    else:
        for line in status_lines(facts):
            print(line if line.startswith("next ") else fitted(line, INDENT))  # a command is copied whole
    return OK


def standing_facts(plan: Plan, run: RunDir) -> dict[str, Any]:
    """How far a run is, and what to do next, as plain values."""
    tables = tables_of(run, plan.goal)
    rows = rows_of(tables, plan.goal)
    events, driver = run.journal.events(), driver_of(run)
    numbers = run.begun_numbers()
    over, unfinished = over_and_unfinished(plan, rows, numbers)
    measured = {row.trial for row in rows if row.point is not None}
    held = [
        event for event in events if event["event"] == "trial_ended" and isinstance(event.get("held_s"), int | float)
    ]
    gpu_hours = gpu_hours_of(events)
    at_work = list(_running(plan, run, rows, events, unfinished)) if driver else []
    held_s = [event["held_s"] for event in held]
    left = time_left(plan, len(numbers), held_s, _at_once(events), hours_of(events), gpu_hours, len(at_work)) if driver else None  # fmt: skip
    state = _state(events, driver)
    report = reported(run) if state == "finished" else None
    so_far = [] if report else best_so_far(rows, plan.goal)
    names = settings_in(tables, {one.speculative for one in so_far if one.speculative})
    started = moment(events[0]["at"]) if events else None
    return {
        "run": str(run.path), "state": state, "driver": driver, "started": clock(started) if started else None,
        "trials_begun": len(numbers), "trials_over": len(over), "trials_unfinished": len(unfinished),
        "trials_failed": len(over - measured), "points_measured": sum(row.point is not None for row in rows),
        "launches_planned": plan.budget.launches, "gpu_hours": round(gpu_hours, 3),
        "running": [_running_facts(one) for one in at_work],
        "verdict": report[0] if report else None,
        "best": [_reported_facts(one) for one in report[1]] if report else [_best_facts(one, names) for one in so_far],
        "metric": plan.goal.metric,
        "left_s": round(left.seconds) if left else None, "left_basis": left.basis if left else None,
        "next": f"python -m orchestrator resume {run.path}" if state == "interrupted" else f"report: {run.report}" if run.report.exists() else f"summary: {run.summary}",
    }  # fmt: skip


def status_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """For a person: the plain facts, then what runs and the best so far."""
    for name, value in facts.items():
        if name not in ("running", "verdict", "best", "metric", "left_s", "left_basis", "next") and value is not None:
            why = " (events.jsonl is missing or holds no line of a sweep; resume goes on with what is left)"
            yield f"{name:18} {value}{why if (name, value) == ('state', UNKNOWN) else ''}"
    for one in facts["running"]:
        usual = f", usually {duration(one['usual_s'])}" if one["usual_s"] is not None else ""
        yield f"{'running':18} GPU {','.join(one['gpus']) or '-'}: trial {one['trial']} {one['settings']}, {one['stage']} for {duration(one['for_s'])}{usual}"
    by = "" if facts["metric"] == "output_tok_s" else f" by {facts['metric']}"
    for one in facts["best"]:
        if one.get("answer") == "not compared":  # the verdict has its figures
            continue
        what, words = ("use", _advice(one, by)) if "use" in one else ("best speculative", _so_far(one, by))
        yield f"{what:18} concurrency {one['concurrency']}: {words}"
    if facts["verdict"]:
        yield f"{'verdict':18} {facts['verdict']}"
    if facts["left_s"] is not None:
        yield f"{'time left':18} about {duration(facts['left_s'])} ({facts['left_basis']})"
    yield f"{'next':18} {facts['next']}"


def _reported_facts(one: Reported) -> dict[str, Any]:
    use = str(one.use) if one.use else "plain server" if one.known else None
    settings = str(one.speculative) if one.speculative else None
    facts = {"concurrency": one.concurrency, "use": use, "answer": one.answer}
    return {**facts, "settings": settings, "speedup": one.speedup, "nothing": one.nothing or None}


def _best_facts(one: Best, names: Mapping[str, Settings]) -> dict[str, Any]:
    settings = str(names[one.speculative]) if one.speculative else None
    return {
        "concurrency": one.concurrency,
        "settings": settings,
        "speedup": one.speedup,
        "nothing": one.nothing or None,
    }


def _advice(one: Mapping[str, Any], by: str) -> str:
    """What the report says to run at a load point, and how the best speculative setting fared there."""
    speed = f"{one['speedup']:.2f}x the best plain server{by}" if one["speedup"] else "no plain server to compare with"
    if one["use"] and one["use"] == one["settings"]:
        return f"{one['use']}, {speed}"
    why = one["nothing"] or f"{one['answer']}: {one['settings']}, {speed}"
    return f"{one['use'] or 'no answer'} ({why})"


def _so_far(one: Mapping[str, Any], by: str) -> str:
    speed = (
        f"{one['speedup']:.2f}x the best plain server{by}" if one["speedup"] else "no plain server to compare with yet"
    )
    return one["nothing"] or f"{one['settings']}, {speed}"


def _state(events: Sequence[Mapping[str, Any]], driver: str | None) -> str:
    """running, finished, interrupted, or unknown where the journal says nothing of a sweep."""
    if driver:
        return "running"
    last = next((e for e in reversed(events) if e["event"] in ("sweep_ended", "sweep_started", "sweep_resumed")), None)
    if last is None:
        return UNKNOWN
    finished = last["event"] == "sweep_ended" and not last.get("interrupted")
    return "finished" if finished else "interrupted"


def _running(
    plan: Plan, run: RunDir, rows: Sequence[Row], events: Sequence[Mapping[str, Any]], unfinished: set[int]
) -> Iterator[Running]:
    """What a driver has at work: launched, and not ended since."""
    from orchestrator.engines import dialect_for  # late: it brings in the load generator

    gpus: dict[int, list[str]] = {}
    for event in events:
        if event["event"] == "launched":
            gpus[event["trial"]] = list(map(str, event.get("gpus") or []))
        elif event["event"] == "trial_ended":
            gpus.pop(event.get("trial", -1), None)
    usual, dialect, now = Usual.of(rows), dialect_for(plan), datetime.now(UTC)
    for number in sorted(unfinished & gpus.keys()):
        with suppress(Unreadable):
            begun = read_begun(run.begun_file(number))
            stage = str(dialect.stage(read_log(run.server_log(begun.trial.name, begun.trial.attempt))))
            yield running(begun, rows, gpus[number], stage, plan, now, usual)


def _running_facts(one: Running) -> dict[str, Any]:
    seconds = {"for_s": round(one.for_s, 1), "usual_s": None if one.usual_s is None else round(one.usual_s, 1)}
    return {**one._asdict(), "settings": str(one.settings), "gpus": list(one.gpus), **seconds}


def _at_once(events: Sequence[Mapping[str, Any]]) -> int:
    """Servers at a time, as far as the last driver has shown."""
    sets: set[tuple[str, ...]] = set()
    for event in events:
        if event["event"] in ("sweep_started", "sweep_resumed"):
            sets.clear()
        elif event["event"] == "launched":
            sets.add((str(event.get("host")), *map(str, event.get("gpus") or [])))
    return len(sets)


def compare_command(before: Path, after: Path, as_json: bool) -> int:
    """Each run judged in the goal of its own plan."""
    from results.compare import compare  # late: the verb status, which is to be quick, needs no verdict

    with said():
        runs = [RunDir.open(path) for path in (before, after)]
        first, second = (read_records(rows_path(run)) for run in runs)
    plans = [stored_plan(run, to_run=False) for run in runs]
    keys = [line for line in changed(*plans) if line.startswith("workload.") and not line.startswith(LOAD_POINTS)]
    found = compare(first, second, plans[0].goal, plans[1].goal, keys)
    if runs[0].path.resolve() == runs[1].path.resolve():
        found = replace(found, warnings=("A and B are the same run: nothing can have changed.", *found.warnings))
    if as_json:
        facts = {"before": str(runs[0].path), "after": str(runs[1].path), "metric": found.metric, "speedup_metrics": found.metrics, "differs": found.differs, "warnings": found.warnings}  # fmt: skip
        print(json.dumps({**facts, "changes": [change.as_dict() for change in found.changes]}))
    else:
        print("\n".join(fitted(line, 2) for line in compared(runs, found)))
    return OK


def compared(runs: Sequence[RunDir], found: Comparison) -> Iterator[str]:
    for letter, run, verdict, metric in zip("AB", runs, found.verdicts, found.metrics, strict=True):
        yield f"{letter} {run.path} (by {metric}): {verdict.sentence}"
    yield ""
    yield from (f"{name:16} {before} → {after}" for name, (before, after) in found.differs.items())
    yield from (f"Note: {warning}" for warning in found.warnings)
    for change in _once(found.changes):
        yield ""
        yield f"concurrency {change.concurrency}, {change.what}: {change.answer}"
        yield f"  {_names(change)}"
        yield f"  {found.metric} {change.before_value:.1f} → {change.after_value:.1f}: {change.ratio:.2f}× [{change.low:.2f}, {change.high:.2f}] ({change.basis})"
        yield from (f"  {line}" for line in _more(change, found.metrics))


def _once(changes: Sequence[Change]) -> Iterator[Change]:
    """Without what is said already: the best settings of both runs may be the same ones."""
    said = set()
    for change in changes:
        about = (change.concurrency, change.before.key, change.after.key)
        if about not in said:
            yield change
        said.add(about)


def _names(change: Change) -> str:
    return str(change.before) if change.before == change.after else f"{change.before} → {change.after}"


def _more(change: Change, metrics: tuple[str, str]) -> Iterator[str]:
    if change.before_speedup and change.after_speedup and change.what != "plain server":
        of = metrics[0] if metrics[0] == metrics[1] else " → ".join(metrics)
        yield f"speedup over its own plain server {change.before_speedup:.2f}× → {change.after_speedup:.2f}× ({of})"
    if change.before_acceptance_length and change.after_acceptance_length:
        yield f"acceptance length {change.before_acceptance_length:.2f} → {change.after_acceptance_length:.2f}"
