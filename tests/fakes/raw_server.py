"""A real HTTP server on loopback whose answers are any bytes at all, in pieces, with pauses, cut off or never ending."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What goes down the wire after a request; `endless` repeats the last piece until the client goes away."""

    pieces: tuple[bytes, ...] = ()
    pause_s: float = 0.0
    endless: bool = False
    reset: bool = False
    """Ends with a reset rather than a close."""
    silent_s: float = 0.0
    """Before the close nothing is said for so long."""

    @classmethod
    def of(cls, status: int, body: bytes, **more: object) -> Answer:
        """A proper answer around any body."""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return cls((head.encode() + body,), **more)  # type: ignore[arg-type]


class RawServer:
    """Answers each path by the first of `answers` it starts with, on a thread of its own; closes every connection after it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.answers: dict[str, Answer] = {}
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(5)
            path = self._read_request(connection)
            self._say(connection, next((a for start, a in self.answers.items() if path.startswith(start)), Answer()))

    def _read_request(self, connection: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return ""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        missing = int(lengths[0]) - len(body) if lengths else 0
        while missing > 0 and (piece := connection.recv(65536)):
            missing -= len(piece)
        return head.split(b" ")[1].decode()

    def _say(self, connection: socket.socket, answer: Answer) -> None:
        for piece in answer.pieces:
            connection.sendall(piece)
            self._over.wait(answer.pause_s)
        while answer.endless and answer.pieces and not self._over.is_set():
            connection.sendall(answer.pieces[-1] or b"x")
            self._over.wait(answer.pause_s)
        end = time.monotonic() + answer.silent_s
        while time.monotonic() < end and not self._over.wait(0.02):
            pass
        if answer.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@contextlib.contextmanager
def raw_server() -> Iterator[RawServer]:
    server = RawServer()
    try:
        yield server
    finally:
        server.close()
