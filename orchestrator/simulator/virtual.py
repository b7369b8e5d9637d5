"""A load point without a clock: the same scheduler, driven in virtual time by a closed loop of streams.

What a simulated server shows over HTTP, noise and network left out, in milliseconds instead of seconds; for fitting a
profile and for tests of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.simulator.model import Performance
from orchestrator.simulator.scheduler import Request, Scheduler


@dataclass(frozen=True)
class VirtualPoint:
    output_tok_s: float
    acceptance_length: float
    """1 + correct drafts / verify steps over all requests; 1 on a plain server."""


def closed_loop(performance: Performance, concurrency: int, requests: Sequence[Request]) -> VirtualPoint:
    """`concurrency` streams; each sends its next request when its last has ended.  Without noise."""
    quiet = dataclasses.replace(performance.profile, launch_noise=0.0, speculative_launch_noise=0.0, step_noise=0.0)
    scheduler = Scheduler(dataclasses.replace(performance, profile=quiet), max_running=concurrency, kv_tokens=2**40)
    now, sent, ended = 0.0, 0, 0
    while ended < len(requests):
        while sent < len(requests) and sent - ended < concurrency:
            scheduler.submit(requests[sent])
            sent += 1
        step = scheduler.plan()
        if step is None:
            raise RuntimeError("nothing to do although requests are open")
        now += step.seconds
        ended += sum(request.finished for request, _ in scheduler.finish(step))
    steps = sum(request.verify_steps for request in requests)
    correct = sum(request.correct_drafts for request in requests)
    return VirtualPoint(
        output_tok_s=sum(request.completion_tokens for request in requests) / now,
        acceptance_length=1.0 + correct / steps if steps else 1.0,
    )
