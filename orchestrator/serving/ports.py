"""TCP ports of this host: finding free ones, and whether one is open."""

from __future__ import annotations

import random
import socket
from pathlib import Path

PORTS_FROM = 10_000
"""Ports are drawn from here up to the kernel's ephemeral range: no outgoing connection takes one before its server binds it."""


def free_port(host: str) -> int:
    """A TCP port of `host` that nothing listens on right now."""
    return free_ports(host, 1)[0]


def free_ports(host: str, count: int) -> list[int]:
    """`count` different ports; drawn at random, so that two sweeps on a host hardly ever draw the same."""
    last = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    candidates = list(range(PORTS_FROM, max(last, PORTS_FROM + 2_000)))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if can_bind(host, port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"only {len(found)} of {count} ports are free on {host} from {PORTS_FROM} up")
    return found


def can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: an ended connection is no owner
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # it does not answer, but neither is it refused
    return True
