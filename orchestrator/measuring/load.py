"""measure(): puts one load on a running server and times it from the client's side.

SGLang's native `/generate` with streaming.  Flush, warm up at the point's own concurrency until the pace settles, flush, measure.
Tokens are the server's own count, never the client's; a chunk may carry several (speculation does so).
Not here: which prompts (workload.py), sending them (sending.py), what a reply means (reply.py), starting or stopping the
server (server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.measuring.bench_serving import BenchServing
from orchestrator.measuring.connections import Clock, Connections
from orchestrator.measuring.faults import HangError, MeasureError
from orchestrator.measuring.figures import flags_of, flags_of_requests, percentile, summarise
from orchestrator.measuring.pace import Pace
from orchestrator.measuring.reply import Finished
from orchestrator.measuring.sending import Sender
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
FLUSH_S = 10.0
"""How long a server that says it is busy is asked again to flush its cache."""
FIGURES_S = 5.0
"""How long the server is asked for its own figures after a point."""
BENCH_START_S = 300.0
"""For sglang.bench_serving to import what it needs: 10 s on an idle machine, a minute on a busy one."""

_ERROR_BYTES = 64 * 1024
_INFO_BYTES = 4 * 2**20
"""What is read at most of an answer that is no stream; a real /server_info has some ten thousand bytes."""


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
        around: entered for as long as the measured requests run, warm-up left out; not around a client of SGLang's.
        bench: sends the measured requests in our stead.

    Raises:
        MeasureError: fewer than nine in ten requests ended well.
        HangError: no token from any stream for `request_s`.
        Stopped: `stopping` was set.
    """
    clock = Clock()
    load = _Load(url.rstrip("/"), draw, workload, point, request_s, check, stopping, around, bench, clock)
    with _garbage_set_aside(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner:
        return runner.run(load.run())


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
        clock: Clock,
    ) -> None:
        self._url, self._draw, self._workload, self._point = url, draw, workload, point
        self._request_s, self._around = request_s, around or contextlib.nullcontext()
        self._bench, self._closed = bench, workload.arrival == "closed"
        self._server = Connections(url, clock)
        self._sender = Sender(url, self._server, workload, point, request_s, check, stopping)

    async def run(self) -> tuple[Measurement, tuple[Flag, ...]]:
        with contextlib.closing(self._server):
            return await self._sender.watched(self._flow())

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
            client_lag_p99_ms=percentile([1000 * lag_s for lag_s in self._sender.lags_s], 99),
            client_lag_mean_ms=1000 * sum(self._sender.lags_s) / len(self._sender.lags_s)
            if self._sender.lags_s
            else None,
            client_cpu_s_per_1000_tokens=1000 * cpu_s / tokens if tokens else None,
            warm_up_passes=passes,
        )

    async def _cross_checked(self, bench: BenchServing, passes: int) -> Measurement:
        """By SGLang's client, which starts for so long that the GPUs' figures over it would be of an idle server."""
        texts, sampling = self._draw.measured, self._sender.sampling(self._workload.output_tokens)
        streams = self._point.concurrency
        most_s = BENCH_START_S + self._request_s * math.ceil(len(texts) / streams)
        try:
            async with asyncio.timeout(most_s):
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
        paces: list[Pace] = []
        for texts in self._draw.warm_up:
            if len(paces) >= 2 and time.monotonic() - began_s > WARM_UP_S:
                break
            finished = await self._sender.closed_loop(texts, tokens, failures_allowed=len(texts) - 1)
            paces.append(Pace.of(finished))
            if len(paces) >= 2 and paces[-1].settled_since(paces[-2]):
                return len(paces), True
        return len(paces), False

    async def _measured_part(self) -> list[Finished]:
        self._sender.lags_s.clear()
        texts, self._sender.categories = self._draw.measured, self._draw.categories
        allowed = int(len(texts) * (1 - SUCCESS_FLOOR) + 1e-9)
        send = self._sender.closed_loop if self._closed else self._sender.at_a_rate
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
