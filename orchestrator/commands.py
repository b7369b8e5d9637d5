"""What the verbs sweep and resume do.  Not here: reading words (__main__.py), the loop (sweep.py), other verbs (reading.py)."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.config import MAY_CHANGE, changed, to_yaml, with_words
from orchestrator.drafters import Inspected, inspect_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.environment import PASSED_ON
from orchestrator.errors import ConfError, MachineError, RunDirError, SweepError
from orchestrator.facts import facts_of
from orchestrator.launches import Launches
from orchestrator.needs import lacking, plan_here
from orchestrator.notify import State, notify
from orchestrator.output import outliving
from orchestrator.plan import Plan
from orchestrator.serving.processes import clear_leftovers
from orchestrator.stored import NO_VERDICT, OK, require_launches, said, stored_environment, stored_plan, tell
from results.driving import lock
from results.files import RunDirProblem
from results.rundir import RunDir
from results.tidying import redact_logs

INTERRUPTED = 130
PACKAGES = ("ray", "optuna", "omegaconf", "numpy", "scipy", "pandas", "pyarrow")


def sweep_command(words: list[str], as_json: bool) -> int:
    plan = plan_here(words)  # what is refused leaves no directory
    checked = _Checked.of(plan)
    with said():
        named = any(word.startswith("out=") for word in words)
        run = RunDir.at(plan.out) if named else RunDir.create(plan.out, plan.name, datetime.now(UTC))
    return _run(checked, run, as_json, first=True)


def resume_command(path: Path, words: list[str], as_json: bool) -> int:
    with said():
        run = RunDir.open(path)
    stored = stored_plan(run, to_run=False)
    plan = with_words(stored, words)
    refused = changed(stored, plan)
    if refused:
        listed = ", ".join(key.removesuffix(".") for key in MAY_CHANGE)
        raise ConfError(
            [f"{run.path}: a resume may change {listed} only; start a new sweep for:", *refused]
        )  # fmt: skip
    with said():
        require_launches(run, stored, plan)
    if lacks := "\n".join(lacking(plan, run.path)):
        notify(plan.notify, "trouble", run, lacks)
        raise MachineError(lacks)
    return _run(_Checked.of(plan), run, as_json, first=False)


@dataclass(frozen=True)
class _Checked:
    """A plan of which something can be launched here, where nothing lacks."""

    plan: Plan
    engine_version: str
    inspected: Inspected
    launches: Launches

    @classmethod
    def of(cls, plan: Plan) -> _Checked:
        """Raises SweepError, before anything is written or started."""
        with said():
            engine_version = dialect_for(plan).version
            inspected = inspect_plan(plan, engine_version)
            launches = Launches(plan, facts_of(plan))
            launches.require_some()
        return cls(plan, engine_version, inspected, launches)


def _run(checked: _Checked, run: RunDir, as_json: bool, first: bool) -> int:
    """Drive the sweep, and tell whoever is to be notified how it ended."""
    plan = checked.plan
    try:
        code, words = _driven(checked, run, as_json, first)
    except SweepError as problem:
        notify(plan.notify, "trouble", run, str(problem))
        raise
    states: dict[int, State] = {OK: "finished", NO_VERDICT: "no verdict", INTERRUPTED: "interrupted"}
    notify(plan.notify, states[code], run, words)
    return code


def _driven(checked: _Checked, run: RunDir, as_json: bool, first: bool) -> tuple[int, str]:
    """The exit code, and the verdict or what there is instead of one."""
    from orchestrator.engines.replay import ReplayPool
    from orchestrator.own_ray import clear_folders
    from orchestrator.pool import Pool, RayPool
    from orchestrator.progress import Narrator
    from orchestrator.sweep import sweep

    plan, launches = checked.plan, checked.launches
    with said(run), lock(run), outliving(partial(_note_lost, run)):
        if first:
            run.require_new()
        else:
            redact_logs(run)
        _store(plan, run, checked.engine_version, first)
        cleared = clear_leftovers(f"{run.marker}/")
        if cleared:
            run.journal.note("leftovers_cleared", what=cleared)
        clear_folders(run)
        counted = launches.legal
        run.journal.note("space_counted", grid=plan.space.size, legal=len(counted.settings), collapsed=counted.collapsed, refused=dict(counted.refused), exact=counted.exact)  # fmt: skip
        for warning in launches.warnings():
            print(f"Note: {warning}", file=sys.stderr)
        narrator, stops = Narrator(), _Stops()
        with stops:
            pool: Pool = (
                ReplayPool(plan, run) if plan.engine.name == "replay" else RayPool(plan, run, lambda: stops.count > 0)
            )
            stops.pass_on_to(pool.stop)
            with closing(pool), closing(narrator):
                verdict = sweep(plan, run, pool, narrator, checked.inspected)
        run.journal.note("sweep_ended", interrupted=stops.count > 0 or pool.spent)
        if pool.spent:
            print("No GPU set is left to go on with; summary.md and events.jsonl (left_behind) say why.", file=sys.stderr)  # fmt: skip
        return _interrupted(run) if stops.count or pool.spent else (tell(verdict, run, as_json), verdict.sentence)


def _note_lost(run: RunDir, stream: str) -> None:
    with suppress(RunDirProblem):  # the same disk is full, perhaps: then the next row says so
        run.journal.note("output_lost", stream=stream)


def _interrupted(run: RunDir) -> tuple[int, str]:
    words = f"Interrupted. Go on with: python -m orchestrator resume {run.path}"
    print(words, file=sys.stderr)
    return INTERRUPTED, words


def _store(plan: Plan, run: RunDir, engine_version: str, first: bool) -> None:
    if not first:
        before = stored_environment(run).get("engine_version")
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


class _Stops:
    """Ctrl-C once: finish the load point; twice, or SIGTERM: stop now.  Either way the run can be resumed."""

    def __init__(self) -> None:
        self.count = 0
        self._now = False
        self._stop: Callable[[bool], None] | None = None
        self._before: dict[int, Any] = {}

    def pass_on_to(self, stop: Callable[[bool], None]) -> None:
        """Until this is called, a signal is only remembered: whoever is starting up is not torn down half-made."""
        self._stop = stop
        if self.count:
            stop(self._now)

    def __enter__(self) -> _Stops:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._now:  # and was said
            return
        self._now = number == signal.SIGTERM or self.count > 1
        if self._stop is not None:
            self._stop(self._now)
        running = "after this load point" if self._stop is not None else "before anything is launched"
        word = "Stopping now." if self._now else f"Stopping {running} (again to stop now)."
        with suppress(OSError):  # the terminal is gone, perhaps
            os.write(2, f"\n{word}\n".encode())
