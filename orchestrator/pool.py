"""Pools: GPU sets at work.  A pool draws a trial whenever a GPU set is free and streams back what happens.

`RayPool` has one long-lived actor per GPU set, each holding its GPUs for as long as the sweep lasts; this is the only
file that imports Ray.  Not here: how a Ray of our own comes up and what it leaves (own_ray.py), whether a named one can be
joined (cluster.py), how many GPU sets there are (offers.py), what to run next (schedule.py), what a trial is (worker.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestrator.cluster import LOCAL
from orchestrator.errors import MachineError
from orchestrator.events import Event, TrialEnded
from orchestrator.gpus import GpuSet, discover
from orchestrator.offers import gpu_sets, own_gpus, per_set
from orchestrator.own_ray import Keeper, asked_twice, new_folder, remove, shown
from orchestrator.plan import Plan
from orchestrator.worker import OWNER_GONE, Worker
from results.failure import Failure, FailureKind, Stage
from results.files import RunDirProblem
from results.record import Origin, Record
from results.rundir import RunDir
from sweeps.trial import Trial

log = logging.getLogger(__name__)

WORKER_LOST = "the worker or its machine went away"
JOINS_WITHIN_S = 60.0
"""How long workers may take to come up where no other is at work, Ray's own notice of a lost machine included."""
STEP_S = 0.5
"""How long a stop may go unheard while workers come up."""

Draw = Callable[[str], Trial | None]
"""The next trial for the GPU set of this name; None when it has none now.  Asked again after every event until nothing
runs any more.  A worker that replaces a lost one on the same GPUs goes by the same name."""


class Pool(Protocol):
    @property
    def size(self) -> int:
        """How many trials run at once."""

    @property
    def spent(self) -> bool:
        """Whether no GPU set is left that could run anything."""

    @property
    def stopped(self) -> bool:
        """Whether a stop was asked for."""

    def run(self, draw: Draw) -> Iterator[Event]: ...

    def stop(self, now: bool) -> None:
        """Safe to call from a signal handler.  Not now: after the load point being measured."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Place:
    """Where a worker is; one that replaces it there has the same."""

    node: str
    """Ray's name of it."""
    gpus: GpuSet

    @property
    def gpu_set(self) -> str:
        """One word for its GPUs, not shared with any other place."""
        return f"{self.node}:{'+'.join(self.gpus.ids)}"


@dataclass
class _Running:
    trial: Trial
    events: Any
    """Ray's stream of references to events."""
    place: _Place
    began: float = field(default_factory=time.monotonic)


class RayPool:
    """Starts a Ray cluster of its own, or connects to a named one; never joins one that happens to run.

    Raises MachineError when Ray offers no GPU set of the size and kind that is asked for, or has none free.

    Args:
        asked_to_stop: Whether nobody wants the pool any more; asked while workers come up.
    """

    def __init__(self, plan: Plan, run: RunDir, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        import ray

        self._ray: Any = ray
        self._plan = plan
        self._run = run
        self._asked_to_stop = asked_to_stop
        self._keeper = Keeper()
        self._temp: Path | None = None
        self.spent = False
        self._stop = threading.Event()
        self._stop_now = threading.Event()
        self._joining: dict[Any, Any] = {}
        """Of each worker that is not up yet: the reference to its answer → the worker."""
        self._per_set = per_set(plan)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._start_ray()
            sets = gpu_sets(self._ray.nodes(), plan.cluster.accelerator, self._per_set)
            self._places = self._meet([self._actor() for _ in range(sets)])
            undo.pop_all()
        self.size = len(self._places)

    def _start_ray(self) -> None:
        """Ray's memory monitor stays out of it: it would end our small worker for what a server holds; the kernel picks the server."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        if self._plan.cluster.address != LOCAL:
            self._join(self._plan.cluster.address)
            return
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        gpus = own_gpus(self._plan) if self._per_set else []
        self._temp = new_folder(self._run)
        begun = partial(
            self._ray.init, address=LOCAL, num_gpus=len(gpus), num_cpus=max(4, os.cpu_count() or 4), _temp_dir=str(self._temp),
            object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
        with shown(gpus):
            self._keeper.begin(partial(asked_twice, begun))

    def _join(self, address: str) -> None:
        """A Ray that others run; that it answers was seen a moment ago (cluster.py)."""
        begun = partial(self._ray.init, address=address, log_to_driver=False, logging_level="ERROR")
        try:
            self._keeper.begin(begun)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise MachineError(f"cluster.address: the Ray at {address} could not be joined ({error}).") from error

    def _actor(self) -> Any:
        accelerator = self._plan.cluster.accelerator
        options: dict[str, Any] = {"num_gpus": self._per_set, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        if accelerator != "any":
            options["accelerator_type"] = accelerator
        remote = self._ray.remote(concurrency_groups={"control": 1})(_ActorWorker)
        return remote.options(**options).remote(self._plan, self._run, os.getpid(), os.uname().nodename)

    def _meet(self, actors: list[Any]) -> dict[Any, _Place]:
        """The workers that are up; those whose GPUs others hold are waited for a while, and join later: see `_joined`.

        Raises:
            MachineError: one could not start, or none is up.
        """
        self._joining = {actor.place.remote(): actor for actor in actors}
        met: dict[Any, _Place] = {}
        until = time.monotonic() + JOINS_WITHIN_S
        while self._joining and time.monotonic() < until and not self._asked_to_stop():
            up, _ = self._ray.wait(list(self._joining), num_returns=1, timeout=STEP_S)
            try:
                met |= {self._joining.pop(answer): self._ray.get(answer) for answer in up}
            except self._ray.exceptions.RayActorError as error:
                raise MachineError(f"a worker could not start: {error}") from error
        if self._joining and not self._asked_to_stop():
            self._tell_missing(len(met))
        return {actor: met[actor] for actor in actors if actor in met}

    def _tell_missing(self, up: int) -> None:
        """Raises MachineError when no worker is up."""
        free, total = (
            int(have.get("GPU", 0)) for have in (self._ray.available_resources(), self._ray.cluster_resources())
        )
        why = f"{len(self._joining)} of {up + len(self._joining)} workers are not up after {JOINS_WITHIN_S:.0f} s; each needs {self._per_set} GPUs on one machine, and {free} of Ray's {total} are free"
        if not up:
            raise MachineError(
                f"{why}. Wait for those who hold them, or end what does; ray status lists what there is."
            )
        self._run.journal.note("workers_missing", up=up, missing=len(self._joining), gpus_free=free)
        log.warning("%s. The sweep begins with %d; the others join when they come up.", why, up)

    def run(self, draw: Draw) -> Iterator[Event]:
        running: dict[Any, _Running] = {}
        idle = list(self._places)
        while True:
            idle += self._joined(0.0 if running or idle else JOINS_WITHIN_S)
            for actor in list(idle):
                if not self._stop.is_set() and (trial := draw(self._places[actor].gpu_set)) is not None:
                    idle.remove(actor)
                    events = actor.run.options(num_returns="streaming").remote(trial)
                    running[actor] = _Running(trial, events, self._places[actor])
            if not running:
                self.spent = not idle and not (self._stop.is_set() and self._joining)
                return
            self._pass_on_stop(running)
            for actor in self._ready(running):
                for event in self._next(running[actor]):
                    yield event
                    if isinstance(event, TrialEnded):
                        if OWNER_GONE in event.left_over:  # our own Ray is dead: nothing more can run here
                            self.spent = True
                            return
                        del running[actor]
                        idle += self._usable(actor, event)

    def _ready(self, running: dict[Any, _Running]) -> list[Any]:
        streams = {item.events: actor for actor, item in running.items()}
        done, _ = self._ray.wait(list(streams), num_returns=1, timeout=0.5)
        return [streams[stream] for stream in done]

    def _next(self, item: _Running) -> list[Event]:
        """The next event of a trial; a worker that went away becomes its failure and its end."""
        try:
            event = self._ray.get(next(item.events))
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunDirProblem):  # e.g. its disk is full: said as it is, without Ray's own words
                raise error.cause from None
            raise
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.OutOfMemoryError, StopIteration) as lost:
            return self._lost(item, f"{WORKER_LOST}: {lost}")
        if isinstance(event, TrialEnded) and OWNER_GONE in event.left_over and self._temp is None:
            return self._lost(item, f"{OWNER_GONE}, and this driver lives")
        return [event]

    def _lost(self, item: _Running, why: str) -> list[Event]:
        retry = not FailureKind.NODE_LOST.over(item.trial.failures + 1)
        ended = TrialEnded(
            item.trial.number, complete=not retry, held_s=time.monotonic() - item.began, gpus=item.place.gpus.ids,
            worker_lost=True, retry=retry,
        )  # fmt: skip
        return [lost_record(item.trial, self._plan, self._run, why), ended]

    def _usable(self, actor: Any, ended: TrialEnded) -> list[Any]:
        """The same worker after a clean end; none when its GPUs are not free, nor when it went away: see `_joined`."""
        if ended.worker_lost:
            self._replace(actor)
        return [] if ended.worker_lost or ended.left_over else [actor]

    def _replace(self, actor: Any) -> None:
        with suppress(ValueError):
            self._ray.kill(actor)
        self._places.pop(actor, None)
        fresh = self._actor()
        self._joining[fresh.place.remote()] = fresh

    def _joined(self, within_s: float) -> list[Any]:
        """Workers that were late or replace lost ones and are up now; waits for the first, as long as there is no other.

        Where a whole machine went away none comes up, and the others go on without.
        """
        if not self._joining or self._stop.is_set():
            return []
        up, _ = self._ray.wait(list(self._joining), num_returns=1, timeout=within_s)
        found = []
        for answer in up:
            actor = self._joining.pop(answer)
            try:
                self._places[actor] = self._ray.get(answer)
            except self._ray.exceptions.RayActorError:  # lost again before it was up
                self._replace(actor)
            else:
                found.append(actor)
        return found

    def _pass_on_stop(self, running: dict[Any, _Running]) -> None:
        if self._stop.is_set():
            for actor in running:
                actor.stop.options(concurrency_group="control").remote(self._stop_now.is_set())

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self, now: bool) -> None:
        self._stop.set()
        if now:
            self._stop_now.set()

    def close(self) -> None:
        self._ray.shutdown()
        self._keeper.end()
        if self._temp is not None:
            remove(self._temp)


class _ActorWorker:
    """A Worker inside a Ray actor: learns which GPUs it was given and whom to outlive not."""

    def __init__(self, plan: Plan, run: RunDir, driver_pid: int, driver_host: str) -> None:
        watch = [os.getppid()]
        if os.uname().nodename == driver_host:
            watch.append(driver_pid)
        self._gpus = _own_gpus(plan)
        self._worker = Worker(plan, run, self._gpus, watch)

    def place(self) -> _Place:
        import ray

        return _Place(ray.get_runtime_context().get_node_id(), self._gpus)

    def run(self, trial: Trial) -> Iterator[Event]:
        yield from self._worker.run(trial)

    def stop(self, now: bool) -> None:
        self._worker.enough.set()
        if now:
            self._worker.stopping.set()


def _own_gpus(plan: Plan) -> GpuSet:
    import ray

    ids = tuple(sorted(ray.get_runtime_context().get_accelerator_ids().get("GPU", [])))
    if plan.engine.name == "simulated":
        from orchestrator.simulator.profile import load_profile

        return GpuSet(ids, name=f"{load_profile(plan.engine.profile).gpu_name} (simulated)", pretend=True)
    if not ids:
        return GpuSet(())
    found = {gpu.id: gpu for gpu in discover(list(ids))}
    first = found[ids[0]]
    return GpuSet(ids, name=first.name, driver_version=first.driver_version)


def lost_record(trial: Trial, plan: Plan, run: RunDir, why: str) -> Record:
    """The row of a trial whose worker or machine went away."""
    origin = Origin(
        run=run.path.name, engine=plan.engine.name, engine_version="", simulated=plan.engine.name == "simulated",
        host="", gpus=(), gpu_name="", driver_version="", target=plan.target.path, workload="",
    )  # fmt: skip
    return Record.of(trial, origin, failure=Failure.of(FailureKind.NODE_LOST, Stage.SERVING, why))
