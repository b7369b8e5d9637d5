"""A load point without a clock: the same scheduler, driven in virtual time by a closed loop of streams.

What a simulated server shows over HTTP, noise and network left out, in milliseconds instead of seconds; for fitting a
profile, for tests of the model, and as the truth a search is judged by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.simulator import speech
from orchestrator.simulator.model import Performance
from orchestrator.simulator.scheduler import Request, Scheduler


@dataclass(frozen=True)
class VirtualPoint:
    output_tok_s: float
    acceptance_length: float
    """1 + correct drafts / verify steps over all requests; 1 on a plain server."""
    ttft_ms: float
    """Median."""
    tpot_ms: float
    """Median of the time per token after the first."""


def prompt_requests(performance: Performance, prompts: Sequence[str], output_tokens: int) -> list[Request]:
    """The requests that these prompts make at temperature 0."""
    requests = []
    for prompt in prompts:
        seed = speech.prompt_hash(prompt)
        natural = speech.natural_tokens(seed, performance.profile)
        tokens = speech.prompt_tokens(prompt)
        requests.append(speech.request_for(seed, prompt, tokens, output_tokens, natural, performance))
    return requests


def closed_loop(performance: Performance, concurrency: int, requests: Sequence[Request]) -> VirtualPoint:
    """`concurrency` streams; each sends its next request when its last has ended.  Without noise."""
    quiet = dataclasses.replace(performance.profile, launch_noise=0.0, speculative_launch_noise=0.0, step_noise=0.0)
    scheduler = Scheduler(dataclasses.replace(performance, profile=quiet), max_running=concurrency, kv_tokens=2**40)
    now, sent = 0.0, 0
    began: dict[Request, float] = {}
    first: dict[Request, float] = {}
    ended: dict[Request, float] = {}
    while len(ended) < len(requests):
        while sent < len(requests) and sent - len(ended) < concurrency:
            began[requests[sent]] = now
            scheduler.submit(requests[sent])
            sent += 1
        step = scheduler.plan()
        if step is None:
            raise RuntimeError("nothing to do although requests are open")
        now += step.seconds
        for request, _ in scheduler.finish(step):
            first.setdefault(request, now)
            if request.finished:
                ended[request] = now
    steps = sum(request.verify_steps for request in requests)
    correct = sum(request.correct_drafts for request in requests)
    ttft = sorted(first[request] - began[request] for request in requests)
    tpot = sorted((ended[r] - first[r]) / max(1, r.completion_tokens - 1) for r in requests)
    return VirtualPoint(
        output_tok_s=sum(request.completion_tokens for request in requests) / now,
        acceptance_length=1.0 + correct / steps if steps else 1.0,
        ttft_ms=1000.0 * ttft[len(ttft) // 2],
        tpot_ms=1000.0 * tpot[len(tpot) // 2],
    )
