"""A Ray cluster that others run: whoever names one that is not there is told so in seconds, and can stop waiting for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cluster import machines, misspelt, require_listening
from orchestrator.doctor import conf
from orchestrator.doctor.check import Level
from orchestrator.errors import MachineError
from orchestrator.needs import lacking
from orchestrator.plan import ClusterConf
from sweeps.space import Held
from tests.fakes.clusters import cluster
from tests.fakes.command_line import ROOT, SMALL, orchestrator
from tests.fakes.plans import plan

LISTENS_TO_CTRL_C = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from orchestrator.__main__ import main; sys.exit(main())"
)
"""The command line of somebody at a terminal, wherever the tests were started."""


@contextmanager
def mute() -> Iterator[tuple[str, socket.socket]]:
    """Somebody who listens, and never says a word: an address and the listening socket."""
    with socket.create_server(("0.0.0.0", 0)) as listening:  # noqa: S104 - Ray calls a machine by its own address
        yield f"127.0.0.1:{listening.getsockname()[1]}", listening


def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("address", ["local", "10.0.0.1:6379", "head:6379", "[::1]:6379", "ray://head:10001"])
def test_an_address_is_local_or_a_host_and_a_port(address: str) -> None:
    """Of a name, of an IP address of either version, or of Ray's client."""
    assert misspelt(address) is None


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("garbage", "'garbage' is no host:port. Write e.g. 10.0.0.1:6379"),
        ("lokal", "'lokal' is no host:port. Did you mean 'local'?"),
        ("auto", "'auto' is no host:port."),
        ("head", "'head' is no host:port."),
        ("head:", "'head:' is no host:port."),
        ("head:99999", "'head:99999' is no host:port."),
        (":6379", "':6379' is no host:port."),
    ],
)
def test_an_address_that_is_none_is_a_mistake_of_the_config(address: str, says: str, tmp_path: Path) -> None:
    """Of every verb that runs something or says what would run, in the same words."""
    assert says in str(misspelt(address))
    if address == "garbage":
        for verb in ("plan", "sweep"):
            done = orchestrator(verb, "conf=demo", f"cluster.address={address}", f"out={tmp_path / 'run'}")
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"command line: cluster.address: {says}")
        assert not (tmp_path / "run").exists()


def test_a_cluster_that_is_not_there_is_said_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """By the sweep, which makes no directory, and by plan beforehand."""
    address = nobody()
    says = f"cluster.address: {address} cannot be reached ([Errno 111] Connection refused). Is Ray started there"
    done = orchestrator("sweep", *SMALL, f"cluster.address='{address}'", f"out={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert not (tmp_path / "run").exists()
    planned = orchestrator("plan", *SMALL, f"cluster.address='{address}'", "--json")
    (lacks,) = json.loads(planned.stdout)["not_here"]
    assert (planned.returncode, lacks.startswith(says)) == (0, True)


def test_a_host_that_does_not_exist_is_said_with_its_name() -> None:
    """As the resolver has it."""
    with pytest.raises(MachineError, match=r"no-such-host\.invalid:6379 cannot be reached \("):
        require_listening("no-such-host.invalid:6379")


def test_whoever_listens_and_is_no_ray_is_waited_for_a_while_only() -> None:
    """Ray itself would wait for many minutes."""
    with mute() as (address, _), pytest.raises(MachineError, match=r"something listens at .* within 2 s"):
        machines(address, timeout_s=2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_stop_is_heard_while_a_cluster_is_waited_for(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end it at once, and nothing was begun."""
    with mute() as (address, listening):
        words = ["sweep", *SMALL, f"cluster.address='{address}'", f"out={tmp_path / 'run'}"]
        driver = subprocess.Popen(
            [sys.executable, "-c", LISTENS_TO_CTRL_C, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        calls = [listening.accept()[0] for _ in range(2)]  # ours, then Ray's
        os.kill(driver.pid, number)
        _, said = driver.communicate(timeout=60)
        for call in calls:
            call.close()
    assert driver.returncode == code
    assert said == ("Interrupted before anything was launched.\n" if number == signal.SIGINT else "")
    assert not (tmp_path / "run").exists()


def test_what_a_cluster_lacks_is_known_before_a_sweep_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machines are asked for: GPUs enough of the kind that is wanted, or what is wrong."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(prefix="sweep-cluster-") as folder, cluster(Path(folder), [2]) as (address, _):
        there = ClusterConf(address=address)
        (machine,) = machines(address)
        assert (machine["Alive"], machine["Resources"]["GPU"]) == (True, 2)
        assert lacking(plan(cluster=there), Path.cwd()) == []
        (lacks,) = lacking(plan({"tp_size": Held(3)}, cluster=there), Path.cwd())
        assert lacks.startswith("tp_size 3 needs 3 GPUs on one machine; Ray offers 2.")
        (check,) = conf.cluster(plan(cluster=there))
        assert (check.level, check.what) == (Level.GREEN, f"{address} answers; 2 servers at a time")
        (wrong,) = conf.cluster(plan(cluster=ClusterConf(address=address, accelerator="H200")))
        assert (wrong.level, "no machine of this Ray has 'H200'" in wrong.what) == (Level.RED, True)
