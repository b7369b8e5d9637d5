"""A server that speaks SGLang's `/generate` exactly as a script says: token counts, chunks, times and faults.

Run as `python scripted_server.py SCRIPT_JSON`; prints its port (loopback, chosen by the system) as one line, then serves
until killed.  The first word of a prompt asks for a fault: refuse, cut, silent, freeze (the whole server), abort, complain, empty, die.
`GET /seen` tells what was asked, in order.  Not a performance model: that is orchestrator/simulator.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Script:
    ttft_s: float = 0.0
    itl_s: float = 0.0
    chunks: list[int] = field(default_factory=lambda: [1, 1, 1, 1])
    """Tokens each chunk brings."""
    prompt_tokens: int = 7
    meta: dict[str, Any] = field(default_factory=dict)
    """Added to the last chunk's meta_info, as SGLang adds the counts of speculation."""
    flush: list[int] = field(default_factory=lambda: [200])
    """Status of each answer to /flush_cache in turn; the last one is repeated."""
    server_info: dict[str, Any] = field(default_factory=lambda: {"internal_states": [{"last_gen_throughput": 123.5}]})
    first_gap_s: float = 0.0
    """Added once, to the second chunk of the very first request: something is being compiled."""


class Server:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[dict[str, Any]] = []
        self.asked = self.running = 0
        self.most_running = 0
        self.flushes = 0
        self.frozen = False

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.seen.append({"path": "/generate", **asked})
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.asked += 1
            return await self._answer(request, asked["text"].split()[0], first=self.asked == 1)
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, fault: str, first: bool) -> web.StreamResponse:
        if fault == "refuse":
            return web.json_response({"error": {"message": f"no room for {self.seen[-1]['text']}"}}, status=503)
        if fault == "die":
            os._exit(3)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if fault == "silent" or self.frozen:
            await asyncio.sleep(3600)
        if fault == "complain":
            await self._send(response, {"error": {"message": "the input is too long"}})
            return response
        await asyncio.sleep(self.script.ttft_s)
        await self._chunks(request, response, fault, first)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _chunks(self, request: web.Request, response: web.StreamResponse, fault: str, first: bool) -> None:
        tokens, chunks = 0, [0] if fault == "empty" else self.script.chunks
        for number, more in enumerate(chunks):
            if number:
                await asyncio.sleep(self.script.itl_s + (self.script.first_gap_s if first and number == 1 else 0.0))
            tokens += more
            last = number == len(chunks) - 1
            reason = {"type": "abort", "message": "out of memory"} if fault == "abort" else {"type": "stop"}
            meta = {"finish_reason": reason if last else None, "completion_tokens": tokens}
            meta |= {"prompt_tokens": self.script.prompt_tokens} | (self.script.meta if last else {})
            text = 'a "completion_tokens":999, ' * tokens
            await self._send(response, {"text": text, "meta_info": meta})
            if fault == "cut" and number == 1:
                assert request.transport is not None
                request.transport.abort()
                return
            self.frozen |= fault == "freeze" and number == 1
            if self.frozen:
                await asyncio.sleep(3600)

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    async def flush(self, _request: web.Request) -> web.Response:
        status = self.script.flush[min(self.flushes, len(self.script.flush) - 1)]
        self.flushes += 1
        self.seen.append({"path": "/flush_cache", "status": status})
        return web.Response(status=status)

    async def info(self, _request: web.Request) -> web.Response:
        return web.json_response(self.script.server_info)

    async def told(self, _request: web.Request) -> web.Response:
        return web.json_response({"requests": self.seen, "most_running": self.most_running, "running": self.running})


async def serve(server: Server) -> None:
    app = web.Application()
    app.add_routes(
        [
            web.post("/generate", server.generate),
            web.post("/flush_cache", server.flush),
            web.get("/server_info", server.info),
            web.get("/seen", server.told),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Server(Script(**json.loads(sys.argv[1])))))
