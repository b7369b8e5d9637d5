"""The decoder: the scheduler kept to the clock, handing each request's tokens to its client, counting and logging.

Steps follow an absolute schedule: each is due one step time after the last was due, so late wake-ups do not add up.
Not here: what a step does (scheduler.py), how answers are worded (answers.py), HTTP (endpoints.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

from orchestrator.simulator import console, speech
from orchestrator.simulator.answers import Generation
from orchestrator.simulator.console import log
from orchestrator.simulator.counters import Counters, Window
from orchestrator.simulator.faults import ECC_ERROR
from orchestrator.simulator.flags import ServerArgs
from orchestrator.simulator.model import Performance
from orchestrator.simulator.scheduler import Request, Scheduler, Step
from orchestrator.simulator.startup import Started, Startup

CATCH_UP_S = 0.5
"""How far the schedule may run ahead of a starved process; beyond it the lost time is lost."""


class Decoder:
    """All generations of one launch."""

    def __init__(self, startup: Startup, started: Started) -> None:
        self.args = args = startup.args
        self.profile = startup.profile
        self.faults = startup.faults
        self.started = started
        self.performance = Performance(self.profile, args.launch)
        self.kv_tokens = startup.kv_tokens(started.memory)
        self.scheduler = Scheduler(
            self.performance,
            max_running=started.max_running,
            kv_tokens=self.kv_tokens,
            chunked_prefill_tokens=args["chunked_prefill_size"],
            captured_batch=started.captured_batch,
            seed=_launch_seed(args),
        )
        self.counters = Counters()
        self.generations: dict[Request, Generation] = {}
        self._cached_blocks: set[bytes] = set()
        self._wake = asyncio.Event()
        self._finished = 0
        self._interval = Window()
        self._interval_tokens = 0
        self._decode_steps = 0
        self._interval_began = time.monotonic()

    @property
    def running(self) -> int:
        """Requests that are being prefilled or decoded."""
        return len(self.generations) - len(self.scheduler.waiting)

    def begin(self, generation: Generation) -> None:
        """Take a generation in: its request joins the queue; it ends itself when its client goes away."""
        self.generations[generation.request] = generation
        generation.exchange.on_disconnect = lambda: self._disconnected(generation)
        if generation.stream:
            generation.exchange.open_stream()
        self.scheduler.submit(generation.request)
        self._wake.set()

    def abort(self, rid: str | None) -> None:
        """End the generation of this id, or all of them (None); their clients get what was said so far."""
        for generation in list(self.generations.values()):
            if rid is None or generation.rid == rid:
                generation.aborted = True
                self.scheduler.drop(generation.request)
                self._end(generation, time.time())

    def flush(self) -> bool:
        """Empty the prefix cache and the acceptance totals; False, and nothing is done, while requests are open."""
        if self.generations:
            return False
        self._cached_blocks.clear()
        self.counters.lifetime, self.counters.last, self._interval = Window(), Window(), Window()
        return True

    def cached_tokens(self, prompt: str, tokens: int) -> int:
        """Prompt tokens found in the prefix cache; the prompt's blocks are in it from now on."""
        if self.args["disable_radix_cache"]:
            return 0
        hashes = speech.block_hashes(prompt)
        found = next((n for n, block in enumerate(hashes) if block not in self._cached_blocks), len(hashes))
        self._cached_blocks.update(hashes)
        return min(found * speech.BLOCK_TOKENS, tokens - 1)

    async def run(self) -> None:
        """One step after the other for as long as the process lives."""
        if self.faults.find("hang", "serving"):
            await asyncio.Event().wait()
        clock = asyncio.get_running_loop().time
        late = self.faults.find("slow", "serving")
        due = clock()
        while True:
            step = self.scheduler.plan()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = clock()
                continue
            self._fail_if_told(step)
            due = max(due, clock() - CATCH_UP_S) + step.seconds
            if late and step.kind == "prefill":
                due += late.amount
            await asyncio.sleep(max(0.0, due - clock()))
            self._book(step)

    def _fail_if_told(self, step: Step) -> None:
        if step.kind != "decode":
            return
        crash, oom = self.faults.find("crash", "serving"), self.faults.find("oom", "serving")
        if crash and self._finished >= crash.amount:
            console.scheduler_exception("RuntimeError: simulated crash in serving", serving=True)
        if self.faults.find("sick", "serving"):
            console.scheduler_exception(ECC_ERROR, serving=True)
        tokens = len(step.requests) * self.args.launch.num_draft_tokens
        needed = self.profile.memory.activation_gib_per_ktoken * tokens / 1000.0
        if oom or needed > self.started.memory.free_gib:
            console.scheduler_exception(console.no_memory_left(self.profile.memory.memory_gib), serving=True)

    def _book(self, step: Step) -> None:
        now = time.time()
        produced = self.scheduler.finish(step)
        for request, _ in produced:
            if generation := self.generations.get(request):
                self._emit(generation, now)
        tokens = sum(count for _, count in produced)
        self.counters.generation_tokens += tokens
        if step.kind == "prefill":
            self._log_prefill(step)
        else:
            self.counters.itl_s.add(step.seconds / max(1.0, tokens / max(1, len(produced))), tokens)
            self._count_decode(step, tokens, len(produced))

    def _emit(self, generation: Generation, now: float) -> None:
        request = generation.request
        if generation.first_token == 0.0:
            generation.first_token = now
            self.counters.ttft_s.add(now - generation.received)
        finished = request.finished
        if finished:
            self._end(generation, now)
        elif generation.stream:
            generation.exchange.write(generation.form.chunk(generation, finished=False))
            generation.sent_tokens = request.completion_tokens

    def _end(self, generation: Generation, now: float) -> None:
        """The last words of a generation, finished or aborted."""
        request = generation.request
        self.generations.pop(request, None)
        self._finished += 1
        self.counters.verify_calls += request.verify_steps
        self.counters.e2e_s.add(now - generation.received)
        generation.exchange.on_disconnect = None
        if generation.stream:
            generation.exchange.close_stream(generation.form.chunk(generation, finished=True))
        else:
            generation.exchange.send(200, generation.form.whole(generation))

    def _count_decode(self, step: Step, tokens: int, requests: int) -> None:
        if self.args.launch.speculative:
            self._interval.add(Window(requests, tokens))
        self._interval_tokens += tokens
        self._decode_steps += 1
        if self._decode_steps % max(1, self.args["decode_log_interval"]):
            return
        now = time.monotonic()
        self.counters.gen_throughput = self._interval_tokens / max(1e-9, now - self._interval_began)
        self.counters.lifetime.add(self._interval)
        self.counters.last = self._interval
        accepted = ""
        if self.args.launch.speculative:
            length = self._interval.acceptance_length
            rate = self._interval.acceptance_rate(self.args.launch.num_draft_tokens)
            accepted = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        used = self.scheduler.used_kv_tokens()
        log(
            f"Decode batch, #running-req: {len(step.requests)}, #token: {used}, token usage: {used / self.kv_tokens:.2f}, "
            f"{accepted}cuda graph: {self.scheduler.cuda_graph(len(step.requests))}, "
            f"gen throughput (token/s): {self.counters.gen_throughput:.2f}, #queue-req: {len(self.scheduler.waiting)}"
        )
        self._interval, self._interval_tokens, self._interval_began = Window(), 0, now

    def _log_prefill(self, step: Step) -> None:
        cached = sum(request.cached_tokens for request in step.requests)
        self.counters.prompt_tokens += step.tokens + cached
        self.counters.cached_tokens += cached
        usage = self.scheduler.used_kv_tokens() / self.kv_tokens
        log(
            f"Prefill batch, #new-seq: {len(step.requests)}, #new-token: {step.tokens}, #cached-token: {cached}, "
            f"token usage: {usage:.2f}, #running-req: {len(self.scheduler.running)}, "
            f"#queue-req: {len(self.scheduler.waiting)}, #pending-token: 0, cuda graph: True, "
            f"input throughput (token/s): {step.tokens / max(step.seconds, 1e-9):.2f}"
        )

    def _disconnected(self, generation: Generation) -> None:
        self.generations.pop(generation.request, None)
        self.scheduler.drop(generation.request)


def _launch_seed(args: ServerArgs) -> int:
    """Noise of this launch: given by --random-seed and the launch's own values, drawn anew without a seed."""
    if args["random_seed"] is None:
        return int.from_bytes(os.urandom(8), "big")
    text = f"{args['random_seed']} {args.launch}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
