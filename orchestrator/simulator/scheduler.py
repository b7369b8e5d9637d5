"""Continuous batching in virtual time: which requests run in which step, how long it takes, how many tokens each gets.

Pure: `plan()` says what the next step is and how long it lasts, `finish()` books its tokens.  decoder.py drives it by the
clock; benchmarks and tests drive it with none.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.simulator.model import Performance


@dataclass(eq=False)
class Request:
    """One generation.  Its tokens and its accepted drafts depend on the prompt alone, so that they repeat across launches."""

    seed: int
    """From the prompt's text."""
    prompt_tokens: int
    output_tokens: int
    """How many tokens it will get: its natural length or max_new_tokens, whichever is less."""
    cached_tokens: int = 0
    level: float = 0.0
    """How much easier (in log-odds) its text is to guess than the middling one."""
    completion_tokens: int = 0
    verify_steps: int = 0
    correct_drafts: int = 0
    histogram: list[int] = field(default_factory=list)
    """Entry j: verify steps in which exactly j drafts were right."""
    survival: tuple[float, ...] = ()
    draw: random.Random = field(default_factory=random.Random)
    dropped: bool = False

    @property
    def finished(self) -> bool:
        return self.completion_tokens >= self.output_tokens

    @property
    def held_tokens(self) -> int:
        """KV cache it may come to need."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Step:
    kind: str
    """prefill or decode."""
    requests: tuple[Request, ...]
    seconds: float
    tokens: int = 0
    """Prompt tokens computed (prefill)."""


class Scheduler:
    """The batch of one server.  Prefill goes first, as in SGLang: new requests hold up the decoding of the others."""

    def __init__(
        self,
        performance: Performance,
        max_running: int,
        kv_tokens: int,
        chunked_prefill_tokens: int = 8192,
        captured_batch: int | None = None,
        seed: int = 0,
    ) -> None:
        self.performance = performance
        self.max_running = max_running
        self.kv_tokens = kv_tokens
        self.chunked_prefill_tokens = chunked_prefill_tokens
        self.captured_batch = captured_batch
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.held_tokens = 0
        self._jitter = random.Random(seed)  # noqa: S311 - noise, not secrets
        profile, speculative = performance.profile, performance.launch.speculative
        noise = profile.speculative_launch_noise if speculative else None
        self.speed = math.exp(self._jitter.gauss(0.0, profile.launch_noise if noise is None else noise))
        self._step_noise = profile.step_noise
        self._decode_ms: dict[int, float] = {}
        self._kv_ms_per_ktoken = performance.decode_ms(1, 1000.0) - performance.decode_ms(1)

    def submit(self, request: Request) -> None:
        request.survival = self.performance.survival(request.level)
        request.draw = random.Random(request.seed)  # noqa: S311 - repeatable on purpose
        self.waiting.append(request)

    def drop(self, request: Request) -> None:
        """Its client is gone: it leaves the queue now, the batch after the step that runs."""
        request.dropped = True
        if request in self.waiting:
            self.waiting.remove(request)

    def used_kv_tokens(self) -> int:
        return sum(request.prompt_tokens + request.completion_tokens for request in self.running)

    def cuda_graph(self, batch: int) -> bool:
        """Whether a decode step of this batch runs in a captured graph."""
        return self.performance.launch.cuda_graph and (self.captured_batch is None or batch <= self.captured_batch)

    def plan(self) -> Step | None:
        """The next step; None when there is nothing to do."""
        self._leave(request for request in self.running if request.dropped)
        admitted = self._admit()
        if admitted:
            tokens = sum(request.prompt_tokens - request.cached_tokens for request in admitted)
            chunks = max(1, math.ceil(tokens / self.chunked_prefill_tokens))
            prefill_ms = (
                self.performance.prefill_ms(tokens, len(admitted))
                + (chunks - 1) * self.performance.profile.step.prefill_ms
            )
            return Step("prefill", tuple(admitted), self._seconds(prefill_ms), tokens)
        if self.running:
            return Step("decode", tuple(self.running), self._seconds(self._decode(len(self.running))))
        return None

    def finish(self, step: Step) -> list[tuple[Request, int]]:
        """Book the step; the tokens each request got, in order.  Finished requests leave the batch."""
        produced = []
        if step.kind == "prefill":
            self.running += step.requests
        for request in step.requests:
            if not request.dropped:
                count = 1 if step.kind == "prefill" or not request.survival else self._verify(request)
                request.completion_tokens += count
                produced.append((request, count))
        self._leave(request for request in step.requests if request.finished or request.dropped)
        return produced

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        tokens = 0
        while self.waiting and len(self.running) + len(admitted) < self.max_running:
            request = self.waiting[0]
            fits = self.held_tokens + request.held_tokens <= self.kv_tokens
            alone = not self.running and not admitted
            fresh = request.prompt_tokens - request.cached_tokens
            if not (fits or alone) or (admitted and tokens + fresh > self.chunked_prefill_tokens):
                break
            self.waiting.popleft()
            self.held_tokens += request.held_tokens
            tokens += fresh
            admitted.append(request)
        return admitted

    def _leave(self, leaving: Iterable[Request]) -> None:
        gone = list(leaving)
        if gone:
            self.held_tokens -= sum(request.held_tokens for request in gone)
            self.running = [request for request in self.running if request not in gone]

    def _verify(self, request: Request) -> int:
        """Accepted drafts + 1: one draw against the survival chances, cut where the answer ends."""
        chance, right = request.draw.random(), 0
        for survived in request.survival:
            if chance >= survived:
                break
            right += 1
        right = min(right, request.output_tokens - request.completion_tokens - 1)
        request.verify_steps += 1
        request.correct_drafts += right
        if right >= len(request.histogram):
            request.histogram += [0] * (right + 1 - len(request.histogram))
        request.histogram[right] += 1
        return right + 1

    def _decode(self, batch: int) -> float:
        if batch not in self._decode_ms:
            slow = self.performance.profile.step.no_graph_factor if self._fell_back(batch) else 1.0
            self._decode_ms[batch] = slow * self.performance.decode_ms(batch)
        return self._decode_ms[batch] + self._kv_ms_per_ktoken * self.used_kv_tokens() / 1000.0

    def _fell_back(self, batch: int) -> bool:
        return self.performance.launch.cuda_graph and not self.cuda_graph(batch)

    def _seconds(self, milliseconds: float) -> float:
        return milliseconds / 1000.0 / self.speed * math.exp(self._jitter.gauss(0.0, self._step_noise))
