"""A Ray cluster of several nodes on this machine, started as people start one: `ray start`, in the foreground."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.serving.ports import free_port
from tests.fakes.waiting import wait_until

RAY = Path(sys.executable).with_name("ray")
OPEN = {**os.environ, "RAY_AUTH_MODE": "disabled"}
"""No token: it would be written into the home folder."""


@dataclass(frozen=True)
class Node:
    """One `ray start --block`."""

    process: subprocess.Popen[bytes]

    def raylets(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [child for child in psutil.Process(self.process.pid).children() if child.name() == "raylet"]
        return []

    def kill(self) -> None:
        """As when a machine goes away: its raylet and all that belongs to Ray there, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def cluster(folder: Path, gpus: list[int]) -> Iterator[tuple[str, list[Node]]]:
    """(address, nodes): one node an entry of `gpus`, which says how many it offers; the first is the head.

    All are known to the head when the block begins.
    """
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with ExitStack() as undo:
        nodes = []
        for number, count in enumerate(gpus):
            where = [
                "--head",
                f"--port={address.partition(':')[2]}",
                "--include-dashboard=false",
                f"--temp-dir={folder}",
            ]
            node = _node(where if number == 0 else [f"--address={address}"], count)
            undo.callback(node.kill)
            wait_until(lambda node=node: bool(node.raylets()), "a raylet", within_s=60)  # type: ignore[misc]
            nodes.append(node)
        wait_until(lambda: _alive(address) == len(gpus), f"{len(gpus)} nodes", within_s=60)
        yield address, nodes


def _alive(address: str) -> int:
    """Nodes that have joined."""
    said = subprocess.run(
        [RAY, "status", f"--address={address}"], capture_output=True, text=True, check=False, env=OPEN
    )
    return said.stdout.count(" node_")


def _node(where: list[str], gpus: int) -> Node:
    words = [str(RAY), "start", "--block", "--disable-usage-stats", "--num-cpus=2", f"--num-gpus={gpus}"]
    words += [
        "--node-ip-address=127.0.0.1",
        "--object-store-memory=100000000",
        "--min-worker-port=0",
        "--max-worker-port=0",
        *where,
    ]
    quiet = subprocess.DEVNULL
    return Node(subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, env=OPEN, start_new_session=True))
