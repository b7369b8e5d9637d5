"""What the verbs sweep, resume, report and status do.  Not here: reading words (__main__.py), the loop (sweep.py)."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
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
from orchestrator.facts import facts_of
from orchestrator.launches import Launches
from orchestrator.measuring.workload import load_prompts
from orchestrator.plan import Plan
from orchestrator.serving.processes import clear_leftovers
from results.files import DiskFull, NotWritable, RunDirProblem
from results.ledger import read_records
from results.record import Record
from results.rundir import RunDir
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
    facts = _standing(_stored_plan(run, to_run=False), run, records)
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


def _run(plan: Plan, run: RunDir, as_json: bool, first: bool) -> int:
    from orchestrator.pool import RayPool, clear_ray_folders
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
        launches = Launches(plan, facts_of(plan))
        launches.require_some()
        _store(plan, run, dialect.version, first)
        cleared = clear_leftovers(f"{run.marker}/")
        if cleared:
            run.journal.note("leftovers_cleared", what=cleared)
        clear_ray_folders(run)
        counted = launches.legal
        run.journal.note("space_counted", grid=plan.space.size, legal=len(counted.settings), collapsed=counted.collapsed, refused=dict(counted.refused), exact=counted.exact)  # fmt: skip
        for warning in launches.warnings():
            print(f"Note: {warning}", file=sys.stderr)
        narrator, stops = Narrator(), _Stops()
        with stops:
            try:
                pool = RayPool(plan, run)
            except SystemExit:  # Ray's own handler of SIGTERM, while it starts
                run.journal.note("sweep_ended", interrupted=True)
                return _interrupted(run)
            stops.pass_on_to(pool.stop)
            try:
                verdict = sweep(plan, run, pool, narrator, inspected)
            finally:
                narrator.close()
                pool.close()
        run.journal.note("sweep_ended", interrupted=stops.count > 0 or pool.spent)
    if pool.spent:
        print("No GPU set is left to go on with; summary.md and events.jsonl (left_behind) say why.", file=sys.stderr)
    return _interrupted(run) if stops.count or pool.spent else _tell(verdict, run, as_json)


def _interrupted(run: RunDir) -> int:
    print(f"Interrupted. Go on with: python -m orchestrator resume {run.path}", file=sys.stderr)
    return INTERRUPTED


def _store(plan: Plan, run: RunDir, engine_version: str, first: bool) -> None:
    if not first:
        before = _stored_environment(run).get("engine_version")
        if before != engine_version:
            raise RunDirError(f"{run.path}: was measured with {plan.engine.name} {before}; this is {engine_version}. Start a new sweep.")  # fmt: skip
        run.journal.note("sweep_resumed", budget=plan.conf["budget"], cluster=plan.conf["cluster"])
    else:
        run.write_text(run.environment, json.dumps(_environment(engine_version), indent=2))
        run.journal.note("sweep_started", conf=plan.name)
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
        raise RunDirError(
            f"{run.plan}: is no config ({'; '.join(wrong) or 'it holds no keys'}); this run cannot be taken up."
        )
    return plan_from_conf(conf, text.splitlines()[0].removeprefix("# conf: "), run.path, to_run)


def _tell(verdict: Verdict, run: RunDir, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"verdict": verdict.sentence, "run": str(run.path), "summary": str(run.summary)}))
    else:
        lines = ["", verdict.sentence, "", f"Summary   {run.summary}", f"Rows      {run.trials_dir}"]
        if verdict.reached:
            lines.append(f"Commands  {run.launch_script}")
        elif verdict.cause:
            lines.insert(2, verdict.cause)
        print("\n".join(lines))
    return OK if verdict.reached else NO_VERDICT


class _Stops:
    """Ctrl-C once: finish the load point; twice, or SIGTERM: stop now.  Either way the run can be resumed."""

    def __init__(self) -> None:
        self.count = 0
        self._now = False
        self._stop: Callable[[bool], None] | None = None
        self._before: dict[int, Any] = {}

    def pass_on_to(self, stop: Callable[[bool], None]) -> None:
        """Until this is called, a signal is only remembered: whoever is starting up is not torn down half-made."""
        self._listen()  # Ray has put a handler of its own in our place
        self._stop = stop
        if self.count:
            stop(self._now)

    def __enter__(self) -> _Stops:
        self._before = self._listen()
        return self

    def _listen(self) -> dict[int, Any]:
        return {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._now = self._now or number == signal.SIGTERM or self.count > 1
        if self._stop is not None:
            self._stop(self._now)
        word = "Stopping now." if self._now else "Stopping after this load point (again to stop now)."
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
