"""Journal: events.jsonl of a run, one line an event, and what it says of time and GPU-hours spent.

A line is one write, so that a kill tears at most the last one; ruined lines are skipped by readers and taken out on a
resume.  Not here: measured values (ledger.py).
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.files import RunDirProblem, opened, write_all
from results.redaction import redacted_values

log = logging.getLogger(__name__)

MOST_SILENT_S = 24 * 3600.0
"""Between two lines of a journal without a steady clock: a longer step is a clock that was set, not time that passed."""


EVENTS = {
    "sweep_started": "A driver began: `conf`.",
    "sweep_resumed": "A driver went on with it: `budget` and `cluster` from now on.",
    "ray_started": "Where Ray keeps its files: `folder`.",
    "workers_missing": "The GPUs of some workers were held by others, and the sweep began without: how many workers are `up` and `missing`, `gpus_free` of Ray's. They join when they come up.",
    "leftovers_cleared": "Servers of a dead driver were ended before anything was launched: `what`.",
    "space_counted": "What the rules made of the space: `grid` points, `legal` distinct settings, `collapsed` twins, `refused` by rule, whether `exact`.",
    "drafter_finding": "What inspection found in a drafter: `algorithm`, `drafter`, `severity`, `text`, whether `refused`.",
    "launched": "A server process was started: `trial`, `gpus`, `host`.",
    "trial_failed": "A trial has no measurement: `trial`, `attempt`, `kind`, `stage`, `cause`.",
    "trial_ended": "A server is gone: `trial`, `held_s` (seconds its GPUs were held), `gpus`, whether `complete`.",
    "outputs_checked": "A plain server re-scored the greedy answers of a finalist: `trial`, and what it found.",
    "left_behind": "What a server left on its GPUs, which are used no more: `trial`, `gpus`, `what`.",
    "warm_started": "The sampler learned from an earlier run: `run`, how many `rows`, and their `use`: as data (the same target and GPUs) or as a hint.",
    "sampler_fell_back": "The sampler went on as another: `to`, `why`.",
    "drafter_ineffective": "An algorithm with a drafter is given up, it guesses nothing: `algorithm`, `drafter`, `acceptance_length`, `verify_steps`.",
    "branch_failed_alike": "An algorithm with a drafter on an attention backend is given up, its settings fail alike: `algorithm`, `drafter`, `attention_backend`, `kind`, `stage`, `cause`.",
    "drafter_mismatch": "An algorithm with a drafter is given up, it does not fit: `algorithm`, `drafter`, `trial`, `cause`.",
    "search_ended": "Nothing more is launched: `why`, and whether that `cut_short` what was planned. Of a search by model also `near`, the chance that the best found is within 2 % of the best there is (null: not reckoned), and `break_even`: for each concurrency the likeliest speculative `settings`, its expected `step_time_ratio` to the plain server (the acceptance length that speculation needs), its expected `acceptance_length`, and the `chance` that any speculation is more than 1 % faster.",
    "output_lost": "The terminal, pipe or file that the driver talked to is gone; it went on: `stream`.",
    "set_aside": "A file that could not be read was moved: `file`, `kept`, `reason`.",
    "sweep_ended": "A driver ended: whether `interrupted`.",
}
"""Every kind of line of a journal → what it says and the facts it carries; `at` and `steady_s` are in each."""


@dataclass(frozen=True)
class Journal:
    path: Path

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to events.jsonl: the time in UTC, a steady clock, `event`, and `facts` (plain JSON values).

        `steady_s` is CLOCK_MONOTONIC: of one driver's lines it tells how far they are apart, even when the wall clock was
        set in between.  A last line that was torn by a kill is closed first, so that it spoils no other.

        Raises:
            DiskFull: no room; the journal may end in a torn line, which readers skip.
            NotWritable: it cannot be written for another reason.
        """
        stamps = {"at": datetime.now(UTC).isoformat(), "steady_s": round(time.monotonic(), 3)}
        line = json.dumps({**stamps, "event": event, **redacted_values(facts)}, default=str) + "\n"
        fd = opened(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            write_all(fd, (("\n" if torn else "") + line).encode())
        except OSError as error:
            raise RunDirProblem.of(self.path, error) from error
        finally:
            os.close(fd)

    def events(self) -> list[dict[str, Any]]:
        """Every line of the journal that is whole, in order; `at` is a UTC time in ISO form, `event` a text.

        Lines that a kill or a disk ruined are skipped.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s: cannot be read (%s)", self.path, error.strerror)
            return []
        return [event for event in map(parsed, lines) if event is not None and _is_event(event)]

    def gpu_hours_spent(self) -> float:
        """GPU-hours of all trials that ended: seconds held × GPUs, from the journal's `trial_ended` lines."""
        return gpu_hours_of(self.events())

    def hours_spent(self) -> float:
        """Hours in which a driver ran: from each start or resume to the last line it wrote.

        Counted by the steady clock of the lines.  Lines of an older release have none: there the wall clock counts, and a
        step back or of more than MOST_SILENT_S as nothing.
        """
        return hours_of(self.events())

    def ruined(self) -> tuple[bytes, bytes, int]:
        """The journal as it is, as it is without ruined lines, and how many those are."""
        content = self.path.read_bytes() if self.path.exists() else b""
        lines = [line for line in content.split(b"\n") if line.strip()]
        good = [line for line in lines if (entry := parsed(line)) is not None and _is_event(entry)]
        return content, b"".join(line + b"\n" for line in good), len(lines) - len(good)


def unfinished(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the last driver's search is no whole one, in a few words; None when it came to its end, or none ever began."""
    starts = [number for number, event in enumerate(events) if event["event"] in ("sweep_started", "sweep_resumed")]
    if not starts:
        return None
    last = {event["event"]: event for event in events[starts[-1] :]}
    if (search := last.get("search_ended")) is not None:
        return str(search.get("why")) if search.get("cut_short") else None
    if (
        sweep := last.get("sweep_ended")
    ) is not None:  # an error ended it; or an older release, which noted no more than this
        return "interrupted" if sweep.get("interrupted") else None
    return "killed, or still runs"


def gpu_hours_of(events: Iterable[Mapping[str, Any]]) -> float:
    ended = [event for event in events if event["event"] == "trial_ended"]
    return sum(_seconds(event.get("held_s")) * _count(event.get("gpus")) for event in ended) / 3600


def hours_of(events: Iterable[Mapping[str, Any]]) -> float:
    seconds, before = 0.0, None
    for event in events:
        starts = event["event"] in ("sweep_started", "sweep_resumed")
        seconds += 0.0 if starts or before is None else _seconds_between(before, event)
        before = event if starts or before is not None else None
    return seconds / 3600


def parsed(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for an empty, torn or foreign one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_event(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("event"), str) and moment(entry.get("at")) is not None


def moment(text: object) -> datetime | None:
    """A point in time from its ISO form; None for anything else, a time without a zone included."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.utcoffset() is not None else None


def _seconds(value: object) -> float:
    """A plausible number of seconds; 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < math.inf else 0.0  # type: ignore[arg-type, operator]


def _seconds_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Between two lines of one driver."""
    if "steady_s" in before and "steady_s" in after:
        return max(0.0, _seconds(after["steady_s"]) - _seconds(before["steady_s"]))
    earlier, later = moment(before["at"]), moment(after["at"])
    step_s = (later - earlier).total_seconds() if earlier and later else 0.0
    return step_s if 0 <= step_s <= MOST_SILENT_S else 0.0


def _count(gpus: object) -> int:
    return len(gpus) if isinstance(gpus, list) else gpus if isinstance(gpus, int) and gpus > 0 else 0
