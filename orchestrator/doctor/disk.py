"""Disks: room for runs, for Ray and for caches, and whether Ray's sockets fit under the temporary folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orchestrator.doctor.check import GIB, Check, Level, by_room, gib, green, red, yellow

LOW = 10 * GIB
RAY_FULL_PERCENT = 95
"""Ray stops making objects on a file system that is fuller (RAY_local_fs_capacity_threshold)."""
LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path (sun_path)."""
RAY_SOCKET = "/sweep-12345678/session_2026-11-29_20-15-09_419214_4194304/sockets/plasma_store"


def disks(out: Path) -> list[Check]:
    """Of a run's rows and logs, of Ray's own files, and of the caches of servers."""
    temporary = Path(tempfile.gettempdir())
    return [
        _room("out", out, "results and logs", "Choose another place with out=DIR"),
        _room("Ray's files", temporary, "the temporary folder", "Choose another with TMPDIR", RAY_FULL_PERCENT),
        _room("caches", caches_folder(), "compiled kernels", "Choose another place with XDG_CACHE_HOME"),
        socket_path(temporary),
    ]


def caches_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")


def home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user id without a name and without HOME, as containers have them
        return Path("/")


def nearest_existing(path: Path) -> Path:
    """The folder itself, or the one in which it would be made."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _room(name: str, path: Path, use: str, elsewhere: str, full_percent: int = 100) -> Check:
    folder = nearest_existing(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        return red(name, f"{path} ({use}) cannot be written", f"{elsewhere}, or get the right to write in {folder}.")
    stat = os.statvfs(folder)
    free, size = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    what = f"{gib(free)} free for {use} in {path}"
    remedy = f"{elsewhere}, or free some space there."
    check = by_room(name, free, LOW, what, remedy)
    if check.level is not Level.RED and 100 * (1 - free / max(size, 1)) > full_percent:
        return yellow(name, f"{what}, which is more than {full_percent} % full: Ray complains", remedy)
    return check


def socket_path(temporary: Path) -> Check:
    """Ray's sockets lie below the temporary folder, and the kernel takes only short paths of sockets."""
    length = len(os.fsencode(temporary)) + len(RAY_SOCKET)
    if length > LONGEST_SOCKET:
        return red("Ray's sockets", f"their paths in {temporary} have {length} bytes, {LONGEST_SOCKET} are possible", "Set TMPDIR to a shorter folder, such as /tmp.")  # fmt: skip
    return green("Ray's sockets", f"paths of {length} bytes at most, {LONGEST_SOCKET} are possible")
