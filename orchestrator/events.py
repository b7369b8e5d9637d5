"""Events: what a worker tells the sweep while it runs a trial.  `results.record.Record` is the third kind of event.

Not here: how they travel (pool.py), what is done about them (sweep.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from results.failure import Stage
from results.lossless import Lossless
from results.record import Record


@dataclass(frozen=True)
class Launched:
    """A server process was started; enough to find it again and end it if everything else dies."""

    trial: int
    host: str
    process_group: int
    marker: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """A trial reached a stage; `detail` is a few words for a person."""

    trial: int
    stage: Stage
    detail: str = ""


@dataclass(frozen=True)
class TrialEnded:
    """The server is gone and its GPUs were proven free, or `left_over` says what was not."""

    trial: int
    complete: bool
    """Every load point was measured or the trial failed for good; False: stopped in between, to be resumed."""
    held_s: float
    """Seconds the GPUs were held, from before the launch until the proof that they are free."""
    gpus: tuple[str, ...] = ()
    left_over: tuple[str, ...] = field(default_factory=tuple)
    worker_lost: bool = False
    """Nobody could prove anything: its worker or its machine went away, and its servers end by their guards."""
    retry: bool = False
    """It ended by the machine's fault and may be tried once more."""


@dataclass(frozen=True)
class OutputsChecked:
    """A plain server re-scored the greedy answers of `trial`, a finalist that ran before on the same GPU set."""

    trial: int
    lossless: Lossless


Event = Record | Launched | Progress | TrialEnded | OutputsChecked
