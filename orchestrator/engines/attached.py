"""A server that already runs, started by somebody else: it is measured as it stands, never launched and never stopped.

Its settings are what its /server_info says; its GPUs and its log are not ours to look at, so power, clocks, graphs and
retractions stay unknown.  Not here: servers of our own (engine.py).
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from orchestrator.engines.engine import ServedEngine
from orchestrator.engines.sglang import SGLang
from orchestrator.errors import MachineError
from orchestrator.events import Event, Progress
from orchestrator.gpus import GpuSet
from orchestrator.serving.processes import MARKER
from results.failure import Stage
from results.measurement import Flag
from results.record import Record
from sweeps.settings import Settings
from sweeps.trial import Trial

ANSWER_S = 30.0
LARGEST_INFO = 4 * 2**20


class Attached(SGLang):
    """What the server says of itself, asked once."""

    name = "attached"

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """Its /server_info.  Raises MachineError when there is none."""
        return server_info(str(self._plan.engine.url))

    @property
    def simulated(self) -> bool:
        """A server of our simulator says so itself."""
        return self.info.get("simulated") is True

    @property
    def version(self) -> str:
        return str(self.info.get("version") or "unknown")

    @property
    def target(self) -> str:
        return self._plan.target.path or str(self.info.get("model_path") or "")

    def _stays_open(self, _name: str, _asked: Settings) -> bool:
        """Nothing was asked: every knob has the value that runs."""
        return False


class AttachedEngine(ServedEngine):
    """Measures each load point of the one trial there is."""

    dialect: Attached

    def run(self, trial: Trial, gpus: GpuSet, stopping: threading.Event, enough: threading.Event) -> Iterator[Event]:
        url, info = str(self._plan.engine.url), self.dialect.info
        log = self._run.server_log(trial.name, trial.attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"Attached to {url}; its own log is wherever it was started.\n", encoding="utf-8")
        yield Progress(trial.number, Stage.SERVING, f"attached to {url}")
        settings = self.dialect.as_run(info, trial.settings)
        environment = self._environment(gpus) | {MARKER: f"{self._run.marker}/{trial.name}/{trial.attempt}"}
        for point in trial.load_points:
            if enough.is_set():
                return
            bench = self._bench(environment)
            record = self._record(trial, settings, info, point, url, log, gpus, stopping, bench=bench)
            yield self._as_found(record)

    def _as_found(self, record: Record) -> Record:
        """Nothing was asked of the server, so nothing was changed; what its log would say is not known."""
        assert record.measurement is not None
        measurement = dataclasses.replace(record.measurement, retracted_requests=None)
        flags = tuple(flag for flag in record.flags if flag is not Flag.SETTINGS_CHANGED)
        return dataclasses.replace(record, measurement=measurement, flags=flags)


def server_info(url: str) -> Mapping[str, Any]:
    """What a server at http://host:port says it runs.

    Raises:
        MachineError: none answers there, or what answers is no SGLang.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=ANSWER_S)
    try:
        connection.request("GET", "/server_info")
        info = json.loads(connection.getresponse().read(LARGEST_INFO))
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise MachineError(f"engine.url: no SGLang answers at {url}/server_info ({error})") from error
    finally:
        connection.close()
    if not isinstance(info, dict) or "internal_states" not in info:
        raise MachineError(f"engine.url: what answers at {url}/server_info is no SGLang")
    return info
