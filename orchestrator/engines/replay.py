"""Replay: a sweep over rows that were measured before; no servers, whole sweeps in seconds.

A launch of settings that were recorded is answered with the rows of one recorded launch of them, together, so that what
belongs to a launch stays together; each recorded launch comes once in a random order before any comes again.  Nothing is
interpolated and no noise is made up: settings that were not recorded are left out of the space, those recorded once
repeat their figures (which count once, results/sample.py), failures fail as they did, and seconds held are the recorded ones.  A recording is a run directory,
a folder of Parquet files, one such file, or JSON lines (lines.py).  Not here: what is measured (engine.py).
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from orchestrator.engines.lines import read_lines
from orchestrator.engines.sglang import SGLang
from orchestrator.errors import MachineError
from orchestrator.events import Event, TrialEnded
from orchestrator.plan import Plan
from results.counted import counted
from results.failure import Failure, FailureKind, Stage
from results.ledger import read_records
from results.record import Origin, Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import Trial

NOT_RECORDED = "these settings are not in the recording"


@dataclass(frozen=True)
class Recording:
    """What was recorded: a list of launches for each settings key, each launch its rows in the order of their load points."""

    launches: dict[str, list[list[Record]]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Recording:
        grouped: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
        for record in records:
            grouped[record.origin.run, record.trial, record.attempt].append(record)
        launches: dict[str, list[list[Record]]] = defaultdict(list)
        for rows in grouped.values():
            ordered = sorted(rows, key=lambda r: (not r.measured, r.point.concurrency if r.point else 0))
            launches[rows[0].asked.key].append(ordered)
        return cls(dict(launches))

    @classmethod
    def at(cls, path: Path) -> Recording:
        """Raises MachineError when there are no rows, or a line of JSON lines cannot be read."""
        records = read_lines(path) if path.suffix == ".jsonl" else read_records(path)
        if not records:
            raise MachineError(f"engine.recording: {path} has no rows to replay.")
        return cls.of(records)

    def __str__(self) -> str:
        """How much there is, and of which drafters, for a person."""
        drafters = {launches[0][0].asked.drafter for launches in self.launches.values()} - {None}
        return f"{counted(len(self.launches), 'setting')} (drafters: {', '.join(sorted(map(str, drafters))) or 'none'})"

    def has(self, settings: Settings) -> bool:
        return settings.key in self.launches

    @property
    def first(self) -> Record:
        return next(iter(self.launches.values()))[0][0]


class Replay(SGLang):
    """The recorded engine's words: its version and its target."""

    name = "replay"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.recording_path = Path(str(plan.engine.recording))

    @cached_property
    def recording(self) -> Recording:
        return Recording.at(self.recording_path)

    @cached_property
    def version(self) -> str:
        return self.recording.first.origin.engine_version

    @property
    def simulated(self) -> bool:
        return self.recording.first.origin.simulated

    @property
    def target(self) -> str:
        return self.recording.first.origin.target


class ReplayPool:
    """Answers one trial after the other from the recording."""

    size = 1
    spent = False

    def __init__(self, plan: Plan, run: RunDir) -> None:
        self._recording = Replay(plan).recording
        self._run = run
        self._random = random.Random(plan.sampler.seed)  # noqa: S311 - an order, not secrets
        self._left: dict[str, list[list[Record]]] = {}
        self._stop = threading.Event()

    def run(self, draw: Callable[[str], Trial | None]) -> Iterator[Event]:
        while not self._stop.is_set() and (trial := draw("")) is not None:
            yield from self._answered(trial)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self, now: bool) -> None:  # noqa: ARG002 - a trial is over at once
        self._stop.set()

    def close(self) -> None:
        pass

    def _answered(self, trial: Trial) -> Iterator[Event]:
        if not self._recording.has(trial.settings):
            nobody = dataclasses.replace(self._origin(self._recording.first), recorded=None)
            yield Record.of(trial, nobody, failure=_not_recorded())
            yield TrialEnded(trial.number, complete=True, held_s=0.0)
            return
        launch = self._launch(trial.settings)
        held_s, failure = 0.0, None
        for recorded in launch:
            held_s = max(held_s, recorded.launch_s or 0.0)
            if recorded.failure is not None:
                failure = recorded.failure
                yield Record.of(trial, self._origin(recorded), failure=failure)
            elif recorded.point in trial.load_points:
                yield self._again(recorded, trial)
        held_s += sum(r.measurement.measure_s or 0.0 for r in launch if r.measurement is not None)
        over = failure is None or failure.kind.over(trial.failures + 1)
        yield TrialEnded(
            trial.number, complete=over, held_s=held_s, gpus=launch[0].origin.gpus,
            retry=failure is not None and failure.kind.retried and not over,
        )  # fmt: skip

    def _launch(self, settings: Settings) -> list[Record]:
        left = self._left.get(settings.key)
        if not left:
            recorded = self._recording.launches[settings.key]
            left = self._left[settings.key] = self._random.sample(recorded, len(recorded))
        return left.pop()

    def _again(self, recorded: Record, trial: Trial) -> Record:
        return dataclasses.replace(
            recorded, trial=trial.number, attempt=trial.attempt, kind=trial.kind, launch=trial.launch,
            asked=trial.settings, origin=self._origin(recorded), started_at=datetime.now(UTC),
        )  # fmt: skip

    def _origin(self, recorded: Record) -> Origin:
        """A replay of a replay answers with what was recorded first."""
        here = recorded.origin.recorded or f"{recorded.origin.run}/{recorded.trial}/{recorded.attempt}"
        return dataclasses.replace(recorded.origin, run=self._run.path.name, engine="replay", log="", recorded=here)


def _not_recorded() -> Failure:
    return Failure.of(FailureKind.CONFIG_ILLEGAL, Stage.PREFLIGHT, NOT_RECORDED)
