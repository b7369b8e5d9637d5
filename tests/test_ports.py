"""Ports for servers that bind them long after they were chosen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.serving.ports import can_bind, free_ports, listens

HOST = "127.0.0.1"


def test_free_ports_differ() -> None:
    """Several ports drawn at once are different, bindable, and out of reach of outgoing connections."""
    ports = free_ports(HOST, 20)
    assert len(set(ports)) == 20
    assert all(can_bind(HOST, port) for port in ports)
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < max(ephemeral, 12_000)


def test_open_and_closed() -> None:
    """A port is open while somebody listens on it, and closed afterwards."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert listens(HOST, port)
        assert not can_bind(HOST, port)
    assert not listens(HOST, port)


def test_too_many_ports() -> None:
    """More ports than there are is an error that says how many were found."""
    with pytest.raises(OSError, match=r"of 70000 ports are free on 127\.0\.0\.1"):
        free_ports(HOST, 70_000)
