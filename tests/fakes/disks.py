"""Small file systems of a test's own, where this machine lets it mount one: to fill, and to make read-only."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, size_mib: int) -> Iterator[Path]:
    """An empty file system of `size_mib` at `place`; skips the test where nothing may be mounted."""
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or _run(mount, "-t", "tmpfs", "-o", f"size={size_mib}m", "sweep-test", place):
        pytest.skip("this user may not mount a file system")
    try:
        yield place
    finally:
        _run(umount, "-l", place)


def read_only(place: Path, on: bool = True) -> None:
    """Make a mounted file system read-only, or writable again."""
    assert _run("mount", "-o", f"remount,{'ro' if on else 'rw'}", place) == 0


def fill(place: Path, left_kib: int = 0) -> Path:
    """A file that takes all the room of a file system but so much; deleting it gives the room back."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while shutil.disk_usage(place).free > left_kib * 1024:
            file.write(bytes(min(2**20, max(1, shutil.disk_usage(place).free - left_kib * 1024))))
    return filler


def _run(*words: object) -> int:
    return subprocess.run(list(map(str, words)), capture_output=True, check=False).returncode
