"""kill -9 of whoever owns a real server, while it loads and while it serves: when are its processes and its memory gone?

    python -m tests.gpu.strikes out=DIR [only=worker,server,guard,driver] conf=… [key=value …]

One sweep of the given config (a few chains) on all its GPU sets.  Each server is struck once, in turn: its worker, the
server's own first process (the parent of SGLang's schedulers), its guard, each while loading and while serving; at last
the driver while a server serves; `python -m orchestrator resume DIR` then goes on.  Prints one line a strike with what
was measured.
Not a test by itself: it needs GPUs, an engine and minutes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.config import load_plan
from orchestrator.gpus import TOLERANCE_MIB, GpuSet, used_mib
from results.ledger import read_records
from tests.fakes.command_line import ROOT
from tests.fakes.processes import marked, workers_of

PLAN = ("worker", "server", "guard")
WITHIN_S = 30.0
LOADS = "Load weight begin"
SERVES = "POST /generate"
BEGAN = time.monotonic()


@dataclass
class Served:
    """A server that was launched: its processes are looked up when it is struck."""

    trial: int
    group: int
    gpus: GpuSet
    log: Path

    def says(self, words: str, times: int = 1) -> bool:
        with suppress(OSError):
            return self.log.read_text(errors="replace").count(words) >= times
        return False

    def family(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            first = psutil.Process(self.group)
            return [first, *first.children(recursive=True)]
        return []


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def launched(run: Path, seen: set[int], pretend: bool) -> list[Served]:
    """Servers whose launch the journal tells of, each once."""
    found = []
    journal = run / "events.jsonl"
    for line in journal.read_text().splitlines() if journal.exists() else []:
        event = json.loads(line)
        if event["event"] != "launched":
            continue
        begun = json.loads((run / "begun" / f"{event['trial']:06d}.json").read_text())
        group = begun.get("process_group")
        if group is not None and group not in seen and psutil.pid_exists(group):
            seen.add(group)
            logs = sorted((run / "logs" / f"{event['trial']:06d}").glob("server*.log"), key=lambda p: p.stat().st_mtime)
            ids = tuple(gpu for gpu in event["gpus"] if gpu)
            found.append(
                Served(event["trial"], group, GpuSet(ids, pretend=pretend), logs[-1] if logs else run / "none")
            )
    return found


def victim(who: str, server: Served, driver: psutil.Process) -> psutil.Process | None:
    first = psutil.Process(server.group)
    if who == "server":
        return first
    if who == "guard":
        return first.parent()
    return next(iter(workers_of(driver, first)), None)


def strike(who: str, when: str, server: Served, driver: psutil.Process, idle: dict[str, int]) -> None:
    """kill -9 and watch: the seconds until no process of the server is left and its cards hold no more than before."""
    family, before = server.family(), used_mib(server.gpus)
    target = driver if who == "driver" else victim(who, server, driver) if family else None
    if target is None:
        say(f"trial {server.trial}, {when}: no {who} found to strike")
        return
    target.send_signal(signal.SIGKILL)
    struck = time.monotonic()
    processes_s = _until(lambda: not any(_lives(process) for process in family), struck)
    memory_s = _until(
        lambda: all(u <= idle.get(g, 0) + TOLERANCE_MIB for g, u in used_mib(server.gpus).items()), struck
    )
    say(
        f"trial {server.trial}, {when}: kill -9 of its {who} (pid {target.pid}), GPU memory {_mib(before)} MiB:"
        f" {len(family)} processes gone after {processes_s}, memory back after {memory_s}"
        f" ({_mib(used_mib(server.gpus))} MiB)"
    )


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _until(holds: Callable[[], bool], since: float) -> str:
    while time.monotonic() < since + WITHIN_S:
        if holds():
            return f"{time.monotonic() - since:.2f} s"
        time.sleep(0.01)
    return f"MORE THAN {WITHIN_S:.0f} s"


def _mib(used: dict[str, int]) -> str:
    return "+".join(map(str, used.values())) or "no"


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words if word.startswith(("out=", "only=")))
    words = [word for word in words if not word.startswith("only=")]
    run, wanted = Path(given["out"]), given.get("only", ",".join((*PLAN, "driver"))).split(",")
    pretend = load_plan(words).engine.name == "simulated"
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "sweep", *words],
        cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    driver = psutil.Process(process.pid)
    left = [(who, when) for who in PLAN if who in wanted for when in ("loading", "serving")]
    seen: set[int] = set()
    aimed: list[tuple[Served, str, str]] = []
    idle: dict[str, int] = {}
    strikes: list[threading.Thread] = []
    while process.poll() is None and (left or aimed):
        for server in launched(run, seen, pretend):
            idle = {**used_mib(server.gpus), **idle}
            if left:
                aimed.append((server, *left.pop(0)))
        for server, who, when in list(aimed):
            ready = server.says(LOADS) and not server.says(SERVES) if when == "loading" else server.says(SERVES, 3)
            if ready or not server.family():
                aimed.remove((server, who, when))
                strikes.append(threading.Thread(target=strike, args=(who, when, server, driver, idle)))
                strikes[-1].start()
        time.sleep(0.05)
    for thread in strikes:
        thread.join()
    if "driver" not in wanted:
        process.wait()
    while process.poll() is None and not (serving := [s for s in launched(run, seen, pretend) if s.family()]):
        time.sleep(0.05)
    while process.poll() is None and not serving[0].says(SERVES, 3):
        time.sleep(0.05)
    if process.poll() is None:
        strike("driver", "serving", serving[0], driver, idle)
    process.wait()
    leftovers = _until(lambda: not marked(run), time.monotonic())
    say(f"the driver ended with {process.returncode}; nothing with the run's marker {leftovers} later")
    for record in read_records(run):
        point = f"concurrency {record.point.concurrency}" if record.point else ""
        outcome = f"{record.failure.kind} at {record.failure.stage}" if record.failure else "measured"
        say(f"row: trial {record.trial} attempt {record.attempt} {record.settings or record.asked} {point}: {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
