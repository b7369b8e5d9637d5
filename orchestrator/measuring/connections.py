"""Connections: HTTP/1.1 to one server, each answer handed on while it arrives, with the time at which it was seen.

Of HTTP only what a load generator needs: keep-alive, one request at a time on a connection, no redirects, no compression.
Arrivals are stamped by `Clock` when the event loop woke for them, not when their turn came: with 256 streams whose chunks
come together, the last one's turn is milliseconds later.  Not here: what is asked (load.py), what an answer means (reply.py).
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

KEEPALIVE_S = 2.0
"""Less than uvicorn's 5 s, so that no request goes down a connection that the server is closing."""
LONGEST_HEAD = 64 * 1024
LONGEST_CHUNK = 8 * 2**20
"""Of the transfer encoding; a server-sent event is one chunk, or less."""

Take = Callable[[int, bytes, float], bool]
"""Given status, a piece of the body and when it arrived; whether more is wanted."""


class ConnectionLost(OSError):  # noqa: N818  # named as the thing that happened, like its builtin kin
    """The connection broke before the answer was whole, or what came is no HTTP."""


class Clock(selectors.DefaultSelector):
    """The selector of an event loop that remembers when it last woke; seconds on the monotonic clock."""

    woke_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        self.woke_s = time.monotonic()
        return ready


class Connections:
    """Open connections to one server, kept alive between requests."""

    def __init__(self, url: str, clock: Clock) -> None:
        """`url`: http://host:port.  Raises ValueError for any other."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no http://host:port")
        self._host, self._port, self._clock = parts.hostname, parts.port or 80, clock
        self._name = parts.netloc.rpartition("@")[2].encode()
        self._idle: deque[tuple[float, Connection]] = deque()

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole request as it goes down the wire."""
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % (method.encode(), path.encode(), self._name, len(body)) + body

    async def connection(self) -> Connection:
        """An idle one, or a new one.  Raises OSError when there is nobody to connect to."""
        while self._idle:
            idle_since_s, connection = self._idle.pop()
            if connection.usable and time.monotonic() - idle_since_s < KEEPALIVE_S:
                return connection
            connection.close()
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._clock, self._rest), self._host, self._port
        )
        return made

    async def whole(self, method: str, path: str, most: int) -> tuple[int, bytes]:
        """Status and body (at most about `most` bytes of it) of a short request.  Raises OSError."""
        pieces: list[bytes] = []

        def take(_status: int, data: bytes, _now_s: float) -> bool:
            pieces.append(data)
            return sum(map(len, pieces)) < most

        connection = await self.connection()
        status = await connection.ask(self.request(method, path), take)
        return status, b"".join(pieces)[:most]

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def _rest(self, connection: Connection) -> None:
        self._idle.append((time.monotonic(), connection))


class Connection(asyncio.Protocol):
    """One connection; `ask` one thing at a time."""

    def __init__(self, clock: Clock, rest: Callable[[Connection], None]) -> None:
        self._clock, self._rest = clock, rest
        self._transport: asyncio.Transport
        self._answered: asyncio.Future[int] | None = None
        self._take: Take
        self._head = b""
        self._status = 0
        self._body: _Body | None = None

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def ask(self, request: bytes, take: Take) -> int:
        """Send at once, then wait until the answer is whole or `take` wants no more; its status.

        Raises:
            ConnectionLost: the answer came to no proper end.
        """
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answered = answered
        self._take, self._head, self._body = take, b"", None
        self._transport.write(request)
        try:
            return await answered
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answered is None or self._answered.done():
            self.close()
            return
        try:
            self._read(data)
        except (ValueError, IndexError) as error:
            self._fail(f"the answer is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(self._body, _UntilClose) and error is None:
            self._end(keep=False)
        else:
            self._fail(str(error) if error else "the server closed the connection")

    # One answer

    def _read(self, data: bytes) -> None:
        while self._body is None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                if len(head) > LONGEST_HEAD:
                    raise ValueError(f"its head has more than {LONGEST_HEAD} bytes")
                return
            self._begin(head)
        piece = self._body.feed(data)
        wanted = not piece or self._take(self._status, piece, self._clock.woke_s)
        if self._body.over or not wanted:
            self._end(keep=self._body.over)

    def _begin(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        self._head = b""
        if not first.startswith(b"HTTP/1."):
            raise ValueError(f"it begins with {first[:20]!r}")
        self._status = int(first.split(b" ", 2)[1])
        if self._status >= 200:
            named = (line.partition(b":") for line in lines)
            self._body = _body_of({name.strip().lower(): value.strip().lower() for name, _, value in named})

    def _end(self, keep: bool) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._status)
        if keep and self._body is not None and self._body.keeps:
            self._rest(self)
        else:
            self.close()

    def _fail(self, why: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionLost(why))
        self.close()


class _Body(Protocol):
    """How the end of a body is told."""

    @property
    def over(self) -> bool: ...

    @property
    def keeps(self) -> bool:
        """Whether the connection stays open after it."""

    def feed(self, data: bytes) -> bytes:
        """What of the body can be handed on.  Raises ValueError when it is none."""


def _body_of(head: dict[bytes, bytes]) -> _Body:
    keeps = head.get(b"connection") != b"close"
    if head.get(b"transfer-encoding") == b"chunked":
        return _Chunked(keeps)
    if b"content-length" in head:
        return _Sized(int(head[b"content-length"]), keeps)
    return _UntilClose()


class _Sized:
    def __init__(self, size: int, keeps: bool) -> None:
        if size < 0:
            raise ValueError(f"a length of {size}")
        self._left = size
        self.keeps = keeps

    @property
    def over(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        data = data[: self._left]
        self._left -= len(data)
        return data


class _UntilClose:
    over = False
    keeps = False

    def feed(self, data: bytes) -> bytes:
        return data


class _Chunked:
    """RFC 9112, 7.1: size in hexadecimal, line end, so many bytes, line end; a size of 0 and trailers end it."""

    def __init__(self, keeps: bool) -> None:
        self._held, self.keeps, self.over = b"", keeps, False

    def feed(self, data: bytes) -> bytes:
        """All chunks that are whole now."""
        if self._held:
            data = self._held + data
        whole: list[bytes] = []
        at = 0
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line].split(b";", 1)[0], 16)
            if not 0 <= size <= LONGEST_CHUNK:
                raise ValueError(f"a chunk of {size} bytes")
            end = line + 2 + size
            if size == 0:
                self.over = data.find(b"\r\n\r\n", line) >= 0
                break
            if len(data) < end + 2:
                break
            whole.append(data[line + 2 : end])
            at = end + 2
        self._held = data[at:]
        if line < 0 and len(self._held) > LONGEST_HEAD:
            raise ValueError(f"no size of a chunk in {len(self._held)} bytes")
        return whole[0] if len(whole) == 1 else b"".join(whole)
