"""Sender: the requests of a load point on their way, in a closed loop or at a rate, and the watch over them.

Every sampling parameter is given.  The watch ends the work when the server dies, hangs or fails too many requests, and when a
stop is asked for.  Not here: the order of a point (load.py), bytes on the wire (connections.py), what a reply means (reply.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from orchestrator.measuring.connections import Connections
from orchestrator.measuring.faults import HangError, MeasureError, Stopped
from orchestrator.measuring.reply import Finished, Reply
from orchestrator.plan import Workload
from sweeps.trial import LoadPoint

DEATH_NOTICE_S = 6.0
"""SGLang's parent sleeps 5 s between its scheduler's death and its own; so long lost connections may mean a crash."""
_TICK_S = 0.02
_TIMER_S = 0.0012
"""How late an idle event loop's own timers are: it waits in whole milliseconds."""
_CHECK_S = 0.5

T = TypeVar("T")


class Sender:
    """Of one load point; `check` raises once the server is dead."""

    def __init__(
        self,
        url: str,
        server: Connections,
        workload: Workload,
        point: LoadPoint,
        request_s: float,
        check: Callable[[], None] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._url, self._server, self._workload, self._point = url, server, workload, point
        self._request_s, self._stopping = request_s, stopping
        self._check: Callable[[], None] = check or (lambda: None)
        self.lags_s: list[float] = []
        """How late the event loop was, beyond its timers' sharpness, each time it was looked at."""
        self.categories: Mapping[str, str] = {}
        """Of texts, where they are known: finished requests carry them."""
        self._sending = 0
        self._done: list[Finished] = []
        self._failed: list[Finished] = []
        self._failures_allowed = 0
        self._out = 0
        """Requests that have no answer yet."""
        self._last_token_s: float | None = None
        """When the latest token of any stream came; None while no request is out."""

    async def closed_loop(self, texts: Sequence[str], max_tokens: int, failures_allowed: int) -> list[Finished]:
        """Ask all `texts`, `concurrency` at once, none idle while some are left."""
        self._begin(texts, failures_allowed)
        waiting = deque((text, self._asking(text, max_tokens)) for text in texts)
        await asyncio.gather(*(self._stream(waiting) for _ in range(self._point.concurrency)))
        await self._give_up_if_hopeless()
        self._last_token_s = None
        return self._done

    async def at_a_rate(self, texts: Sequence[str], max_tokens: int, failures_allowed: int) -> list[Finished]:
        """Ask all `texts` at random times (a Poisson process), the same at each such point, whatever is out by then."""
        self._begin(texts, failures_allowed)
        load, streams = self._workload, self._point.concurrency
        chance = random.Random(f"{load.seed}/{streams}/{self._point.repeat}")  # noqa: S311  # times, not a secret
        due_s = time.monotonic()
        async with asyncio.TaskGroup() as out:
            for text, request in [(text, self._asking(text, max_tokens)) for text in texts]:
                await asyncio.sleep(due_s - time.monotonic())
                self.lags_s.append(max(time.monotonic() - due_s - _TIMER_S, 0.0))
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
        body = json.dumps({"text": text, "sampling_params": self.sampling(max_tokens), "stream": True}).encode()
        return self._server.request("POST", "/generate", body)

    def sampling(self, max_tokens: int) -> dict[str, Any]:
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
        if self._last_token_s is None:  # after a failure the silence before it goes on
            self._last_token_s = time.monotonic()
        self._out += 1
        finished = replace((await self._request(request)).without(text), category=self.categories.get(text))
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

    async def watched(self, work: Coroutine[None, None, T]) -> T:
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
        due_s = next_check_s = time.monotonic()
        while True:
            due_s += _TICK_S
            await asyncio.sleep(due_s - time.monotonic())
            late_s = time.monotonic() - due_s
            self.lags_s.append(max(late_s - _TIMER_S, 0.0))
            due_s += max(late_s - _TICK_S, 0.0)  # ticks that were missed are one late one
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
                f"{_too_long(str(self._failed[0].error))}"
            )

    async def _wait_for_news_of_death(self) -> None:
        """Lost connections are seen before the death of the server; give `check` the time to report it."""
        deadline_s = time.monotonic() + (DEATH_NOTICE_S if self._failed[0].lost else 0.0)
        while time.monotonic() < deadline_s:
            self._stop_if_asked()
            self._check()
            await asyncio.sleep(0.1)


def _too_long(error: str) -> str:
    """What to do where a server refuses a request for its length, in SGLang's words; empty for any other error."""
    if "context length" not in error:
        return ""
    return " Raise target.context_length, lower workload.output_tokens, or give shorter prompts."
