"""Builds what the tests with the real SGLang need, once: the engine's own environment and the tiny models.

    python3 build.py ENGINES     links .engines/sglang-cpu and .engines/models of this project to what lies under ENGINES

Each is a folder named by the hash of what it is made from, so that a changed pin makes a new one and projects share the
rest.  A folder counts once its `complete` stamp is written; an interrupted build is thrown away and done again.

Not here: the product's own environment (Makefile).  Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
PINS = HERE / "constraints.txt"
MAKE_TINY = HERE / "make_tiny.py"


def digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold `lock` against another build on this machine, which is waited for."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, complete: as it stands or built now.

    Raises:
        subprocess.CalledProcessError: a step of the build failed; its own output says why, and the next call starts over.
    """
    stamp = folder / "complete"
    with alone(folder.with_suffix(".lock")):
        if stamp.exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        print(f"building {folder}", flush=True)
        build(folder)
        stamp.touch()
        print(f"built {folder} in {time.monotonic() - began:.0f} s", flush=True)
    return folder


def build_environment(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", str(PINS)], check=True)


def link(name: str, folder: Path) -> None:
    place = PROJECT / ".engines" / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(folder)
    print(f"{place.relative_to(PROJECT)} -> {folder}")


def main() -> None:
    engines = Path(sys.argv[1]).expanduser().resolve()
    engines.mkdir(parents=True, exist_ok=True)
    pins = PINS.read_text()
    environment = built(engines / f"sglang-cpu-{digest(str(sys.version_info[:2]), pins)}", build_environment)

    def build_models(folder: Path) -> None:
        subprocess.run([str(environment / "bin/python"), str(MAKE_TINY), str(folder)], check=True)

    models = built(engines / f"models-{digest(MAKE_TINY.read_text(), pins)}", build_models)
    link("sglang-cpu", environment)
    link("models", models)


if __name__ == "__main__":
    main()
