"""Begun: a trial that was started, as begun/ remembers it; written before the launch, read back when a sweep resumes.

What is read is believed only as far as it can be what was written.  Not here: what came of the trial (ledger.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from results.files import Unreadable
from results.journal import moment
from sweeps.settings import Settings, knobs
from sweeps.trial import Kind, LoadPoint, Trial


@dataclass(frozen=True)
class Begun:
    """A trial that was started, as begun/ remembers it; it says nothing about how it ended."""

    trial: Trial
    started_at: datetime
    host: str | None = None
    """Where its server runs; None until it was launched."""
    process_group: int | None = None
    marker: str | None = None
    """What the server carries in its arguments and environment, to find it again."""
    ready_at: datetime | None = None
    """When its server was ready to serve; None until then."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else was amended."""


def entry_of(trial: Trial) -> dict[str, Any]:
    """What is written of a trial that begins now, as plain JSON values."""
    return {
        "trial": trial.number, "attempt": trial.attempt, "kind": trial.kind, "launch": trial.launch,
        "settings": trial.settings.as_dict(),
        "load_points": [[point.concurrency, point.repeat] for point in trial.load_points],
        "coordinates": dict(trial.coordinates), "started_at": datetime.now(UTC).isoformat(),
    }  # fmt: skip


def read_begun(path: Path) -> Begun:
    """Raises Unreadable when this is no file that `begin` wrote."""
    try:
        found = _begun(json.loads(path.read_bytes()))
        mistake = _mistake(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if mistake or path.name != f"{found.trial.name}.json":
        raise Unreadable(f"{path}: cannot be what was begun: {mistake or f'it says trial {found.trial.number}'}")
    return found


def _mistake(begun: Begun) -> str | None:
    """What cannot be in a begun trial; None when everything can."""
    trial = begun.trial
    whole = {"trial": trial.number, "launch": trial.launch, "attempt": trial.attempt - 1}
    whole |= {f"load_points[{i}]": n for i, p in enumerate(trial.load_points) for n in (p.concurrency - 1, p.repeat)}
    wrong = [f"{name} is {value!r}" for name, value in whole.items() if not _is_whole(value)]
    wrong += [] if trial.kind in get_args(Kind) else [f"kind is {trial.kind!r}"]
    wrong += [] if isinstance(trial.coordinates, Mapping) else [f"coordinates is {trial.coordinates!r}"]
    wrong += [] if begun.process_group is None or _is_whole(begun.process_group) else ["process_group is no number"]
    wrong += [f"{text!r} is no text" for text in (begun.host, begun.marker) if not isinstance(text, str | None)]
    blank = Settings()
    for name, knob in knobs().items():
        value = getattr(trial.settings, name)
        if value != getattr(blank, name) and (text := knob.mistake(value)):
            wrong.append(f"{name}: {text}")
    return wrong[0] if wrong else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _begun(entry: dict[str, Any]) -> Begun:
    given = dict(entry)
    trial = Trial(
        number=given.pop("trial"), settings=Settings.from_dict(given.pop("settings")), kind=given.pop("kind"),
        load_points=tuple(LoadPoint(*point) for point in given.pop("load_points")), launch=given.pop("launch"),
        attempt=given.pop("attempt"), coordinates=given.pop("coordinates"),
    )  # fmt: skip
    known = {name: given.pop(name, None) for name in ("host", "process_group", "marker")}
    started_at = moment(given.pop("started_at"))
    if started_at is None:
        raise ValueError("started_at is no time")
    return Begun(trial=trial, started_at=started_at, **known, ready_at=moment(given.pop("ready_at", None)), facts=given)
