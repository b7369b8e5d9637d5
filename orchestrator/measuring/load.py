"""measure(): puts one load on a running server and times it from the client's side.

SGLang's native `/generate` with streaming.  Closed loop: `concurrency` streams, each sends its next request when the last has
ended; or requests at random times, at a rate (workload.arrival).  Tokens are the server's own count, never the client's; a chunk may carry several (speculation does so).
Not here: which prompts (workload.py), what a reply means (reply.py), starting or stopping the server (server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from orchestrator.measuring.bench_serving import BenchServing
from orchestrator.measuring.connections import Clock, Connections
from orchestrator.measuring.faults import HangError, MeasureError, Stopped
from orchestrator.measuring.figures import flags_of, flags_of_requests, percentile, summarise
from orchestrator.measuring.reply import Finished, Reply
from orchestrator.measuring.workload import Draw
from orchestrator.plan import Workload
from results.measurement import Flag, Measurement
from sweeps.trial import LoadPoint

SUCCESS_FLOOR = 0.9
"""Share of requests that must end well for a point to say anything."""
WARM_UP_TOKENS = (24, 64)
"""Fewest and most tokens of a warm-up request; the more streams, the fewer it takes to meet every batch size."""
WARM_UP_S = 30.0
"""After this long no further warm-up pass is begun; two are always made, for one alone cannot be seen to settle."""
SETTLED_WITHIN = 0.05
FLUSH_S = 10.0
"""How long a server that says it is busy is asked again to flush its cache."""
FIGURES_S = 5.0
"""How long the server is asked for its own figures after a point."""
BENCH_START_S = 300.0
"""For sglang.bench_serving to import what it needs: 10 s on an idle machine, a minute on a busy one."""
DEATH_NOTICE_S = 6.0
"""SGLang's parent sleeps 5 s between its scheduler's death and its own; so long lost connections may mean a crash."""

_ERROR_BYTES = 64 * 1024
_INFO_BYTES = 4 * 2**20
"""What is read at most of an answer that is no stream; a real /server_info has some ten thousand bytes."""
_TICK_S = 0.02
_TIMER_S = 0.0012
"""How late an idle event loop's own timers are: it waits in whole milliseconds."""
_CHECK_S = 0.5

T = TypeVar("T")


def measure(
    url: str,
    draw: Draw,
    workload: Workload,
    point: LoadPoint,
    request_s: float,
    check: Callable[[], None] | None = None,
    stopping: threading.Event | None = None,
    around: contextlib.AbstractContextManager[object] | None = None,
    bench: BenchServing | None = None,
) -> tuple[Measurement, tuple[Flag, ...]]:
    """Flush, warm up at the point's own concurrency, flush, measure; blocks, with an event loop of its own.

    Args:
        url: the server, e.g. http://127.0.0.1:30000.
        request_s: most seconds for one request, and most seconds without any token before the server is said to hang.
        check: called twice a second; whatever it raises (the server died) ends the measuring and is let through.
        stopping: when set, measuring ends within a tick.
        around: entered for as long as the measured requests run, warm-up left out.
        bench: sends the measured requests in our stead.

    Raises:
        MeasureError: fewer than nine in ten requests ended well.
        HangError: no token from any stream for `request_s`.
        Stopped: `stopping` was set.
    """
    load = _Load(url.rstrip("/"), draw, workload, point, request_s, check, stopping, around, bench)
    clock = Clock()
    with _garbage_set_aside(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner:
        return runner.run(load.run(clock))


def warm_up_tokens(workload: Workload, concurrency: int) -> int:
    """Most tokens of each request of a warm-up pass."""
    fewest, most = WARM_UP_TOKENS
    return min(workload.output_tokens, most, max(fewest, 1024 // concurrency))


class _Load:
    """One load point on its way."""

    def __init__(
        self,
        url: str,
        draw: Draw,
        workload: Workload,
        point: LoadPoint,
        request_s: float,
        check: Callable[[], None] | None,
        stopping: threading.Event | None,
        around: contextlib.AbstractContextManager[object] | None,
        bench: BenchServing | None,
    ) -> None:
        self._url, self._draw, self._workload, self._point = url, draw, workload, point
        self._request_s, self._stopping, self._around = request_s, stopping, around or contextlib.nullcontext()
        self._bench, self._closed = bench, workload.arrival == "closed"
        self._check: Callable[[], None] = check or (lambda: None)
        self._server: Connections
        self._lags_s: list[float] = []
        self._sending = 0
        self._done: list[Finished] = []
        self._failed: list[Finished] = []
        self._failures_allowed = 0
        self._out = 0
        """Requests that have no answer yet."""
        self._last_token_s: float | None = None
        """When the latest token of any stream came; None while no request is out."""

    async def run(self, clock: Clock) -> tuple[Measurement, tuple[Flag, ...]]:
        with contextlib.closing(Connections(self._url, clock)) as self._server:
            return await self._watched(self._flow())

    async def _flow(self) -> tuple[Measurement, tuple[Flag, ...]]:
        began_s = time.monotonic()
        flushed = await self._flush()
        passes, settled = await self._warm_up()
        flushed = await self._flush() and flushed
        if self._bench is not None:
            measurement = await self._cross_checked(self._bench, passes)
            own: tuple[Flag, ...] = (Flag.IGNORE_EOS,) if self._workload.ignore_eos else ()
        else:
            finished, measurement = await self._measured(passes)
            streams = self._point.concurrency if self._closed else None
            flushed_it = self._workload.prefix_cache == "flushed"
            own = flags_of_requests(finished, streams, self._workload.ignore_eos, flushed_it)
        measurement = dataclasses.replace(
            measurement, **await self._server_figures(), measure_s=time.monotonic() - began_s
        )
        more = {
            Flag.WARM_UP_UNSETTLED: not settled,
            Flag.CACHE_NOT_FLUSHED: not flushed,
            Flag.PROMPTS_REUSED: self._draw.reused,
        }
        flags = (
            *flags_of(measurement, self._point.concurrency, self._closed),
            *own,
            *(flag for flag, holds in more.items() if holds),
        )
        return measurement, tuple(dict.fromkeys(flags))

    async def _measured(self, passes: int) -> tuple[list[Finished], Measurement]:
        """By our own client."""
        cpu_s = time.thread_time()
        with self._around:
            finished = await self._measured_part()
        cpu_s = time.thread_time() - cpu_s
        tokens = sum(one.tokens for one in finished)
        return finished, summarise(
            finished,
            self._point.concurrency if self._closed else None,
            client_lag_p99_ms=percentile([1000 * lag_s for lag_s in self._lags_s], 99),
            client_lag_mean_ms=1000 * sum(self._lags_s) / len(self._lags_s) if self._lags_s else None,
            client_cpu_s_per_1000_tokens=1000 * cpu_s / tokens if tokens else None,
            warm_up_passes=passes,
        )

    async def _cross_checked(self, bench: BenchServing, passes: int) -> Measurement:
        """By SGLang's client."""
        texts, sampling = self._draw.measured, self._sampling(self._workload.output_tokens)
        streams = self._point.concurrency
        most_s = BENCH_START_S + self._request_s * math.ceil(len(texts) / streams)
        try:
            async with asyncio.timeout(most_s):
                with self._around:
                    measurement = await bench.run(self._url, texts, sampling, streams, warm_up_passes=passes)
        except TimeoutError:
            raise HangError(f"{self._url}: sglang.bench_serving came to no end within {most_s:.0f} s") from None
        if (measurement.success_rate or 0) < SUCCESS_FLOOR:
            raise MeasureError(
                f"{self._url}: sglang.bench_serving had an answer to {measurement.success_rate:.0%} of {len(texts)} requests"
            )
        return measurement

    # The three parts of a point

    async def _flush(self) -> bool:
        """Whether the prefix cache is as the workload wants it; the server refuses with 400 while requests run."""
        if self._workload.prefix_cache == "kept":
            return True
        deadline_s = time.monotonic() + FLUSH_S
        while time.monotonic() < deadline_s:
            status = await self._status_of_flush(deadline_s - time.monotonic())
            if status != 400:
                return status == 200
            await asyncio.sleep(0.1)
        return False

    async def _status_of_flush(self, timeout_s: float) -> int | None:
        try:
            async with asyncio.timeout(timeout_s):
                status, _ = await self._server.whole("POST", "/flush_cache", _ERROR_BYTES)
        except OSError:
            return None
        return status

    async def _warm_up(self) -> tuple[int, bool]:
        """How many passes were made, and whether the last two ran alike."""
        tokens = warm_up_tokens(self._workload, self._point.concurrency)
        began_s = time.monotonic()
        paces: list[_Pace] = []
        for texts in self._draw.warm_up:
            if len(paces) >= 2 and time.monotonic() - began_s > WARM_UP_S:
                break
            finished = await self._closed_loop(texts, tokens, failures_allowed=len(texts) - 1)
            paces.append(_Pace.of(finished))
            if len(paces) >= 2 and paces[-1].settled_since(paces[-2]):
                return len(paces), True
        return len(paces), False

    async def _measured_part(self) -> list[Finished]:
        self._lags_s.clear()
        texts = self._draw.measured
        allowed = int(len(texts) * (1 - SUCCESS_FLOOR) + 1e-9)
        send = self._closed_loop if self._closed else self._at_a_rate
        return await send(texts, self._workload.output_tokens, allowed)

    async def _server_figures(self) -> dict[str, Any]:
        """What the server itself says of the point, for a cross-check."""
        try:
            async with asyncio.timeout(FIGURES_S):
                _, text = await self._server.whole("GET", "/server_info", _INFO_BYTES)
            info = json.loads(text)
        except (OSError, ValueError, RecursionError):
            info = {}
        states = info.get("internal_states") if isinstance(info, dict) else None
        state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        return {
            "server_acceptance_length": _number(state.get("avg_spec_accept_length")),
            "server_output_tok_s": _number(state.get("last_gen_throughput")),
        }

    # Requests

    async def _closed_loop(self, texts: Sequence[str], max_tokens: int, failures_allowed: int) -> list[Finished]:
        """Ask all `texts`, `concurrency` at once, none idle while some are left."""
        self._begin(texts, failures_allowed)
        waiting = deque((text, self._asking(text, max_tokens)) for text in texts)
        await asyncio.gather(*(self._stream(waiting) for _ in range(self._point.concurrency)))
        await self._give_up_if_hopeless()
        self._last_token_s = None
        return self._done

    async def _at_a_rate(self, texts: Sequence[str], max_tokens: int, failures_allowed: int) -> list[Finished]:
        """Ask all `texts` at random times (a Poisson process), the same at each such point, whatever is out by then."""
        self._begin(texts, failures_allowed)
        load, streams = self._workload, self._point.concurrency
        chance = random.Random(f"{load.seed}/{streams}/{self._point.repeat}")  # noqa: S311  # times, not a secret
        due_s = time.monotonic()
        async with asyncio.TaskGroup() as out:
            for text, request in [(text, self._asking(text, max_tokens)) for text in texts]:
                await asyncio.sleep(due_s - time.monotonic())
                self._lags_s.append(max(time.monotonic() - due_s - _TIMER_S, 0.0))
                out.create_task(self._one(text, request))
                due_s += chance.expovariate(streams * (load.request_rate or 1.0))
        await self._give_up_if_hopeless()
        self._last_token_s = None
        return self._done

    def _begin(self, texts: Sequence[str], failures_allowed: int) -> None:
        self._sending, self._done, self._failed, self._failures_allowed = len(texts), [], [], failures_allowed
        self._out, self._last_token_s = 0, None

    def _asking(self, text: str, max_tokens: int) -> bytes:
        """The request."""
        body = json.dumps({"text": text, "sampling_params": self._sampling(max_tokens), "stream": True}).encode()
        return self._server.request("POST", "/generate", body)

    def _sampling(self, max_tokens: int) -> dict[str, Any]:
        """Every sampling parameter is given, so that no default of the checkpoint decides."""
        return {
            "max_new_tokens": max_tokens,
            "temperature": self._workload.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "ignore_eos": self._workload.ignore_eos,
        }

    async def _stream(self, waiting: deque[tuple[str, bytes]]) -> None:
        while waiting:
            await self._one(*waiting.popleft())

    async def _one(self, text: str, request: bytes) -> None:
        if not self._out:
            self._last_token_s = time.monotonic()
        self._out += 1
        finished = (await self._request(request)).without(text)
        self._out -= 1
        self._done.append(finished)
        if finished.error is not None:
            self._failed.append(finished)
        elif not self._out:
            self._last_token_s = None

    async def _request(self, request: bytes) -> Finished:
        reply = Reply(sent_s=time.monotonic())
        try:
            async with asyncio.timeout(self._request_s):
                connection = await self._server.connection()
                reply = Reply(sent_s=time.monotonic())
                await connection.ask(request, lambda *arrived: self._take(reply, *arrived))
        except TimeoutError:
            return reply.failed(time.monotonic(), f"no end within {self._request_s:g} s", timed_out=True)
        except OSError as error:
            return reply.failed(time.monotonic(), f"{type(error).__name__}: {error}", lost=True)
        return reply.finished(time.monotonic())

    def _take(self, reply: Reply, status: int, data: bytes, now_s: float) -> bool:
        """A piece of an answer; whether more of it is wanted."""
        if status != 200:
            return reply.refused(status, data)
        if reply.feed(data, now_s):
            self._last_token_s = now_s
        return not reply.endless

    # Watching

    async def _watched(self, work: Coroutine[None, None, T]) -> T:
        """The result of `work`, unless the watch ends it by raising."""
        watch, task = asyncio.create_task(self._watch()), asyncio.create_task(work)
        await asyncio.wait({watch, task}, return_when=asyncio.FIRST_COMPLETED)
        ended: asyncio.Task[T] = watch if watch.done() else task
        watch.cancel()
        task.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)
        return ended.result()

    async def _watch(self) -> NoReturn:
        """Every 20 ms: how late are we, is a stop wanted, is the point hopeless; twice a second: does the server live."""
        next_check_s = time.monotonic()
        while True:
            due_s = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(max(time.monotonic() - due_s - _TIMER_S, 0.0))
            self._stop_if_asked()
            if due_s >= next_check_s:
                next_check_s = due_s + _CHECK_S
                self._check()
            await self._give_up_if_hopeless()

    def _stop_if_asked(self) -> None:
        if self._stopping is not None and self._stopping.is_set():
            raise Stopped

    async def _give_up_if_hopeless(self) -> None:
        silent_s = 0.0 if self._last_token_s is None else time.monotonic() - self._last_token_s
        too_many = len(self._failed) > self._failures_allowed
        timed_out = too_many and self._failed[0].timed_out
        # Requests that stall together end by their own deadlines, shortly before the silence is as long as one.
        if silent_s >= self._request_s or (timed_out and silent_s >= self._request_s / 2):
            raise HangError(
                f"{self._url}: no token on any of {self._point.concurrency} streams for {silent_s:.1f} s;"
                f" requests may take {self._request_s:g} s (deadlines.request_s)"
            )
        if too_many:
            await self._wait_for_news_of_death()
            raise MeasureError(
                f"{self._url}: {len(self._failed)} of {self._sending} requests failed at concurrency"
                f" {self._point.concurrency} ({len(self._done)} had ended); the first: {self._failed[0].error}"
            )

    async def _wait_for_news_of_death(self) -> None:
        """Lost connections are seen before the death of the server; give `check` the time to report it."""
        deadline_s = time.monotonic() + (DEATH_NOTICE_S if self._failed[0].lost else 0.0)
        while time.monotonic() < deadline_s:
            self._stop_if_asked()
            self._check()
            await asyncio.sleep(0.1)


@dataclass(frozen=True)
class _Pace:
    """How fast a warm-up pass ran: the mean gap between chunks, which unlike tokens per second does not depend on how
    well a drafter guessed the pass's prompts, and the median time to first token."""

    gap_s: float | None
    ttft_s: float | None

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> _Pace:
        gaps_s = [gap_s for one in finished for gap_s in one.gaps_s]
        ttfts_s = [one.ttft_s for one in finished if one.ttft_s is not None]
        return cls(sum(gaps_s) / len(gaps_s) if gaps_s else None, percentile(ttfts_s, 50))

    def settled_since(self, before: _Pace) -> bool:
        """Gaps within 5 % of the pass before, and first tokens not still getting faster by more than half."""
        if self.ttft_s is not None and before.ttft_s is not None and self.ttft_s < before.ttft_s / 2:
            return False
        if self.gap_s is None or before.gap_s is None:
            return self.gap_s is before.gap_s
        return abs(self.gap_s - before.gap_s) <= SETTLED_WITHIN * before.gap_s


@contextlib.contextmanager
def _garbage_set_aside() -> Iterator[None]:
    """Keep the collector from walking all that lives in this process while a point is timed: at p99 it would show."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _number(value: object) -> float | None:
    """What can be a speed or a length; None for anything else."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e9 else None
