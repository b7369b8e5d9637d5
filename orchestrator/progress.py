"""Narrator: tells a sweep's story while it runs, a line an event; on a terminal the live view (live.py) stands below.

Not here: the report (results/report.py) and what a reader of the run directory sees (the verb status).
"""

from __future__ import annotations

import dataclasses
import math
import time

from rich.console import Console
from rich.markup import escape

from orchestrator.drafters import Inspected
from orchestrator.engines import dialect_for
from orchestrator.events import Event, Launched, Progress, TrialEnded
from orchestrator.live import LiveView
from orchestrator.plan import Plan
from orchestrator.standing import clock
from orchestrator.trials import load_points
from results.acceptance import Reason
from results.counted import counted
from results.coverage import named
from results.record import Record
from results.rundir import RunDir
from results.sample import best_plain, samples


class Narrator:
    """Writes to `console` (standard error by default, so that standard output stays for results)."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._view: LiveView | None = None
        self._plan: Plan | None = None
        self._plain_rows: list[Record] = []

    def starts(self, plan: Plan, run: RunDir, at_once: int, records: list[Record]) -> None:
        """`records`: what an earlier driver measured, so that speeds are told against the plain server from the start."""
        self._plan = plan
        finished = len({record.trial for record in records})
        self._plain_rows = [record for record in records if not record.settings.speculative]
        simulated = "  [bold](simulated: no GPU is used)[/bold]" if dialect_for(plan).simulated else ""
        self._say(f"Sweep [bold]{plan.name}[/bold] in {run.path}{simulated}, {clock()}")
        self._say(self._what_comes(at_once))
        if finished:
            self._say(f"Resumed: {counted(finished, 'trial')} with rows already.")
        if self._console.is_terminal:
            self._view = LiveView(self._console, plan, run, at_once, records)
            self._view.open()

    def tell(self, event: Event, launches: int) -> None:
        """`launches`: how many are charged to the budget by now (Schedule.charged)."""
        if self._view is not None:
            self._view.charged(launches)
        match event:
            case Launched():
                if self._view is not None:
                    self._view.launched(event)
            case Progress():
                if self._view is not None:
                    self._view.ready(event)
            case Record():
                self._tell_record(event)
                if self._view is not None:
                    self._view.measured(event)
            case TrialEnded():
                if self._view is not None:
                    self._view.ended(event)
                self._tell_end(event)

    def ends(self, why: str) -> None:
        self._say(f"{_clock()} ended: {why}.")

    def _against_plain(self, record: Record, concurrency: int) -> str:
        """The goal's metric over that of the best plain server so far, which is the one the verdict would take."""
        assert self._plan is not None
        goal = dataclasses.replace(self._plan.goal, at=())
        value = record.value(goal)
        plain = best_plain(samples(self._plain_rows, goal).get(concurrency, ()))
        if value is None or plain is None:
            return ""
        metric = "" if goal.metric == "output_tok_s" else f" in {goal.metric}"
        return f" = {value / math.exp(plain.log):.2f}x{metric}"

    def space_exhausted(self) -> None:
        self._say("Every legal setting of the space was launched: space exhausted.")

    def inspected(self, inspected: Inspected) -> None:
        for pair, finding in inspected.said():
            fate = "[red]not launched[/red]" if pair in inspected.refused else f"[yellow]{finding.severity}[/yellow]"
            self._say(f"{named(pair)} {fate}: {escape(str(finding))}")

    def gives_up(self, branch: tuple[str | None, ...], reason: Reason) -> None:
        name = " ".join(filter(None, branch))
        self._say(
            f"{_clock()} {escape(name)} [yellow]is given up[/yellow]: {escape(reason.words)}. Not launched again."
        )

    def falls_back(self, why: str) -> None:
        self._say(f"The sampler falls back to TPE, since {escape(why)}.")

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _tell_record(self, record: Record) -> None:
        if record.failure is not None:
            first = escape(record.failure.cause_in_short())
            self._say(f"{_clock()} trial {record.trial:>3} [red]failed[/red]  {self._named(record)}: {record.failure.kind} at {record.failure.stage}: {first}")  # fmt: skip
            return
        assert record.point is not None
        assert record.measurement is not None
        speed = record.measurement.output_tok_s or 0.0
        concurrency = record.point.concurrency
        if not record.settings.speculative:
            self._plain_rows.append(record)
        against = self._against_plain(record, concurrency)
        accepted = record.measurement.acceptance_length
        accept = f", acceptance length {accepted:.2f}" if accepted is not None else ""
        flags = f"  [yellow]{', '.join(record.flags)}[/yellow]" if record.flags else ""
        self._say(f"{_clock()} trial {record.trial:>3} {self._named(record):<34} concurrency {concurrency:>3}: {speed:8.1f} tok/s{against}{accept}{flags}")  # fmt: skip

    def _tell_end(self, ended: TrialEnded) -> None:
        if ended.left_over:
            self._say(
                f"{_clock()} trial {ended.trial:>3} [red]left behind[/red], its GPUs are taken out of use: {'; '.join(ended.left_over)}"
            )

    def _named(self, record: Record) -> str:
        """What was asked for; of a server that runs already nothing was, so what it says it runs."""
        if record.origin.engine != "attached":
            return str(record.asked)
        return (
            str(record.settings) if record.measured else f"the server at {self._plan.engine.url if self._plan else ''}"
        )

    def _what_comes(self, at_once: int) -> str:
        assert self._plan is not None
        plan = self._plan
        if plan.engine.name == "attached":
            return f"The server at {plan.engine.url} as it runs, at {counted(len(load_points(plan)), 'load point')}; nothing is launched."  # fmt: skip
        return f"{counted(plan.space.size, 'point')} in the grid, {counted(at_once, 'server') + ' at a time' if at_once else 'no GPU set is up'}, {self._budget()}"  # fmt: skip

    def _budget(self) -> str:
        assert self._plan is not None
        budget = self._plan.budget
        words = [
            counted(budget.launches, "launch") if budget.launches else "",
            f"{budget.gpu_hours:g} GPU-hours" if budget.gpu_hours else "",
            f"{budget.hours:g} hours" if budget.hours else "",
        ]
        return "budget " + " or ".join(word for word in words if word)

    def _say(self, line: str) -> None:
        """On a terminal broken between words; elsewhere a line stays one."""
        self._console.print(line, soft_wrap=not self._console.is_terminal)


def _clock() -> str:
    return time.strftime("%H:%M:%S")
