"""What the verbs sweep, resume, report and status do.  Not here: reading words (__main__.py), the loop (sweep.py)."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.config import changed, load_plan, plan_from_conf, to_yaml, with_words
from orchestrator.config.yaml_text import read_yaml, shown
from orchestrator.drafters import inspect_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.engine import PASSED_ON
from orchestrator.errors import ConfError, RunDirError
from orchestrator.measuring.workload import load_prompts
from orchestrator.plan import Plan
from orchestrator.serving.processes import clear_leftovers
from results.ledger import read_records
from results.rundir import DiskFull, NotWritable, RunDir, RunDirProblem
from results.verdict import Verdict

OK, NO_VERDICT, MISTAKE, INTERRUPTED = 0, 1, 2, 130
PACKAGES = ("ray", "optuna", "omegaconf", "numpy", "scipy", "pandas", "pyarrow", "aiohttp")
LEAST_DISK_MIB = 200


def sweep_command(words: list[str], as_json: bool) -> int:
    plan = load_plan(words)
    with _said():
        named = any(word.startswith("out=") for word in words)
        run = RunDir.at(plan.out) if named else RunDir.create(plan.out, plan.name, datetime.now(UTC))
    return _run(plan, run, as_json, first=True)


def resume_command(path: Path, words: list[str], as_json: bool) -> int:
    with _said():
        run = RunDir.open(path)
    stored = _stored_plan(run, to_run=False)
    plan = with_words(stored, words)
    refused = changed(stored, plan)
    if refused:
        raise ConfError(
            [f"{run.path}: a resume may change budget, cluster, engine.python and deadlines only; start a new sweep for:", *refused]
        )  # fmt: skip
    return _run(plan, run, as_json, first=False)


def report_command(path: Path, as_json: bool) -> int:
    from orchestrator.sweep import conclude

    with _said():
        run = RunDir.open(path)
        verdict = conclude(_stored_plan(run, to_run=False), run, read_records(run.path))
    return _tell(verdict, run, as_json)


def status_command(path: Path, as_json: bool) -> int:
    """From the files alone: what was begun, measured and failed, and whether a driver is alive."""
    with _said():
        run = RunDir.open(path)
        records = read_records(run.path)
    plan = _stored_plan(run, to_run=False)
    measured = {r.trial for r in records if r.measured}
    failed = {r.trial for r in records if not r.measured} - measured
    facts = {
        "run": str(run.path), "driver": run.driver(), "launches_begun": len(run.begun()), "trials_measured": len(measured),
        "trials_failed": len(failed), "points_measured": sum(r.measured for r in records),
        "launches_planned": plan.budget.launches, "gpu_hours": round(run.gpu_hours_spent(), 3),
    }  # fmt: skip
    print(json.dumps(facts) if as_json else "\n".join(f"{name:18} {value}" for name, value in facts.items()))
    return OK


def _run(plan: Plan, run: RunDir, as_json: bool, first: bool) -> int:
    from orchestrator.pool import RayPool
    from orchestrator.progress import Narrator
    from orchestrator.sweep import sweep

    with _said(run), run.lock():
        if first:
            run.require_new()
        else:
            run.redact_logs()
        run.require_space(LEAST_DISK_MIB)
        dialect = dialect_for(plan)
        load_prompts(plan.workload, None)  # a bad prompt file is said before anything starts
        inspected = inspect_plan(plan, dialect.version)
        _store(plan, run, dialect.version, first)
        cleared = clear_leftovers(f"{run.marker}/")
        if cleared:
            run.note("leftovers_cleared", what=cleared)
        narrator = Narrator()
        pool = RayPool(plan, run)
        stops = _Stops(pool.stop)
        try:
            with stops:
                verdict = sweep(plan, run, pool, narrator, inspected)
        finally:
            narrator.close()
            pool.close()
        run.note("sweep_ended", interrupted=stops.count > 0 or pool.spent)
    if pool.spent:
        print("No GPU set is left to go on with; summary.md and events.jsonl (left_behind) say why.", file=sys.stderr)
    if stops.count or pool.spent:
        print(f"Interrupted. Go on with: python -m orchestrator resume {run.path}", file=sys.stderr)
        return INTERRUPTED
    return _tell(verdict, run, as_json)


def _store(plan: Plan, run: RunDir, engine_version: str, first: bool) -> None:
    if not first:
        before = _stored_environment(run).get("engine_version")
        if before != engine_version:
            raise RunDirError(f"{run.path}: was measured with {plan.engine.name} {before}; this is {engine_version}. Start a new sweep.")  # fmt: skip
        run.note("sweep_resumed", budget=plan.conf["budget"], cluster=plan.conf["cluster"])
    else:
        run.write_text(run.environment, json.dumps(_environment(engine_version), indent=2))
        run.note("sweep_started", conf=plan.name)
    run.write_text(run.plan, f"# conf: {plan.name}\n{to_yaml(plan)}")


def _environment(engine_version: str) -> dict[str, Any]:
    return {
        "engine_version": engine_version,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": os.uname().nodename,
        "packages": {name: version(name) for name in PACKAGES},
        "environment": {name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }


def _stored_environment(run: RunDir) -> dict[str, Any]:
    try:
        stored = json.loads(run.environment.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirError(f"{run.environment}: cannot be read ({error}); this run cannot be resumed.") from error
    return stored if isinstance(stored, dict) else {}


def _stored_plan(run: RunDir, to_run: bool) -> Plan:
    import yaml

    wrong: list[str] = []
    try:
        text = run.plan.read_text(encoding="utf-8")
        conf = read_yaml(text, lambda key, why: wrong.append(f"{shown(key)}: {why}"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunDirError(f"{run.plan}: cannot be read ({error}); this run cannot be taken up.") from error
    if wrong or not isinstance(conf, dict):
        raise RunDirError(f"{run.plan}: is no config ({'; '.join(wrong) or 'it holds no keys'}); this run cannot be taken up.")
    return plan_from_conf(conf, text.splitlines()[0].removeprefix("# conf: "), run.path, to_run)


def _tell(verdict: Verdict, run: RunDir, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"verdict": verdict.sentence, "run": str(run.path), "summary": str(run.summary)}))
    else:
        print(
            f"\n{verdict.sentence}\n\nSummary   {run.summary}\nRows      {run.trials_dir}\nCommands  {run.launch_script}"
        )
    return OK if verdict.reached else NO_VERDICT


class _Stops:
    """Ctrl-C once: finish the load point; twice, or SIGTERM: stop now.  Either way the run can be resumed."""

    def __init__(self, stop: Any) -> None:
        self.count = 0
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stops:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        now = number == signal.SIGTERM or self.count > 1
        self._stop(now)
        word = "Stopping now." if now else "Stopping after this load point (again to stop now)."
        os.write(2, f"\n{word}\n".encode())


@contextmanager
def _said(run: RunDir | None = None) -> Iterator[None]:
    """A run directory's problem is the person's to know, like any other mistake; of `run` also how to go on with it."""
    try:
        yield
    except (DiskFull, NotWritable) as problem:
        words = f"\nGo on with: python -m orchestrator resume {run.path}" if run is not None else ""
        raise RunDirError(f"{problem}{words}") from problem
    except RunDirProblem as problem:
        raise RunDirError(str(problem)) from problem
