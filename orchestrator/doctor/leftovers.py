"""What earlier runs of ours left on this host: processes that carry our marker, and Ray's folders.

`clean` ends and removes what certainly nobody uses any more.  Left alone, and named: launches of a run that is being
driven, launches whose guard still lives (it ends them itself), launches whose run cannot be found, and everything that
carries no marker of ours.  Not here: the processes on a GPU (cards.py).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.doctor.check import MIB, Check, gib, green, red, yellow
from orchestrator.own_ray import FOLDER
from orchestrator.serving.guarded import GUARD
from orchestrator.serving.processes import all_marked, all_pids, clear_leftovers, describe
from results.driving import driver_of
from results.rundir import RunDir

DELETED = " (deleted)"
RAY_FOLDER = re.compile(rf"{FOLDER}[a-z0-9_]{{8}}")
MOST_NAMED = 2
LITTLE = 100 * MIB
"""What Ray's folders may hold without troubling anybody."""
RAY_QUIET_S = 3600.0
"""Ray writes to its logs all the time; where nothing was written for so long, nobody on any host is at work."""
PROC = Path("/proc")


@dataclass(frozen=True)
class Leftover:
    """The processes of one launch, and why they are left alone; empty when nobody looks after them any more."""

    marker: str
    pids: tuple[int, ...]
    alone: str = ""
    needs_a_person: bool = False
    """Left alone because it is not known whose they are."""

    def __str__(self) -> str:
        return f"{', '.join(describe(pid) for pid in self.pids)} of {self.marker}"


def leftovers(out: Path, clean: bool = False) -> list[Check]:
    """Processes that carry our marker, a check a kind; with `clean`, those that nobody looks after are ended first."""
    found = find_leftovers(out)
    at_work = [launch for launch in found if launch.alone and not launch.needs_a_person]
    lost = [launch for launch in found if launch.needs_a_person]
    orphans = [launch for launch in found if not launch.alone]
    checks = [green("running", _told(at_work))] if at_work else []
    if lost:
        pids = " ".join(str(pid) for launch in lost for pid in launch.pids)
        checks.append(yellow("leftover", _told(lost), f"Name the run, doctor clean=true out=RUN_DIR; or if it is nobody's any more: kill {pids}"))  # fmt: skip
    if clean:
        checks += map(_ended, orphans)
    elif orphans:
        checks.append(yellow("leftover", f"{_told(orphans)}: nobody drives the run", "End it: python -m orchestrator doctor clean=true"))  # fmt: skip
    return checks or [green("leftovers", "no process of an earlier run")]


def _told(launches: Sequence[Leftover]) -> str:
    """The first ones with what keeps them, the others counted."""
    first = "; ".join(f"{one} left alone: {one.alone}" if one.alone else str(one) for one in launches[:MOST_NAMED])
    more = len(launches) - MOST_NAMED
    return f"{first}; and {more} more launches" if more > 0 else first


def _ended(launch: Leftover) -> Check:
    words = clear_leftovers(launch.marker)
    stuck = [word for word in words if word.endswith("(could not be ended)")]
    if stuck:
        return red("leftover", "; ".join(stuck), "The kernel holds on to it (a lost GPU or disk): restart the machine.")
    return green("cleaned", f"ended {'; '.join(words) or launch}")


def find_leftovers(out: Path) -> list[Leftover]:
    """Every launch of ours on this host that has a process, judged by what is seen of its driver and its guard.

    Args:
        out: A run directory, or the folder that runs go to: where to look for runs that their processes do not lead to.
    """
    launches: dict[str, list[int]] = {}
    for pid, marker in all_marked():
        launches.setdefault(marker, []).append(pid)
    if not launches:
        return []
    driven, known = _driven_here(), {run.marker: run for run in _runs_in(out)}
    return [_judged(marker, tuple(pids), driven, known) for marker, pids in launches.items()]


def _judged(marker: str, pids: tuple[int, ...], driven: dict[str, str], known: dict[str, RunDir]) -> Leftover:
    name = marker.split("/")[0]
    if name in driven:
        return Leftover(marker, pids, f"its run is driven by {driven[name]}")
    if any(_has_a_guard(pid) for pid in pids):
        return Leftover(marker, pids, "its guard lives and ends it together with its worker")
    run = known.get(name) or next(filter(None, (_run_of(pid, name) for pid in pids)), None)
    if run is None:
        return Leftover(marker, pids, "its run directory is not known, so neither is whether somebody drives it", True)
    driver = driver_of(run)  # on whatever host that shares the file system
    return Leftover(marker, pids, f"{run.path} is driven by {driver}" if driver else "")


def _driven_here() -> dict[str, str]:
    """Marker of each run that a process of this user holds the lock of → who; wherever the run lies, or lay."""
    found = {}
    for pid in all_pids():
        for target in _links(PROC / str(pid) / "fd"):
            path = Path(target.removesuffix(DELETED))
            run = RunDir(path.parent)
            if path == run.lock_file:
                holder = describe(pid) if target.endswith(DELETED) else driver_of(run)
                if holder:
                    found[run.marker] = holder
    return found


def _runs_in(out: Path) -> Iterator[RunDir]:
    for path in (out, *out.glob("*/*")):
        if RunDir(path).lock_file.is_file():
            yield RunDir(path)


def _run_of(pid: int, name: str) -> RunDir | None:
    """The run whose logs a process writes, or in whose logs folder it stands, if its marker is that of the process."""
    proc = PROC / str(pid)
    for target in (*_links(proc / "fd"), *_link(proc / "cwd")):
        for folder in Path(target.removesuffix(DELETED)).parents if target.startswith("/") else ():
            if RunDir(folder).marker == name:
                return RunDir(folder)
    return None


def _has_a_guard(pid: int) -> bool:
    seen = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        try:
            words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            pid = int((PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return False
        if any(Path(os.fsdecode(word)).parts[-2:] == GUARD.parts[-2:] for word in words):
            return True
    return False


def _links(folder: Path) -> list[str]:
    """Where the links in a folder of /proc lead to; none when it is another user's, or its process has ended."""
    try:
        return [target for entry in folder.iterdir() for target in _link(entry)]
    except OSError:
        return []


def _link(path: Path) -> list[str]:
    try:
        return [str(path.readlink())]
    except OSError:
        return []


def ray_folders(clean: bool = False, temporary: Path | None = None, now: float | None = None) -> list[Check]:
    """Folders that Ray clusters of killed sweeps left in the temporary folder; with `clean` they are removed."""
    where = temporary or Path(tempfile.gettempdir())
    stale = stale_ray_folders(where, time.time() if now is None else now)
    if not stale:
        return [green("Ray's folders", f"none of an earlier sweep in {where}")]
    size = sum(map(size_of, stale))
    what = f"{len(stale)} of killed sweeps in {where}, {gib(size)}"
    if not clean:
        remedy = "python -m orchestrator doctor clean=true"
        return [
            yellow("Ray's folders", what, f"Remove them: {remedy}")
            if size > LITTLE
            else green("Ray's folders", f"{what}; {remedy} removes them")
        ]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    kept = [str(folder) for folder in stale if folder.exists()]
    if kept:
        return [yellow("Ray's folders", f"could not be removed: {', '.join(kept)}", "Remove them by hand.")]
    return [green("cleaned", f"removed {what}")]


def stale_ray_folders(temporary: Path, now: float) -> list[Path]:
    """This user's, of our name, with nothing but Ray's sessions in them, that no process names and nobody writes to."""
    candidates = [path for path in sorted(temporary.glob("sweep-*")) if _is_ours(path)]
    if not candidates:
        return []
    named = _named_by_processes()
    return [path for path in candidates if str(path) not in named and _is_quiet(path, now)]


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
        if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and RAY_FOLDER.fullmatch(path.name)):
            return False
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:  # a sweep that ends right now
        return False
    return bool(names) and all(name.startswith("session_") for name in names)


def _named_by_processes() -> set[str]:
    """Every path up to a folder of ours that stands in an argument of a process, or has a socket below it."""
    words = (PROC / "net/unix").read_bytes()
    for pid in all_pids():
        try:
            words += b"\0" + (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
    return set(re.findall(rf"(/[^\s\0=]*/{RAY_FOLDER.pattern})", words.decode(errors="replace")))


def _is_quiet(folder: Path, now: float) -> bool:
    try:
        written = (entry.lstat().st_mtime for entry in (folder, *folder.glob("*"), *folder.glob("session_*/logs/*")))
        return now - max(written) > RAY_QUIET_S
    except FileNotFoundError:
        return False


def size_of(folder: Path, most_files: int = 50_000) -> int:
    """Bytes of the files below a folder; of the first many only, so that it takes no time to speak of."""
    total = count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > most_files:
                return total
            try:
                total += (Path(parent) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
