"""HTTP/1.1 on bare asyncio transports, as little of it as SGLang's clients use: keep-alive, JSON bodies, chunked streams.

Bare, because a simulated server must start in a fraction of a second and write thousands of chunks a second on a shared
core.  Not here: what the answers say (endpoints.py, answers.py).  Loopback only; no TLS, no request bodies without Content-Length.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

MOST_BYTES = 64 * 1024 * 1024
"""Of one request; a longer one is refused with 413."""

Handler = Callable[["Exchange"], None]


class Exchange:
    """One request and the answer to it.  `handler` answers at once with `send`, or opens a stream and writes later."""

    def __init__(self, connection: Connection, method: str, path: str, body: bytes) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.body = body
        self.on_disconnect: Callable[[], None] | None = None
        """Called once when the client goes away before the answer is complete."""

    @property
    def peer(self) -> str:
        return self._connection.peer

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.body)

    def send(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """The whole answer."""
        head = _head(status, f"content-length: {len(body)}", content_type)
        self._connection.write(head + body)
        self._connection.answered(self, status)

    def send_json(self, status: int, value: Any) -> None:
        self.send(status, json.dumps(value, separators=(",", ":")).encode())

    def open_stream(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        self._connection.write(_head(200, "transfer-encoding: chunked", content_type))

    def write(self, data: bytes) -> None:
        """One chunk of the stream."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def close_stream(self, data: bytes = b"") -> None:
        """`data` as the last chunk, and the end."""
        last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._connection.write(last)
        self._connection.answered(self, 200)


class Connection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self, handler: Handler, log: Callable[[Exchange, int], None]) -> None:
        self._handler = handler
        self._log = log
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._current: Exchange | None = None
        self._close_after = False
        self.peer = "-"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "-"

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._transport = None
        if self._current and self._current.on_disconnect:
            self._current.on_disconnect()
        self._current = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def write(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, exchange: Exchange, status: int) -> None:
        self._log(exchange, status)
        self._current = None
        if self._close_after and self._transport:
            self._transport.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Start on the next request when the last is answered and the whole of it is here."""
        if self._current or not self._transport:
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        method, path, headers = _parse(bytes(self._buffer[:end]))
        given = headers.get("content-length", "0")
        length = int(given) if given.isdigit() else -1
        malformed = length < 0 or not method
        refusal = 413 if length > MOST_BYTES else 411 if "transfer-encoding" in headers else 400 if malformed else 0
        if refusal:
            self._close_after = True
            self._current = exchange = Exchange(self, method, path, b"")
            exchange.send(refusal)
            return
        if len(self._buffer) < end + 4 + length:
            if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == end + 4:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        self._close_after = headers.get("connection", "").lower() == "close"
        self._current = exchange = Exchange(self, method, path, body)
        self._handler(exchange)


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        return "", "", {}
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return words[0], words[1], headers


def _head(status: int, length: str, content_type: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    return f"HTTP/1.1 {status} {phrase}\r\nserver: uvicorn\r\n{length}\r\ncontent-type: {content_type}\r\n\r\n".encode()
