"""What a run directory says of its own plan, how its reports are written, and how its problems and its verdict are told.

Not here: its paths and files (results/rundir.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.config import plan_from_conf
from orchestrator.config.yaml_text import read_yaml, shown, yaml_mistake
from orchestrator.errors import ConfError, RunDirError
from orchestrator.plan import Plan
from orchestrator.trials import charged, whole
from results.counted import counted
from results.files import DiskFull, NotWritable, RunDirProblem
from results.ledger import compact, read_records, rows_path
from results.record import Record
from results.rundir import RunDir

if TYPE_CHECKING:
    from results.verdict import Verdict

OK, NO_VERDICT = 0, 1


def stored_environment(run: RunDir) -> dict[str, Any]:
    try:
        stored = json.loads(run.environment.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirError(f"{run.environment}: cannot be read ({error}); this run cannot be resumed.") from error
    return stored if isinstance(stored, dict) else {}


def stored_plan(run: RunDir, to_run: bool) -> Plan:
    import yaml

    wrong: list[str] = []
    try:
        text = run.plan.read_text(encoding="utf-8")
        conf = read_yaml(text, lambda key, why: wrong.append(f"{shown(key)}: {why}"))
    except FileNotFoundError as error:
        raise _without_plan(run, "is missing") from error
    except OSError as error:
        raise _without_plan(run, f"cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise _without_plan(run, f"is no text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise _without_plan(run, f"cannot be read ({yaml_mistake(error)})") from error
    if wrong or not isinstance(conf, dict):
        raise _without_plan(run, f"is no config ({'; '.join(wrong) or 'it holds no keys'})")
    return plan_from_conf(conf, text.splitlines()[0].removeprefix("# conf: "), run.path, to_run)


def _without_plan(run: RunDir, what: str) -> RunDirError:
    """What is lost with a run's config, what is not, and what can be done with it."""
    count = len(list(run.trials_dir.glob("*.parquet")))
    kept = (
        f"The rows of {counted(count, 'launch')} are in {run.trials_dir}: results.load({str(run.path)!r}) reads them, and a new sweep elsewhere takes them up with warm_start=[{run.path}]"
        if count
        else "Nothing was measured in it: start a new sweep, in another directory"
    )
    return RunDirError(f"{run.plan}: {what}. Without its config this run can be neither judged nor resumed. {kept}; or put the file back.")  # fmt: skip


def require_launches(run: RunDir, before: Plan, plan: Plan) -> None:
    """Raises ConfError where a resume is given fewer launches than were begun: it would end what can still go on."""
    asked = plan.budget.launches
    if asked is None or asked == before.budget.launches:
        return
    rows: dict[int, list[Record]] = {begun.trial.number: [] for begun in run.begun()}
    for record in read_records(rows_path(run)):
        rows.setdefault(record.trial, []).append(record)
    spent = sum(charged(plan, found) + (not whole(plan, found)) for found in rows.values())
    if asked < spent:
        raise ConfError([f"budget.launches: {asked}, but {spent} are spent already. Give more to go on; `report {run.path}` tells what there is."])  # fmt: skip


def conclude(plan: Plan, run: RunDir, records: Sequence[Record]) -> Verdict:
    """Judge what was measured and write the reports, and of a long run the one file that is fast to read."""
    from results.report import write_report  # late: the verb status, which is to be quick, needs none of it

    verdict = write_report(run, records, plan.goal, plan.conf, name=plan.name)
    compact(run)
    return verdict


def tell(verdict: Verdict, run: RunDir, as_json: bool) -> int:
    """The last screen of a sweep; the exit code."""
    if as_json:
        print(
            json.dumps(
                {
                    "verdict": verdict.sentence,
                    "run": str(run.path),
                    "summary": str(run.summary),
                    "report": str(run.report),
                }
            )
        )
    else:
        lines = [
            "",
            fitted(verdict.sentence),
            "",
            f"Report    {run.report}",
            f"Summary   {run.summary}",
            f"Rows      {run.trials_dir}",
        ]
        if verdict.reached:
            lines.append(f"Commands  {run.launch_script}")
        elif verdict.cause:
            lines.insert(2, fitted(verdict.cause))
        print("\n".join(lines))
    return OK if verdict.reached or verdict.alone else NO_VERDICT


def fitted(text: str, indent: int = 0) -> str:
    """As it is for a program; on a terminal broken between words, from the second line on indented."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


@contextmanager
def said(run: RunDir | None = None) -> Iterator[None]:
    """A run directory's problem is the person's to know, like any other mistake; of `run` also how to go on with it."""
    try:
        yield
    except (DiskFull, NotWritable) as problem:
        words = f"\nGo on with: python -m orchestrator resume {run.path}" if run is not None else ""
        raise RunDirError(f"{problem}{words}") from problem
    except RunDirProblem as problem:
        raise RunDirError(str(problem)) from problem
