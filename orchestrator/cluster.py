"""A Ray cluster that others run: how its address is written, whether anything listens there, and which machines it has.

All of it is known within seconds and before a Ray of this process is begun, which could not be called off: Ray waits many
minutes for a cluster that does not answer, in code that no signal reaches.  So a process of its own, which can be ended,
connects first.  Not here: the Ray of a sweep (pool.py), how many GPU sets its machines make (offers.py).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import MachineError
from orchestrator.nearest import nearest

LOCAL = "local"
CLIENT = "ray://"
"""What the address of Ray's own client begins with."""
LISTENS_WITHIN_S = 3.0
ANSWERS_WITHIN_S = 30
_ASK = """
import json, signal, sys
signal.alarm(int(sys.argv[2]))
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
    print(json.dumps([{name: node[name] for name in ("Alive", "Resources")} for node in ray.nodes()]))
except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
    sys.exit(f"{error}".partition("\\n")[0])
"""
"""Connects and prints the machines, or why not as the last line of its standard error; ends by itself, whatever Ray does."""


def misspelt(address: str) -> str | None:
    """What is wrong with an address as it is written; None: nothing."""
    host, port = _host_port(address)
    if address == LOCAL or (host and port.isdecimal() and 0 < int(port) <= 65535):
        return None
    hint = nearest(address, (LOCAL,), ()) if not port else ""
    return f"{address!r} is no host:port.{hint} Write e.g. 10.0.0.1:6379 (`ray status` on the head node shows it), or local."


def require_listening(address: str, timeout_s: float = LISTENS_WITHIN_S) -> None:
    """Raises MachineError when nothing listens at a well-spelt address."""
    host, port = _host_port(address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError as error:
        raise MachineError(
            f"cluster.address: {address} cannot be reached ({error}). Is Ray started there (ray start --head --port={port}), and the port open to this machine?"
        ) from error


def machines(address: str, timeout_s: int = ANSWERS_WITHIN_S) -> Sequence[Mapping[str, Any]]:
    """The machines of the cluster at a well-spelt address, as `ray.nodes()` tells them.

    Raises:
        MachineError: nothing listens there, no Ray answers, or this machine cannot join it.
    """
    require_listening(address)
    done = subprocess.run(
        [sys.executable, "-c", _ASK, address, str(timeout_s)],
        env={"RAY_USAGE_STATS_ENABLED": "0", **os.environ}, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode == 0:
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found
    if done.returncode == -signal.SIGALRM:
        raise MachineError(f"cluster.address: something listens at {address}, but no Ray that answers within {timeout_s} s. Is it the port of a head node (6379 unless told otherwise), not its dashboard's or another service's?")  # fmt: skip
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    raise MachineError(f"cluster.address: no Ray can be joined at {address} ({last}). Is it the port of a head node, and this machine one of its nodes, with the same Ray and Python?")  # fmt: skip


def _host_port(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    return host, port if host else ""
