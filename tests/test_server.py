"""A server lives exactly as long as its `with` block, and whatever goes wrong has a type of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.plan import Deadlines
from orchestrator.serving.faults import (
    Abandoned,
    Interrupted,
    PortTaken,
    ServerDied,
    ServerFault,
    ServerHung,
    ServerTooSlow,
    WrongServer,
)
from orchestrator.serving.ports import free_port
from orchestrator.serving.processes import MARKER, clear_leftovers, find_marked
from orchestrator.serving.server import Launch, Server
from tests.fakes.waiting import runs, sleeping, wait_until

FAKES = Path(__file__).with_name("fakes")
HOST = "127.0.0.1"
MARK = f"tests-{os.getpid()}/000001/1-5f3a"
DEADLINES = Deadlines(load_idle_s=60, load_s=120, request_s=20, stop_s=10)
Make = Callable[..., Server]


def launch(folder: Path, *words: str, marker: str = MARK, name: str = MARK, **environment: str) -> Launch:
    """The fake server under `marker`, calling itself `name`."""
    port = free_port(HOST)
    argv = (sys.executable, str(FAKES / "server.py"), "--port", str(port), "--served-model-name", name, *words)
    return Launch(argv, environment, folder / "server.log", HOST, port, marker)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def server(*words: str, deadlines: Deadlines = DEADLINES, **more: object) -> Server:
        return Server(launch(tmp_path, *words), deadlines, **more)

    return server


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody else's open port, where nothing is ever answered."""
    with socket.create_server((HOST, 0)) as taken:
        yield taken


def grandchild(log: Path) -> int:
    wait_until(lambda: log.exists() and b"grandchild" in log.read_bytes(), "the server starts a child")
    return int(log.read_text().split("grandchild ")[1].split()[0])


def ask(server: Server, verb: str, path: str) -> tuple[int, dict]:
    with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request(verb, path, "{}")
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def is_closed(server: Server) -> bool:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_ready(make: Make) -> None:
    """Ready means it answers as ourselves and generates; after the block its process and its port are gone."""
    with make() as server:
        assert server.wait_ready()["served_model_name"] == MARK
        assert server.alive()
        server.check()
        assert find_marked(MARK) == [server.process_group]
    assert server.stop().left_over == ()
    assert not runs(server.process_group)
    assert find_marked(MARK) == []
    assert is_closed(server)
    assert not server.alive()


def test_not_ready_before_it_generates(make: Make) -> None:
    """A server that answers but refuses to generate is waited for."""
    with make("--refuse-generations", "3") as server:
        server.wait_ready()
        assert ask(server, "POST", "/generate")[0] == 200


def test_no_zombies(make: Make) -> None:
    """Neither server nor guard stays behind as a zombie of the worker."""
    with make() as server:
        server.wait_ready()
    assert [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE] == []


def test_second_stop(make: Make) -> None:
    """Stopping twice, or after the block, gives the first answer again."""
    with make() as server:
        first = server.stop()
    assert server.stop() is first


def test_never_started(make: Make) -> None:
    """A server that was never entered has nothing to stop."""
    assert make().stop().left_over == ()


def test_from_another_thread(make: Make) -> None:
    """A server may be started in a thread that ends long before the server does, and stopped from another."""
    server = make()
    starter = threading.Thread(target=server.__enter__)
    starter.start()
    starter.join()
    server.wait_ready()
    assert server.stop().left_over == ()


def test_log_is_told_line_by_line(make: Make) -> None:
    """Each complete line of the log is passed on, once and in order."""
    heard: list[str] = []
    with make("--ready-after-s", "0.3", "--refuse-generations", "5") as server:
        server.wait_ready(heard.append)
    assert heard[0] == "loading"
    assert heard[-1] == "The server is fired up and ready to roll!"
    assert heard == (Path(server._launch.log).read_text()).splitlines()


def test_proxy_in_the_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the worker's environment is not asked for a loopback address."""
    monkeypatch.setenv("http_proxy", f"http://{HOST}:{free_port(HOST)}")
    with make() as server:
        server.wait_ready()


def test_environment(tmp_path: Path) -> None:
    """The server has the given environment and its marker, however large, and nothing of the worker's."""
    large = "x" * 120_000  # two of them fill a pipe more than once
    with Server(launch(tmp_path, FIRST=large, SECOND=large), DEADLINES) as server:
        server.wait_ready()
        environment = psutil.Process(server.process_group).environ()
    assert environment[MARKER] == MARK
    assert environment["SECOND"] == large
    assert environment["SPT_NOENV"] == "1"  # else setproctitle in its children would wipe out the marker
    assert "HOME" not in environment


def test_died_at_start(make: Make) -> None:
    """A server that dies at start ends the wait with its code and the end of its log, long before any deadline."""
    with make("--exit", "3") as server, pytest.raises(ServerDied) as died:
        server.wait_ready()
    assert died.value.returncode == 3
    assert "ValueError: these arguments do not go together" in str(died.value)
    assert died.value.tail.strip() == "ValueError: these arguments do not go together"
    assert died.value.log.read_text() == died.value.tail


def test_no_such_interpreter(tmp_path: Path) -> None:
    """What cannot be started says so at once, with the reason."""
    nothing = Launch(("/no/such/python",), {}, tmp_path / "server.log", HOST, free_port(HOST), MARK)
    with pytest.raises(ServerDied, match=r"/no/such/python: \[Errno 2\]") as died, Server(nothing, DEADLINES):
        pass
    assert died.value.returncode is None


def test_killed_while_serving(make: Make) -> None:
    """`check` tells when the server has gone, and how."""
    with make() as server:
        server.wait_ready()
        os.kill(server.process_group, signal.SIGKILL)
        wait_until(lambda: not server.alive(), "the death is noticed")
        with pytest.raises(ServerDied, match=r"signal 9 \(SIGKILL\)") as died:
            server.check()
    assert died.value.returncode == -9
    assert server.stop().left_over == ()


def test_hang(make: Make) -> None:
    """A server that writes nothing for load_idle_s hangs."""
    with make("--silent", deadlines=Deadlines(load_idle_s=1, stop_s=10)) as server, pytest.raises(ServerHung):
        server.wait_ready()


def test_progress_in_the_log(make: Make) -> None:
    """A server that keeps writing is not hung, though it takes longer than load_idle_s."""
    with make("--ready-after-s", "8", deadlines=Deadlines(load_idle_s=6, load_s=120, stop_s=10)) as server:
        server.wait_ready()


def test_too_slow(make: Make) -> None:
    """Progress does not help beyond load_s."""
    slow = make("--ready-after-s", "600", deadlines=Deadlines(load_idle_s=60, load_s=1, stop_s=10))
    with slow as server, pytest.raises(ServerTooSlow):
        server.wait_ready()


def test_wrong_server(tmp_path: Path) -> None:
    """Whoever answers on the port without our marker is another server, however well it generates."""
    other = Server(launch(tmp_path, name="somebody-else"), DEADLINES)
    with other, pytest.raises(WrongServer, match="answers as 'somebody-else'"):
        other.wait_ready()


def test_stranger_takes_the_port_while_loading(make: Make, tmp_path: Path) -> None:
    """A port lost during loading is noticed by the log's own words: such a server hangs instead of ending."""
    go = tmp_path / "go"
    server = make("--bind-when", str(go))
    with server, socket.create_server((HOST, server._launch.port)):
        go.touch()
        with pytest.raises(PortTaken, match="address already in use"):
            server.wait_ready()
        assert server.stop().left_over == ()  # the open port is the stranger's
    assert not runs(server.process_group)


def test_port_taken_before_the_launch(tmp_path: Path, listener: socket.socket) -> None:
    """A taken port is noticed before minutes of loading are spent."""
    port = listener.getsockname()[1]
    with pytest.raises(PortTaken, match=f"port {port} of {HOST} is taken"):
        Server(Launch(("/bin/true",), {}, tmp_path / "log", HOST, port, MARK), DEADLINES).__enter__()


def test_interrupted(make: Make) -> None:
    """A stop that is asked for while loading ends the wait."""
    stopping = threading.Event()
    with make("--ready-after-s", "600", stopping=stopping) as server, pytest.raises(Interrupted):
        server.wait_ready(on_log=lambda _: stopping.set())
    assert server.stop().left_over == ()


@pytest.mark.parametrize("kind", [ServerDied, ServerHung, ServerTooSlow, WrongServer, PortTaken, Interrupted])
def test_one_tree(kind: type[ServerFault]) -> None:
    """Every fault of a launch is a ServerFault, and none is a kind of another."""
    assert kind.__bases__ == (ServerFault,)


def test_ignores_term(make: Make) -> None:
    """A server that ignores TERM is killed within stop_s."""
    with make("--ignore-term", deadlines=Deadlines(stop_s=2)) as server:
        server.wait_ready()
    assert server.stop().left_over == ()
    assert not runs(server.process_group)


def test_grandchild_in_a_session_of_its_own(make: Make, tmp_path: Path) -> None:
    """What the server started is gone too, though it called setsid."""
    with make("--grandchild") as server:
        child = grandchild(tmp_path / "server.log")
        server.wait_ready()
        assert runs(child)
    assert not runs(child)


def test_killed_owner(tmp_path: Path) -> None:
    """P10: kill -9 of the process that owns the server leaves nothing of it: no server, no grandchild, no guard."""
    marker, log, port = f"{MARK}-owner", tmp_path / "server.log", free_port(HOST)
    words = [str(FAKES / "owner.py"), str(log), str(port), marker, "--grandchild", "--ignore-term"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as owner:
        server = int(owner.stdout.readline())
        guard = psutil.Process(server).ppid()
        child = grandchild(log)
        owner.kill()
    assert guard != owner.pid
    wait_until(lambda: not any(map(runs, (server, child, guard))), "nothing is left")


def test_killed_guard(make: Make, tmp_path: Path) -> None:
    """Kill -9 of the guard is noticed by the worker, which ends what carries the marker."""
    with make("--grandchild", "--ignore-term") as server:
        child = grandchild(tmp_path / "server.log")
        server.wait_ready()
        psutil.Process(server.process_group).parent().kill()
        wait_until(lambda: not runs(child) and not server.alive(), "the worker ends what is left, by itself")
        with pytest.raises(Abandoned, match="guard was killed") as left:
            server.check()
        assert not left.value.watched
    assert server.stop().left_over == ()
    assert find_marked(MARK) == []


def test_watched_driver_dies(make: Make) -> None:
    """The death of a watched process (the driver, a raylet) ends the server, and `check` says so."""
    with sleeping() as driver, make(watch=[driver.pid]) as server:
        server.wait_ready()
        driver.kill()
        wait_until(lambda: not server.alive(), "the server is ended")
        with pytest.raises(Abandoned, match=f"watched {driver.pid} died") as left:
            server.check()
        assert left.value.watched


def test_what_is_not_gone_is_named(make: Make) -> None:
    """A process that carries our marker and still runs after stop_s is named with its pid."""
    with make(deadlines=Deadlines(stop_s=1)) as server, sleeping(env={MARKER: MARK}) as escaped:
        server.wait_ready()
        assert server.stop().left_over == (f"pid {escaped.pid} (sleep)",)


def test_port_that_stays_open_is_named(make: Make) -> None:
    """A port that still answers after the server has gone is named."""
    with make(deadlines=Deadlines(stop_s=1)) as server:
        server.wait_ready()
        assert ask(server, "GET", "/server_info")[1]["served_model_name"] == MARK
        os.kill(server.process_group, signal.SIGKILL)
        wait_until(lambda: is_closed(server), "the port closes")
        with socket.create_server((HOST, server._launch.port)):
            assert server.stop().left_over == (f"port {server._launch.port} of {HOST} is still open",)


def test_leftovers_of_an_earlier_run() -> None:
    """What an earlier attempt left is ended by its marker; another run's processes are not touched."""
    run = f"eagle3-{os.getpid()}"
    with (
        sleeping(env={MARKER: f"{run}/000001/1-aa"}, start_new_session=True) as ours,
        sleeping(env={MARKER: f"{run}0/000001/1-aa"}, start_new_session=True) as theirs,
    ):
        assert clear_leftovers(run) == [f"pid {ours.pid} (sleep) of {run}/000001/1-aa"]
        assert ours.wait(timeout=20) == -signal.SIGTERM
        assert runs(theirs.pid)
        assert clear_leftovers(run) == []


def test_leftovers_of_every_run() -> None:
    """Leftovers are always a run's: an empty prefix is refused."""
    with pytest.raises(ValueError, match="empty prefix"):
        clear_leftovers("/")
