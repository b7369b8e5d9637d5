"""A server that keeps a schedule known in advance, and tells how well it kept it: what a load generator is measured by.

Run as `python paced_server.py SCRIPT_JSON`; prints its port (loopback, chosen by the system) as one line, then serves
until killed.  Each request is answered as the script says, every chunk due at an absolute time after the request's
arrival, so that lateness never adds up.  It speaks SGLang's `/generate` and OpenAI's `/v1/chat/completions`, streamed.
`GET /kept` tells what really left it since the last `POST /flush_cache`: since a measurement's warm-up.  Standard library alone, HTTP on a bare protocol: at 256 streams
the server must cost less than the client that is measured.  Not a stand-in for SGLang: that is orchestrator/simulator.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
GOLDEN = 0.6180339887
"""Multiples of it, taken modulo 1, lie evenly."""
REFUSAL = b'{"error":{"message":"no room"}}'


@dataclass(frozen=True)
class Script:
    ttft_s: float = 0.1
    itl_s: float = 0.01
    """Between chunks."""
    chunks: int = 50
    tokens_per_chunk: list[int] = field(default_factory=lambda: [1])
    """Tokens of the chunks after the first, in turn; the first chunk always has one, as after a prefill."""
    spread_s: float = 0.0
    """Added to the time to first token, a different share of it for each request, so that streams do not end together."""
    slow_every: int = 0
    """Every so many requests (0: none) take `slow_factor` times as long to their first token and between chunks."""
    slow_factor: float = 4.0
    fail_every: int = 0
    """Every so many requests are refused with 503."""
    prompt_tokens: int = 32

    @property
    def counts(self) -> list[int]:
        """Tokens so far after each chunk."""
        steps = itertools.cycle(self.tokens_per_chunk)
        return list(itertools.accumulate([1, *itertools.islice(steps, self.chunks - 1)]))


@dataclass
class Answer:
    """What really happened to one request.  Seconds on the monotonic clock."""

    asked_s: float
    unseen_s: float
    """It may have arrived so much earlier."""
    first_s: float = 0.0
    last_s: float = 0.0


class Clock(selectors.DefaultSelector):
    """Remembers when the event loop woke: what is read after that had arrived by then."""

    woke_s = 0.0
    unseen_s = 0.0
    """For how long at most that had lain there unseen: the loop was busy with what came before."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        asked_s, before_s = time.monotonic(), self.woke_s
        ready = super().select(timeout)
        self.woke_s = time.monotonic()
        waited = self.woke_s - asked_s > 0.0001
        self.unseen_s = 0.0 if waited else self.woke_s - before_s
        return ready


class Kept:
    """Answers since the last `forget`, and how late each chunk left."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[bytes] = []
        self.late_s: list[float] = []
        self.refused = 0
        self.cpu_s = time.process_time()

    def told(self, script: Script) -> dict[str, Any]:
        done = [one for one in self.answers if one.last_s]
        ttfts, tpots = sorted(one.first_s - one.asked_s for one in done), _tpots(done, script)
        unseen = sorted(one.unseen_s for one in done)
        late = sorted(self.late_s)
        wall_s = max((one.last_s for one in done), default=0.0) - min((one.asked_s for one in done), default=0.0)
        return {
            "asked": [json.loads(body) for body in self.bodies],
            "requests": len(done),
            "refused": self.refused,
            "tokens": len(done) * script.counts[-1],
            "output_tok_s": len(done) * script.counts[-1] / wall_s if wall_s else None,
            "late_p50_ms": _at(late, 0.5), "late_p99_ms": _at(late, 0.99), "late_mean_ms": _mean(late),
            "unseen_mean_ms": _mean(unseen), "unseen_p50_ms": _at(unseen, 0.5), "unseen_p99_ms": _at(unseen, 0.99),
            "ttft_mean_ms": _mean(ttfts), "ttft_p50_ms": _at(ttfts, 0.5), "ttft_p99_ms": _at(ttfts, 0.99),
            "tpot_mean_ms": _mean(tpots), "tpot_p50_ms": _at(tpots, 0.5), "tpot_p99_ms": _at(tpots, 0.99),
            "cpu_s": time.process_time() - self.cpu_s,
        }  # fmt: skip


class Connection(asyncio.Protocol):
    """One keep-alive connection; a request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = self._server.clock.woke_s
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        lower = head.lower()
        if b"expect: 100-continue" in lower and end and not body:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        _, has_length, rest = lower.partition(b"content-length:")
        length = int(rest.split(b"\r\n", 1)[0]) if has_length else 0
        if end and len(body) >= length:
            self._got = body[length:]
            self._answer(head.split(b" ", 2)[1].decode(), now_s, body[:length])

    def _answer(self, path: str, now_s: float, body: bytes) -> None:
        kind = {"/generate": "generate", "/v1/chat/completions": "chat"}.get(path)
        if kind is None:
            self._plain(200, json.dumps(self._server.tell(path)).encode())
            return
        self._server.kept.bodies.append(body)
        answer = self._server.begin(now_s)
        if answer is None:
            self._plain(503, REFUSAL)
            return
        plan = zip(self._server.due_s(), self._server.pieces[kind], strict=True)
        self._transport.write(HEAD)
        self._next(answer, plan, next(plan), now_s)

    def _next(
        self, answer: Answer, plan: Iterator[tuple[float, bytes]], due: tuple[float, bytes] | None, at_s: float
    ) -> None:
        """Send what is due, and wake again for what comes after it."""
        while due is not None and at_s + due[0] <= time.monotonic():
            if self._transport.is_closing():
                return
            self._transport.write(due[1])
            answer.last_s = time.monotonic()
            answer.first_s = answer.first_s or answer.last_s
            self._server.kept.late_s.append(answer.last_s - at_s - due[0])
            due = next(plan, None)
        if due is not None:
            asyncio.get_running_loop().call_at(at_s + due[0], self._next, answer, plan, due, at_s)

    def _plain(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


class Server:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.clock = Clock()
        self.kept = Kept()
        self.asked = 0
        self.pieces = {"generate": _pieces(script, _generate_event), "chat": _pieces(script, _chat_event)}

    def begin(self, now_s: float) -> Answer | None:
        """A new answer; None: this request is refused."""
        self.asked += 1
        if self.script.fail_every and self.asked % self.script.fail_every == 0:
            self.kept.refused += 1
            return None
        answer = Answer(now_s, self.clock.unseen_s)
        self.kept.answers.append(answer)
        return answer

    def due_s(self) -> list[float]:
        """When each chunk of the request that came last is due, from its arrival."""
        script = self.script
        factor = script.slow_factor if script.slow_every and self.asked % script.slow_every == 0 else 1.0
        first_s = script.ttft_s + script.spread_s * (self.asked * GOLDEN % 1)
        return [factor * (first_s + n * script.itl_s) for n in range(script.chunks)]

    def tell(self, path: str) -> Any:
        if path == "/kept":
            return self.kept.told(self.script)
        if path == "/flush_cache":
            self.kept, self.asked = Kept(), 0
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "paced", "object": "model", "root": "paced"}]}
        if path in ("/model_info", "/get_model_info"):
            return {"model_path": "paced", "tokenizer_path": "paced", "is_generation": True}
        return {"version": "0.5.17", "internal_states": [{}]}


def _pieces(script: Script, event: Callable[[Script, int, int, bool], bytes]) -> list[bytes]:
    """The bytes of each chunk on the wire; the last one ends the answer."""
    counts = script.counts
    events = [event(script, n, count, n == len(counts) - 1) for n, count in enumerate(counts)]
    events[-1] += b"data: [DONE]\n\n"
    framed = [b"%x\r\n%b\r\n" % (len(one), one) for one in events]
    framed[-1] += b"0\r\n\r\n"
    return framed


def _generate_event(script: Script, _number: int, tokens: int, last: bool) -> bytes:
    """As SGLang 0.5.17 streams: all text so far, and the count so far."""
    meta: dict[str, Any] = {"id": "0" * 32, "finish_reason": {"type": "stop", "matched": 2} if last else None}
    meta |= {
        "prompt_tokens": script.prompt_tokens,
        "weight_version": "default",
        "completion_tokens": tokens,
        "cached_tokens": 0,
    }
    if last and script.tokens_per_chunk != [1]:
        steps = script.chunks - 1
        meta |= {"spec_verify_ct": steps, "spec_num_correct_drafts": tokens - 1 - steps}
    return b"data: " + json.dumps({"text": " word" * tokens, "meta_info": meta}).encode() + b"\n\n"


def _chat_event(script: Script, number: int, tokens: int, last: bool) -> bytes:
    counts = script.counts
    new = tokens - (counts[number - 1] if number else 0)
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": " word" * new},
        "finish_reason": "stop" if last else None,
    }
    event = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 0, "model": "paced", "choices": [choice]}
    said = b"data: " + json.dumps(event).encode() + b"\n\n"
    if not last:
        return said
    usage = {
        "prompt_tokens": script.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": script.prompt_tokens + tokens,
    }
    return said + b"data: " + json.dumps({**event, "choices": [], "usage": usage}).encode() + b"\n\n"


def _tpots(done: list[Answer], script: Script) -> list[float]:
    later = script.counts[-1] - 1
    return sorted((one.last_s - one.first_s) / later for one in done) if later else []


def _at(ordered: list[float], share: float) -> float | None:
    """Milliseconds at a share of the way, linear between neighbours."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return 1000 * (ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def _mean(values: list[float]) -> float | None:
    return 1000 * sum(values) / len(values) if values else None


async def serve(server: Server) -> None:
    listener = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=512)
    gc.disable()
    print(listener.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    server = Server(Script(**json.loads(sys.argv[1])))
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(server.clock)) as runner:
        runner.run(serve(server))
