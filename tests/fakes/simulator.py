"""The simulated server as a real process on a real port of loopback, killed when its block ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.serving.ports import free_port
from tests.fakes.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0
CHAIN = ("EAGLE3", "own", 3, 1, 4)
TREE = ("EAGLE3", "own", 5, 4, 16)


def speculation(algorithm: str, drafter: str, steps: int, topk: int, tokens: int) -> list[str]:
    values = ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", f"/drafters/{drafter}"]
    shape = {"num-steps": steps, "eagle-topk": topk, "num-draft-tokens": tokens}
    return values + [word for name, value in shape.items() for word in (f"--speculative-{name}", str(value))]


@dataclass(frozen=True)
class Simulator:
    """A simulated server, and a client of it."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def json(self, path: str, body: object = None) -> dict[str, Any]:
        status, text = self.request("GET" if body is None else "POST", path, body)
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def generate(self, text: str, tokens: int = 32, **more: object) -> dict[str, Any]:
        return self.json(
            "/generate", {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}, **more}
        )

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        status, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, text
        return events(text.decode())

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log, f"{text!r} in the log")

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)


def events(text: str) -> list[dict[str, Any]]:
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


@contextlib.contextmanager
def launched(tmp_path: Path, *flags: object, profile: object = "demo", port: int | None = None) -> Iterator[Simulator]:
    port = port or free_port("127.0.0.1")
    log_path = tmp_path / f"server-{port}.log"
    argv = [sys.executable, "-m", "orchestrator.simulator", "--model-path", "/models/target", "--port", str(port)]
    argv += ["--sim-profile", str(profile), *map(str, flags)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
    try:
        yield Simulator(process, port, log_path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serving(tmp_path: Path, *flags: object, profile: object = "demo") -> Iterator[Simulator]:
    with launched(tmp_path, *flags, profile=profile) as simulator:
        simulator.wait_log("The server is fired up and ready to roll!")
        yield simulator
