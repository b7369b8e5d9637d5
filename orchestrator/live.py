"""LiveView: what a terminal shows under the lines of a sweep: each GPU set at work, the best so far, what is spent and left.

Drawn anew every second by rich's own thread from what the driver has told it; it reads nothing but the logs of servers
that are starting.  Not here: the lines (progress.py), the same facts from files (reading.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.engines import dialect_for
from orchestrator.events import Launched, Progress, TrialEnded
from orchestrator.leaders import Best, best_so_far
from orchestrator.plan import Plan
from orchestrator.rows import Row, row_of
from orchestrator.serving.logs import read_log
from orchestrator.standing import Running, Usual, duration, running, time_left
from results.begun import Begun, read_begun
from results.files import Unreadable
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings

COLUMNS = ("GPU", "trial", "settings", "stage", "for", "usually")
NARROW = ("GPU", "settings", "stage", "for")
WIDE = 72
"""Letters of a terminal that has room for all columns."""


class LiveView:
    """Facts in, a picture out; `open` and `close` bracket its time on the terminal."""

    def __init__(self, console: Console, plan: Plan, run: RunDir, at_once: int, records: list[Record]) -> None:
        self._console, self._plan, self._run, self._at_once = console, plan, run, at_once
        self._dialect = dialect_for(plan)
        self._rows: list[Row] = [row_of(record, plan.goal) for record in records]
        self._names: dict[str, Settings] = {record.settings.key: record.settings for record in records}
        self._best = best_so_far(self._rows, plan.goal)
        self._usual = Usual.of(self._rows)
        self._at_work: dict[int, tuple[Begun, tuple[str, ...]]] = {}
        self._held_s: list[float] = []
        self._charged = 0
        self._began = time.monotonic()
        self._gpu_hours = run.journal.gpu_hours_spent()
        self._hours = run.journal.hours_spent()
        self._live = Live(console=console, get_renderable=self.picture, refresh_per_second=1, transient=True)

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def launched(self, event: Launched) -> None:
        with suppress(Unreadable):  # then it is not shown, and runs all the same
            self._at_work = {**self._at_work, event.trial: (read_begun(self._run.begun_file(event.trial)), event.gpus)}

    def ready(self, event: Progress) -> None:
        if event.trial in self._at_work:
            _, gpus = self._at_work[event.trial]
            with suppress(Unreadable):
                self._at_work = {**self._at_work, event.trial: (read_begun(self._run.begun_file(event.trial)), gpus)}

    def measured(self, record: Record) -> None:
        self._names[record.settings.key] = record.settings
        self._rows = [*self._rows, row_of(record, self._plan.goal)]
        self._best = best_so_far(self._rows, self._plan.goal)
        self._usual = Usual.of(self._rows)

    def ended(self, event: TrialEnded) -> None:
        self._at_work = {number: at_work for number, at_work in self._at_work.items() if number != event.trial}
        if event.held_s:
            self._held_s.append(event.held_s)
            self._gpu_hours += event.held_s * len(event.gpus) / 3600

    def charged(self, launches: int) -> None:
        self._charged = launches

    def picture(self) -> RenderableType:
        rows = [self._line(begun, gpus) for begun, gpus in self._at_work.values()]
        shown, gap = (COLUMNS, 2) if self._console.width >= WIDE else (NARROW, 1)
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
        for name in shown:
            table.add_column(name, no_wrap=name != "settings")
        for one in sorted(rows, key=lambda one: one.gpus):
            table.add_row(*(_cells(one)[name] for name in shown))
        best = [Text(self._told(one)) for one in self._best]
        parts = [table] if rows else [Text("nothing runs just now", style="dim")]
        return Group("", *parts, *best, Text(self._spent(), style="dim"))

    def _line(self, begun: Begun, gpus: tuple[str, ...]) -> Running:
        log = self._run.server_log(begun.trial.name, begun.trial.attempt)
        stage = ""
        if begun.ready_at is None:
            with suppress(OSError):  # on a file system that is slow or away just now
                stage = str(self._dialect.stage(read_log(log)))
        return running(begun, self._rows, gpus, stage, self._plan, datetime.now(UTC), self._usual)

    def _told(self, best: Best) -> str:
        if best.speculative is None:
            return f"concurrency {best.concurrency:>3}: {best.nothing}"
        by = "" if self._plan.goal.metric == "output_tok_s" else f" by {self._plan.goal.metric}"
        speed = f"{best.speedup:.2f}x the plain server{by}" if best.speedup else "no plain server measured yet"
        return f"concurrency {best.concurrency:>3}: {speed}, best so far {self._names[best.speculative]}"

    def _spent(self) -> str:
        hours = (time.monotonic() - self._began) / 3600
        planned = f"/{self._plan.budget.launches}" if self._plan.budget.launches else ""
        left = time_left(
            self._plan,
            self._charged,
            self._held_s,
            self._at_once,
            self._hours + hours,
            self._gpu_hours,
            len(self._at_work),
        )
        words = f", about {duration(left.seconds)} left ({left.basis})" if left else ""
        return f"{self._charged}{planned} launches, {self._gpu_hours:.2f} GPU-hours, {duration(hours * 3600)}{words}"


def _in_short(gpus: Sequence[str]) -> str:
    """`0-7` for eight in a row."""
    numbers = [int(gpu) for gpu in gpus if gpu.isdecimal()]
    if len(numbers) == len(gpus) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(gpus)


def _cells(one: Running) -> dict[str, str]:
    usual = duration(one.usual_s) if one.usual_s is not None else "–"
    return {
        "GPU": _in_short(one.gpus) or "–", "trial": str(one.trial), "settings": str(one.settings), "stage": one.stage,
        "for": duration(one.for_s), "usually": usual,
    }  # fmt: skip
