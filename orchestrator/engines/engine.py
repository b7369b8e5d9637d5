"""The engine contract: an Engine runs a trial on a GpuSet and tells what happened as events.

A `Dialect` is what differs between servers: command line, environment, reading its info and its log.  `ServedEngine`
is the one flow all served engines share: launch, prove it is ours, measure each load point, stop, prove it is gone.
Not here: what a mishap means for the trial (worker.py), processes (server.py), load (load.py).
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from orchestrator.engines.decode_log import DecodeLog
from orchestrator.engines.environment import inherited
from orchestrator.engines.imports import Imports
from orchestrator.engines.launching import Departure, Launching
from orchestrator.events import Event, Launched, OutputsChecked, Progress
from orchestrator.gpus import PCI_ORDER, GpuSet
from orchestrator.measuring.bench_serving import BenchServing
from orchestrator.measuring.load import measure
from orchestrator.measuring.lossless import PROMPTS, CheckFailed, OutputCheck
from orchestrator.measuring.workload import PromptBook, workload_key
from orchestrator.plan import RANDOM, Plan
from orchestrator.serving.ports import free_port
from orchestrator.serving.processes import MARKER, OWNER, VISIBLE
from orchestrator.serving.server import Launch, Server, Teardown
from orchestrator.telemetry import Seen, Telemetry
from results.failure import FailureKind, Stage
from results.measurement import Flag
from results.record import Origin, Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial


@dataclass(frozen=True)
class Diagnosis:
    """What a dead server's log says."""

    kind: FailureKind
    stage: Stage
    message: str


class Dialect(Protocol):
    """How to talk to one kind of server."""

    name: str
    environment: Mapping[str, str]
    """What its servers need in their environment, beside what is passed on and `engine.env`."""

    @property
    def simulated(self) -> bool:
        """Whether a performance model answers, and no GPU."""

    @property
    def version(self) -> str:
        """Version of the installed engine."""

    @property
    def target(self) -> str:
        """The target model as the rows name it."""

    def argv(self, settings: Settings, port: int, marker: str, nccl_port: int | None = None) -> list[str]:
        """The command line; without an `nccl_port`, one that is free now."""

    def imports(self, settings: Settings) -> Imports | str:
        """What a server of these settings and its children import; or why that is not known."""

    def as_run(self, info: Mapping[str, Any], asked: Settings) -> Settings:
        """What the server says it runs, from its /server_info."""

    def running_limit(self, info: Mapping[str, Any]) -> int | None:
        """Requests the server really decodes at once."""

    def stage(self, log: str) -> Stage:
        """The last stage whose milestone the log shows."""

    def diagnose(self, log: str, returncode: int | None) -> Diagnosis: ...

    def decoding(self, log: str) -> DecodeLog:
        """What this piece of log says of the decoding."""


class Engine(Protocol):
    def run(self, trial: Trial, gpus: GpuSet, stopping: threading.Event, enough: threading.Event) -> Iterator[Event]:
        """Run a trial.  `enough` set: stop after this load point; `stopping` set: stop now (raises Interrupted)."""


class ServedEngine:
    """Launches a server per trial and measures it over HTTP."""

    def __init__(
        self, plan: Plan, run: RunDir, dialect: Dialect, prompts: PromptBook, watch: Sequence[int] = ()
    ) -> None:
        self.dialect = dialect
        self.teardown: Teardown | None = None
        """Of the last server; set whatever ended the trial."""
        self._plan = plan
        self._run = run
        self._prompts = prompts
        self._workload = workload_key(plan.workload)
        self._watch = watch
        self._outputs = OutputCheck(run.outputs_dir, plan.deadlines.request_s)
        self.launching = Launching(plan, run, dialect, watch)
        self._departures: dict[int, Departure] = {}
        """Of the trial that ran last, by its number."""
        self._host = os.uname().nodename

    def run(self, trial: Trial, gpus: GpuSet, stopping: threading.Event, enough: threading.Event) -> Iterator[Event]:
        self.teardown = None
        departure = self.launching.depart(trial, self._launch(trial, gpus), gpus, stopping)
        self._departures = {trial.number: departure}
        launch = departure.launch
        server = Server(launch, self._plan.deadlines, stopping, self._watch, standby=departure.standby)
        started = time.monotonic()
        try:
            with server:
                yield Launched(trial.number, self._host, server.process_group, launch.marker, gpus.ids)
                departure.left(server)
                self.launching.prepare(trial, departure)
                info = server.wait_ready(on_log=departure.hear)
                launch_s = time.monotonic() - started
                departure.arrived()
                yield Progress(trial.number, Stage.SERVING, f"ready in {launch_s:.1f} s, launched {departure.how}")
                self.launching.hold(stopping)
                settings = self.dialect.as_run(info, trial.settings)
                origin = self.origin(trial, gpus, argv=launch.argv)
                for point in trial.load_points:
                    if enough.is_set():
                        return
                    bench = self._bench(launch.environment)
                    record = self._record(
                        trial, settings, info, point, server.url, launch.log, gpus, stopping, server.check, bench
                    )
                    yield dataclasses.replace(record, origin=origin, launch_s=launch_s)
                yield from self._outputs_checked(trial, server.url)
        finally:
            departure.left(server)
            self.teardown = server.stop()
            if enough.is_set() or stopping.is_set():
                self.launching.close()

    def close(self) -> None:
        """Nothing more is launched: end the standby, if one waits."""
        self.launching.close()

    def _outputs_checked(self, trial: Trial, url: str) -> Iterator[Event]:
        """A finalist's greedy answers are taken; a plain server after it re-scores them."""
        scores = self._outputs.waits and not trial.settings.speculative
        if not scores and trial.kind != "finalist":
            return
        point = LoadPoint(max(self._plan.workload.concurrency), 0)
        texts = self._prompts.for_point(point).measured[:PROMPTS]
        try:
            if scores:
                yield from (OutputsChecked(number, seen) for number, seen in self._outputs.score(url, texts))
            else:
                self._outputs.take(trial.number, url, texts)
        except CheckFailed as error:
            yield Progress(trial.number, Stage.SERVING, f"outputs not checked: {error}")

    def origin(self, trial: Trial, gpus: GpuSet, argv: tuple[str, ...] = ()) -> Origin:
        drafter, departure = trial.settings.drafter, self._departures.get(trial.number)
        return Origin(
            run=self._run.path.name, engine=self.dialect.name, engine_version=self.dialect.version,
            simulated=self.dialect.simulated, host=self._host, gpus=gpus.ids, gpu_name=gpus.name,
            driver_version=gpus.driver_version, target=self.dialect.target, workload=self._workload, argv=argv,
            drafter_hash=config_hash(self._plan.drafters[drafter]) if drafter in self._plan.drafters else None,
            log=str(self._run.server_log(trial.name, trial.attempt).relative_to(self._run.path)),
            launch_mode=departure.asked if departure else None, launched=departure.how if departure else None,
            standby_s=departure.standby_s if departure else None,
        )  # fmt: skip

    def _record(
        self, trial: Trial, settings: Settings, info: Mapping[str, Any], point: LoadPoint, url: str, log: Path,
        gpus: GpuSet, stopping: threading.Event, check: Callable[[], None] | None = None,
        bench: BenchServing | None = None,
    ) -> Record:  # fmt: skip
        """Measure one load point on a server that runs, with what its GPUs and its log say meanwhile."""
        began, mark, telemetry = datetime.now(UTC), log.stat().st_size, Telemetry(gpus)
        measurement, flags = measure(
            url, self._prompts.for_point(point), self._plan.workload, point, self._plan.deadlines.request_s,
            check=check, stopping=stopping, around=telemetry, bench=bench,
        )  # fmt: skip
        seen, decoding = telemetry.seen(), self.dialect.decoding(_since(log, mark))
        measurement = dataclasses.replace(
            measurement,
            **seen.figures(measurement.output_tokens),
            graph_off_share=decoding.graph_off_share,
            retracted_requests=decoding.retracted,
            server_output_tok_s=decoding.output_tok_s or measurement.server_output_tok_s,
        )
        flags = (*flags, *self._flags(trial, settings, info, point.concurrency, decoding, seen))
        return Record.of(
            trial, self.origin(trial, gpus), settings=settings, point=point, measurement=measurement,
            flags=tuple(dict.fromkeys(flags)), started_at=began,
        )  # fmt: skip

    def _launch(self, trial: Trial, gpus: GpuSet) -> Launch:
        host = self._plan.engine.host
        port = free_port(host)
        marker = f"{self._run.marker}/{trial.name}/{trial.attempt}-{uuid.uuid4().hex[:8]}"
        log = self._run.server_log(trial.name, trial.attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        return Launch(
            argv=tuple(self.dialect.argv(trial.settings, port, marker)),
            environment=self._environment(gpus) | {MARKER: marker},
            log=log, host=host, port=port, marker=marker,
        )  # fmt: skip

    def _environment(self, gpus: GpuSet) -> dict[str, str]:
        ours = {OWNER: str(os.getpid())} | ({VISIBLE: ",".join(gpus.ids), **PCI_ORDER} if gpus.ids else {})
        return {**inherited(), "PYTHONUNBUFFERED": "1", **self.dialect.environment, **self._plan.engine.env, **ours}

    def _bench(self, environment: Mapping[str, str]) -> BenchServing | None:
        """Whoever sends the requests in our client's stead; it carries the marker of the server's launch."""
        if self._plan.workload.client == "own":
            return None
        return BenchServing(str(self._plan.engine.python), environment, self.dialect.target)

    def _flags(
        self, trial: Trial, ran: Settings, info: Mapping[str, Any], concurrency: int, decoding: DecodeLog, seen: Seen
    ) -> list[Flag]:
        limit = self.dialect.running_limit(info)
        too_few = limit is not None and limit < concurrency
        found = {
            Flag.CAPACITY_CLAMPED: too_few or decoding.clamped_below(concurrency),
            Flag.GRAPH_FALLBACK: ran.cuda_graph and decoding.outside_graphs,
            Flag.RETRACTED: decoding.retracted > 0,
            Flag.THROTTLED: seen.throttled,
            Flag.RANDOM_PROMPTS: ran.speculative and self._plan.workload.prompts == RANDOM,
            Flag.NO_CHAT_TEMPLATE: ran.speculative and self._prompts.template is None and not self.dialect.simulated,
            Flag.SETTINGS_CHANGED: _differs(trial.settings, ran),
            Flag.SIMULATED_ACCEPTANCE: "SGLANG_SIMULATE_ACC_LEN" in self._plan.engine.env,
        }
        return [flag for flag, holds in found.items() if holds]


def _since(log: Path, mark: int) -> str:
    """What was written to a log after its first `mark` bytes."""
    with log.open("rb") as lines:
        lines.seek(mark)
        return lines.read().decode(errors="replace")


def _differs(asked: Settings, ran: Settings) -> bool:
    """Whether a value that was asked for is not the one that ran."""
    ran_values = ran.as_dict()
    return any(value is not None and ran_values.get(name) != value for name, value in asked.as_dict().items())


def config_hash(directory: str) -> str | None:
    """Twelve hex digits of a checkpoint's config.json; None when it has none on this disk."""
    import hashlib

    try:
        return hashlib.sha256((Path(directory) / "config.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return None
