"""Trial: one server launch that was decided on, and the load points to measure on it.

A launch costs minutes and a load point seconds, so one trial carries many load points.  The key of a point is
(settings key, launch, workload, concurrency, repeat).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sweeps.settings import Settings

Kind = Literal["baseline", "trial", "finalist"]


@dataclass(frozen=True, order=True)
class LoadPoint:
    """One load put on a running server: `concurrency` streams, for the `repeat`-th time (from 0)."""

    concurrency: int
    repeat: int


@dataclass(frozen=True)
class Trial:
    """A settled Settings to launch.

    `launch` is the ordinal of this launch among launches of the same settings (0 is the first; a deliberate relaunch
    takes the next).  `attempt` counts from 1 and grows when a trial that was interrupted is begun again.
    `coordinates` are the sampler's own, kept so that a resumed study can be told; empty for trials it did not propose.
    """

    number: int
    settings: Settings
    kind: Kind
    load_points: tuple[LoadPoint, ...]
    launch: int = 0
    attempt: int = 1
    failures: int = 0
    """How often it has ended by the machine's fault so far; an interruption is none."""
    coordinates: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Six digits, the name of everything this trial leaves on disk."""
        return f"{self.number:06d}"
