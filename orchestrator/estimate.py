"""Estimate: how long a sweep takes and how many GPU-hours, before anything is launched.

A launch takes starting, measuring and stopping.  How long a start takes and how fast a stream is comes from the rows of
`warm_start` where there are some, from the profile of a simulated engine, and otherwise from a guess that says it is one.
A replay does none of the three.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from orchestrator.facts import cards_of
from orchestrator.measuring.load import warm_up_tokens
from orchestrator.measuring.workload import WARM_UP_PASSES
from orchestrator.plan import Plan
from orchestrator.simulator.model import Launch, Performance
from orchestrator.simulator.profile import load_profile
from orchestrator.trials import load_points
from results.counted import counted
from results.ledger import read_records
from results.record import Record

START_S = 90.0
"""A guess: an 8 B model on one GPU with warm caches takes 60 to 120 s; half a terabyte from a slow disk takes half an hour."""
STOP_S = 10.0
"""A guess: SGLang needs 5 to 6 s to end, the driver a moment to give the memory back."""
STREAM_TOK_S = 40.0
"""A guess: tokens per second of each stream, whatever the load."""
OWN_START_S = 0.5
"""What a simulated server takes beside what its profile says."""


@dataclass(frozen=True)
class Pace:
    """How long things take on this engine."""

    start_s: float
    stop_s: float
    stream_tok_s: Mapping[int, float]
    """Concurrency → tokens per second of each stream."""
    source: str
    """Where the figures come from, for a person."""


REPLAYED = Pace(0.0, 0.0, {}, "recorded rows answer: nothing is started or measured")
"""Of a replay, however many streams."""


@dataclass(frozen=True)
class Estimate:
    launches: int
    """As many as the budget and the space allow, the final race included."""
    start_s: float
    measure_s: float
    """All load points of one launch."""
    stop_s: float
    source: str
    gpus_per_set: int
    gpu_sets: int | None
    """Launches at once; None: not known here, one is assumed."""

    @property
    def launch_s(self) -> float:
        return self.start_s + self.measure_s + self.stop_s

    @property
    def hours(self) -> float:
        return math.ceil(self.launches / (self.gpu_sets or 1)) * self.launch_s / 3600

    @property
    def gpu_hours(self) -> float:
        return self.launches * self.gpus_per_set * self.launch_s / 3600


def estimate(plan: Plan, distinct: int) -> Estimate:
    """Of a plan whose space comes to `distinct` launches."""
    pace = pace_of(plan)
    per_set = _gpus_per_set(plan)
    without_bound = Estimate(
        launches=distinct + plan.budget.finalists, start_s=pace.start_s, measure_s=_measure_s(plan, pace), stop_s=pace.stop_s,
        source=pace.source, gpus_per_set=per_set, gpu_sets=_gpu_sets(plan, per_set),
    )  # fmt: skip
    return _within_budget(plan, without_bound)


def pace_of(plan: Plan) -> Pace:
    if plan.engine.name == "simulated":
        return _simulated_pace(plan)
    if plan.engine.name == "replay":
        return REPLAYED
    records = [record for run in plan.warm_start if run.is_dir() for record in read_records(run)]
    return _measured_pace(plan, [record for record in records if record.measured]) or _guessed_pace(plan)


def _guessed_pace(plan: Plan) -> Pace:
    speeds = dict.fromkeys(plan.workload.concurrency, STREAM_TOK_S)
    if plan.engine.name == "attached":
        return Pace(0.0, 0.0, speeds, f"it runs already; guessed: {STREAM_TOK_S:.0f} tokens/s a stream")
    return Pace(START_S, STOP_S, speeds, f"guessed: {START_S:.0f} s to start, {STREAM_TOK_S:.0f} tokens/s a stream")


def _measured_pace(plan: Plan, records: list[Record]) -> Pace | None:
    """Medians over the rows; a load that was not measured has the speed of the nearest one that was."""
    starts = {(r.origin.run, r.trial): r.launch_s for r in records if r.launch_s is not None}
    speeds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.point and record.measurement and record.measurement.user_tok_s:
            speeds[record.point.concurrency].append(record.measurement.user_tok_s)
    if not starts or not speeds:
        return None
    nearest = {c: min(speeds, key=lambda known: abs(math.log(known / c))) for c in plan.workload.concurrency}
    return Pace(
        median(starts.values()), STOP_S, {c: median(speeds[known]) for c, known in nearest.items()},
        f"measured: {counted(len(starts), 'launch')} of warm_start",
    )  # fmt: skip


def _simulated_pace(plan: Plan) -> Pace:
    """Of the profile's plain server; speculation makes it faster or slower."""
    profile = load_profile(plan.engine.profile)
    start = profile.start
    plain = Performance(profile, Launch())
    return Pace(
        start.validate_s + start.weights_s + start.kv_pool_s + start.graph_capture_s + start.warm_up_s + OWN_START_S,
        profile.stop_s, {c: plain.output_tok_s(c) / c for c in plan.workload.concurrency}, f"profile {profile.name}",
    )  # fmt: skip


def _measure_s(plan: Plan, pace: Pace) -> float:
    """Every stream generates its tokens one request after the other, or as they come; warming up takes a few more."""
    if pace is REPLAYED:
        return 0.0
    work = plan.workload
    total = 0.0
    for point in load_points(plan):
        rounds = math.ceil(work.requests_at(point.concurrency) / point.concurrency)
        warm_up = WARM_UP_PASSES * warm_up_tokens(work, point.concurrency)
        speed = pace.stream_tok_s[point.concurrency]
        busy_s = rounds * work.output_tokens / speed
        total += warm_up / speed + max(busy_s, rounds / work.request_rate if work.request_rate else 0.0)
    return total


def _gpus_per_set(plan: Plan) -> int:
    if plan.cluster.gpus == "none" or plan.engine.name == "replay":
        return 0
    return max(int(size) for size in plan.space.domains["tp_size"].values())


def _gpu_sets(plan: Plan, per_set: int) -> int | None:
    known = _gpus_known(plan)
    return 1 if per_set == 0 else None if known is None else max(1, known // per_set)


def _gpus_known(plan: Plan) -> int | None:
    """How many GPUs the plan would have; None: not known here."""
    if not isinstance(plan.cluster.gpus, str) and plan.cluster.address == "local":
        return len(plan.cluster.gpus)
    if plan.engine.name == "simulated":
        return load_profile(plan.engine.profile).gpus
    cards = cards_of(plan)
    return len(cards) if cards else None


def _within_budget(plan: Plan, found: Estimate) -> Estimate:
    budget, launch_h = plan.budget, found.launch_s / 3600
    bounds = [found.launches]
    if budget.launches is not None:
        bounds.append(budget.launches)
    if budget.hours is not None and launch_h:
        bounds.append(math.ceil(budget.hours / launch_h) * (found.gpu_sets or 1))
    if budget.gpu_hours is not None and found.gpus_per_set:
        bounds.append(math.ceil(budget.gpu_hours / (launch_h * found.gpus_per_set)))
    return Estimate(**{**vars(found), "launches": min(bounds)})
