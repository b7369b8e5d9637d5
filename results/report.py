"""The report of a run: summary.md and report.html for a person, best.yaml for a program, launch.sh to run the winner.

Everything said there comes from the rows and the verdict over them; nothing is judged here.  Not here: the texts
(summary.py, page/, best.py, launch.py), the judgement (verdict.py), the DataFrame for an analyst (`results.load`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.best import best_yaml
from results.evidence import Evidence
from results.files import RunDirProblem, encoded, write_whole
from results.launch import commands_of, friendly, launch_script
from results.page import page
from results.record import Record
from results.rundir import RunDir
from results.serve import write_serve
from results.summary import Told, summary
from results.verdict import Verdict
from sweeps.observation import Goal


def write_report(
    run: RunDir,
    records: Sequence[Record],
    goal: Goal,
    conf: Mapping[str, Any],
    commands: Mapping[str, Sequence[str]] | None = None,
    name: str = "",
) -> Verdict:
    """Judge `records` and write summary.md, report.html, best.yaml, launch.sh and serve/, each file whole or not at all.

    `conf` is the resolved config of the run, `name` what it is called.  `commands` (settings key → the server's command
    line) goes before what the rows themselves remember.  Without a verdict there is nothing to launch: an older launch.sh is removed.

    Raises:
        DiskFull, NotWritable: what could not be written keeps its old content.
    """
    evidence = Evidence.of(run, records, goal, conf)
    verdict, told = evidence.verdict, Told.of(evidence)
    lines = {**commands_of(records), **{key: friendly(argv) for key, argv in (commands or {}).items()}}
    run.write_text(run.summary, summary(evidence, told))
    run.write_text(run.best, best_yaml(verdict, conf, lines))
    if verdict.reached:
        run.write_text(run.launch_script, launch_script(run, verdict, conf, lines), mode=0o755)
    else:
        _remove_launch_script(run)
    write_serve(run, verdict, lines)
    write_whole(run.report, encoded(page(evidence, told, lines, name)))  # last: it is the largest by far
    return verdict


def _remove_launch_script(run: RunDir) -> None:
    try:
        run.launch_script.unlink(missing_ok=True)
    except OSError as error:
        raise RunDirProblem.of(run.launch_script, error) from error
