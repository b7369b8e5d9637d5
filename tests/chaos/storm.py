"""Storms: short simulated sweeps under random kills, and what must hold after each.

    python -m tests.chaos.storm faults=200 [seed=0]      (make chaos)

A storm is one sweep of a small, exhaustible space, in every second one each launch from a standby.  At random instants something of it
is killed or stopped: the driver, a worker, a guard, a server, a server's child, a standby or its guard, the raylet, or its disk is filled; the driver is resumed until the sweep ends.  Afterwards every point
is there exactly once, none that was seen before is lost, no process of the run is alive, and the verdict is the undisturbed one.
Not a test by itself: it takes about ten seconds a fault.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from orchestrator.serving.processes import all_marked
from results.ledger import read_records
from results.rundir import RunDir
from tests.fakes.command_line import ROOT
from tests.fakes.disks import fill, mounted
from tests.fakes.processes import marked, workers_of
from tests.fakes.waiting import wait_until

WORDS = (
    "conf=demo", "workload.concurrency=[1,4]", "workload.output_tokens=16", "workload.requests_per_stream=1",
    "space.drafter=[own]", "space.num_steps=[1,2,3,4]", "space.eagle_topk=[1]", "space.num_draft_tokens=[5]",
    "space.attention_backend=[fa3]", "budget.launches=40", "budget.finalists=0", "deadlines.request_s=8",
    "deadlines.load_idle_s=15", "deadlines.stop_s=20", "server_args.sim_fault=setsid-grandchild",
)  # fmt: skip
POINTS = 10
"""Four chains and the plain server; two load points each."""
FAULTS = {
    "driver": 2, "driver_term": 1, "raylet": 1, "worker": 3, "guard": 3, "server": 4, "child": 2, "stopped_server": 2,
    "full_disk": 2, "standby": 2, "standby_guard": 1,
}  # fmt: skip
"""What is struck, and how often against the others; those that end the driver cost a new start of Ray each."""
GONE_S = 10.0
"""Within this no process of a killed driver's run may be alive."""


@dataclass
class Outcome:
    """What storms did and found; the lists must stay empty."""

    faults: Counter[str] = field(default_factory=Counter)
    storms: int = 0
    resumes: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.repeated or self.leaked or self.wrong)


class Storm:
    """One sweep in `run`, disturbed `faults` times."""

    def __init__(self, run: Path, chance: random.Random, outcome: Outcome, faults: int, disk: Path | None) -> None:
        self._run, self._chance, self._outcome, self._left = run, chance, outcome, faults
        self._disk = disk
        """A file system of the run's own that may be filled; None where none may be mounted."""
        self._before: Counter[object] = Counter()
        self._trials: set[str] = set()
        """Trials struck already: one that is struck twice has failed twice, which is right and no test of anything."""
        self._aimed: set[str] = set()

    def rage(self) -> None:
        mode = self._chance.choice(("plain", "standby"))
        words: tuple[str, ...] = (
            "sweep", *WORDS, f"out={self._run}", f"sampler.seed={self._chance.randrange(10**6)}", f"engine.launch_mode={mode}",
        )  # fmt: skip
        while True:
            driver = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words], cwd=ROOT, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            self._disturb(driver)
            _, said = driver.communicate(timeout=180)
            self._check(driver.returncode, said)
            if driver.returncode in (0, 1):
                return
            self._outcome.resumes += 1
            words = ("resume", str(self._run))

    def _disturb(self, driver: subprocess.Popen[str]) -> None:
        """Faults at random instants until this driver is gone or the storm has raged enough."""
        if self._left:
            with suppress(AssertionError):
                wait_until(lambda: driver.poll() is not None or self._servers(), "a server", within_s=90)
        while self._left and driver.poll() is None:
            time.sleep(self._chance.uniform(0.1, 2.5))
            (fault,) = self._chance.choices(list(FAULTS), weights=list(FAULTS.values()))
            struck = driver.poll() is None and (
                self._fill_disk(driver) if fault == "full_disk" else self._strike(fault, psutil.Process(driver.pid))
            )
            if struck:
                self._outcome.faults[fault] += 1
                self._left -= 1
        if driver.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                driver.wait(timeout=180)
            if driver.poll() is None:
                self._outcome.wrong.append(f"{self._run.name}: the driver did not end")
                driver.kill()

    def _fill_disk(self, driver: subprocess.Popen[str]) -> bool:
        """No room until the driver has ended for it, as it does at the next row or note that it cannot write."""
        if self._disk is None:
            return False
        filler = fill(self._disk)
        try:
            driver.wait(timeout=180)
        except subprocess.TimeoutExpired:
            self._outcome.wrong.append(f"{self._run.parent.name}: the driver went on without a disk")
            driver.kill()
        finally:
            filler.unlink()
        return driver.returncode == 2

    def _strike(self, fault: str, driver: psutil.Process) -> bool:
        """Do it; False when there is nothing to do it to right now."""
        number = {"driver_term": signal.SIGTERM, "stopped_server": signal.SIGSTOP}.get(fault, signal.SIGKILL)
        try:
            victims = self._victims(fault, driver)
            if not victims:
                return False
            self._chance.choice(victims).send_signal(number)
            if fault not in ("driver", "driver_term", "raylet", "child", "standby", "standby_guard"):
                self._trials |= self._aimed
        except (psutil.Error, OSError):
            return False
        return True

    def _victims(self, fault: str, driver: psutil.Process) -> list[psutil.Process]:
        if fault.startswith("driver"):
            return [driver]
        if fault == "raylet":
            return [child for child in driver.children() if child.name() == "raylet"]
        if fault.startswith("standby"):
            waiting = self._standbys()
            return waiting if fault == "standby" else [guard for one in waiting if (guard := one.parent()) is not None]
        servers = [server for name, server in self._servers() if name not in self._trials]
        servers = servers[:1]
        self._aimed = {name for name, server in self._servers() if server in servers}
        if fault in ("server", "stopped_server"):
            return servers
        if fault == "child":
            return [child for server in servers for child in server.children(recursive=True)]
        if fault == "guard":
            return [guard for server in servers if (guard := server.parent()) is not None]
        return [worker for server in servers for worker in workers_of(driver, server)]

    def _servers(self) -> list[tuple[str, psutil.Process]]:
        """(trial, its server) of every server that runs."""
        found = []
        for begun in (self._run / "begun").glob("[!.]*.json"):
            with suppress(ValueError, psutil.Error, OSError):
                group = json.loads(begun.read_text()).get("process_group")
                if group and group in marked(self._run):
                    found.append((begun.stem, psutil.Process(group)))
        return found

    def _standbys(self) -> list[psutil.Process]:
        """Those that wait beside a server that was just told of: none of them becomes one while it is looked at."""
        if not self._servers():
            return []
        waits = f"{RunDir(self._run).marker}/standby/"
        return [psutil.Process(pid) for pid, marker in all_marked() if marker.startswith(waits)]

    def _troubles(self) -> list[str]:
        """What the journal tells of failures, of what was left behind, and of the end."""
        told = ("trial_failed", "left_behind", "search_ended", "drafter_mismatch", "branch_failed_alike")
        return [json.dumps(event) for event in RunDir(self._run).journal.events() if event["event"] in told]

    def _check(self, code: int, said: str) -> None:
        name = self._run.name
        began = time.monotonic()
        try:
            wait_until(lambda: not marked(self._run), "nothing of the run is left", within_s=GONE_S)
            self._outcome.gone_s.append(time.monotonic() - began)
        except AssertionError:
            self._outcome.leaked.append(f"{name}: {marked(self._run)}")
        rows = read_records(self._run)
        now = Counter(record.key for record in rows if record.measured)
        self._outcome.lost += [f"{name}: {key}" for key in self._before - now]
        self._outcome.repeated += [f"{name}: {key}" for key, count in now.items() if count > 1]
        self._before = now
        if code == 1 or "Traceback" in said:
            self._outcome.wrong.append(f"{name}: exit {code}: {said[-2000:]}")
        if code == 0 and len(now) != POINTS:
            self._outcome.wrong.append(f"{name}: {len(now)} points instead of {POINTS}; {'; '.join(self._troubles())}")


def answers(run: Path) -> dict[int, str]:
    """Concurrency → better, worse or cannot tell."""
    return {
        entry["concurrency"]: entry["answer"] for entry in yaml.safe_load((run / "best.yaml").read_text())["answers"]
    }


def rage(faults: int, seed: int, folder: Path, per_storm: int = 6, tell: bool = True) -> Outcome:
    """Storms until `faults` were done."""
    chance, outcome = random.Random(seed), Outcome()
    calm = folder / "calm"
    Storm(calm, chance, outcome, 0, disk=None).rage()
    while sum(outcome.faults.values()) < faults:
        outcome.storms += 1
        with of_its_own(folder / f"disk-{outcome.storms:03d}") as (place, disk):
            run = place / f"storm-{outcome.storms:03d}"
            Storm(run, chance, outcome, min(per_storm, faults - sum(outcome.faults.values())), disk).rage()
            if (run / "best.yaml").exists() and answers(run)[1] != answers(calm)[1]:
                outcome.wrong.append(f"{run.name}: {answers(run)} instead of {answers(calm)}")
        if tell:
            faults_so_far = f"{sum(outcome.faults.values())} faults so far"
            print(f"{run.name}: {faults_so_far}, {'clean' if outcome.clean else outcome}", flush=True)
    return outcome


@contextmanager
def of_its_own(place: Path) -> Iterator[tuple[Path, Path | None]]:
    """(folder, the same where it is a small file system of its own, which this user may not be allowed to mount)."""
    with ExitStack() as undo:
        try:
            undo.enter_context(mounted(place, size_mib=300))
        except pytest.skip.Exception:
            yield place, None
        else:
            yield place, place


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words)
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        outcome = rage(int(given.get("faults", 200)), int(given.get("seed", 0)), Path(folder))
    gone = sorted(outcome.gone_s)
    print(
        f"{outcome.storms} storms, {sum(outcome.faults.values())} faults: {dict(outcome.faults)}, {outcome.resumes} resumes"
    )
    print(
        f"lost {len(outcome.lost)}, repeated {len(outcome.repeated)}, leaked {len(outcome.leaked)}, wrong {len(outcome.wrong)}"
    )
    print(
        f"after a driver ended, its last process was gone within {gone[-1]:.1f} s (median {gone[len(gone) // 2]:.2f} s)"
    )
    for line in (*outcome.lost, *outcome.repeated, *outcome.leaked, *outcome.wrong):
        print(line)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
