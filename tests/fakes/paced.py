"""A paced server as a process of its own, killed when its block ends; and what it says it really did."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "paced_server.py"


@dataclass(frozen=True)
class Paced:
    process: subprocess.Popen[str]
    url: str

    def kept(self) -> dict[str, Any]:
        """What left it since the last flush: counts, times, how late it was itself; see paced_server.py."""
        with urllib.request.urlopen(f"{self.url}/kept", timeout=10) as answer:  # noqa: S310  # our own server
            return dict(json.load(answer))

    def forget(self) -> None:
        """As a flush does."""
        request = urllib.request.Request(f"{self.url}/flush_cache", method="POST")  # noqa: S310  # our own server
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass


@contextlib.contextmanager
def paced(**script: Any) -> Iterator[Paced]:
    """`script`: fields of paced_server.Script."""
    words = [sys.executable, str(PROGRAM), json.dumps(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Paced(process, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()
