"""The engine's own environment: its interpreter, SGLang, PyTorch, CUDA; what compiles kernels, and what is compiled."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.doctor.check import MIB, Check, gib, green, red, yellow
from orchestrator.doctor.disk import caches_folder, home
from orchestrator.doctor.leftovers import size_of
from orchestrator.engines.environment import server_environment
from orchestrator.plan import EngineConf
from sweeps.facts import KNOWN_VERSIONS, plain_version

PROBE_S = 90.0
"""Importing PyTorch from a cold disk takes its time."""
PROBE = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
names = ("sglang", "torch", "flashinfer-python", "sglang-kernel", "transformers")
print(json.dumps({"python": sys.version.split()[0], **{name: version(name) for name in names}}), flush=True)
try:
    import torch
    print(json.dumps({"cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}), flush=True)
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    print(json.dumps({"broken": type(error).__name__ + ": " + str(error)}), flush=True)
"""
LEAST_CACHE = MIB


def engine(conf: EngineConf, wants_gpus: bool, timeout_s: float = PROBE_S) -> list[Check]:
    """Runs the interpreter once, in the environment that servers get."""
    python = str(conf.python)
    try:
        facts, ended = _probed(python, server_environment(conf), timeout_s)
    except OSError as error:
        return [red("interpreter", f"engine.python: {python} cannot be run ({error.strerror})", "Point engine.python at the interpreter of SGLang's own environment.")]  # fmt: skip
    if "python" not in facts:
        return [red("interpreter", f"engine.python: {python} {ended}", f"See what it says: {python} -c 'print(1)'")]
    checks = [green("interpreter", f"{python}, Python {facts['python']}"), _sglang(python, facts)]
    if facts["sglang"] is not None:
        checks.append(_torch(python, facts, ended, wants_gpus))
    return checks


def _probed(python: str, environment: Mapping[str, str], timeout_s: float) -> tuple[dict[str, Any], str]:
    """What it said before it ended, and how it ended in words."""
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        said, last = done.stdout, (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        ended = f"ended with status {done.returncode}: {last}"
    except subprocess.TimeoutExpired as late:
        said, ended = late.stdout or b"", f"did not answer within {timeout_s:g} s"
    facts: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith(b"{"):
            facts.update(json.loads(line))
    return facts, ended


def _sglang(python: str, facts: Mapping[str, Any]) -> Check:
    version = facts["sglang"]
    if version is None:
        return red("SGLang", f"not installed in {python}", f"Install it there: {python} -m pip install sglang")
    others = ", ".join(f"{name} {facts[name]}" for name in ("flashinfer-python", "sglang-kernel", "transformers") if facts[name])  # fmt: skip
    what = f"{version}{f' ({others})' if others else ''}"
    if plain_version(version) not in KNOWN_VERSIONS:
        return yellow("SGLang", f"{what}: not a version known here ({', '.join(KNOWN_VERSIONS)})", "Go on: the server decides what is legal, at the price of a failed launch now and then; or install a known one.")  # fmt: skip
    return green("SGLang", f"{what}, known here")


def _torch(python: str, facts: Mapping[str, Any], ended: str, wants_gpus: bool) -> Check:
    version = facts["torch"]
    reinstall = f"Install SGLang's environment anew; see what it says: {python} -c 'import torch'"
    if version is None:
        return red("PyTorch", f"not installed in {python}", reinstall)
    if "broken" in facts:
        return red("PyTorch", f"{version} cannot be imported: {facts['broken']}", reinstall)
    if "gpus" not in facts:
        return yellow(
            "PyTorch", f"{version}; importing it {ended}", f"See how long it takes: {python} -c 'import torch'"
        )
    what = f"{version}, CUDA {facts['cuda'] or 'none (a CPU build)'}, sees {facts['gpus']} GPUs"
    if wants_gpus and not facts["cuda"]:
        return red("PyTorch", what, "Install a CUDA build of PyTorch there, or cluster.gpus=none for the CPU.")
    if wants_gpus and not facts["gpus"]:
        return red(
            "PyTorch", what, "Its CUDA may be newer than the driver, or no GPU is visible: compare with nvidia-smi."
        )
    return green("PyTorch", what)


def compilers(engine: EngineConf | None = None) -> list[Check]:
    """What FlashInfer, Triton and SGLang compile kernels with at first use, as a server finds it."""
    environment = dict(os.environ) if engine is None else server_environment(engine)
    path = environment.get("PATH", os.defpath)
    cuda = Path(environment.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    beside = Path(engine.python).parent if engine is not None and engine.python else None
    wanted = (
        ("ninja", path, "pip install ninja", "FlashInfer and SGLang cannot compile kernels at first use"),
        ("nvcc", f"{path}{os.pathsep}{cuda}", "Install the CUDA toolkit, set CUDA_HOME", "FlashInfer cannot compile kernels at first use"),
        ("gcc", path, "Install gcc", "Triton and FlashInfer cannot compile their launchers"),
    )  # fmt: skip
    return [_compiler(name, where, remedy, breaks, beside) for name, where, remedy, breaks in wanted]


def _compiler(name: str, path: str, remedy: str, breaks: str, beside: Path | None) -> Check:
    if found := shutil.which(name, path=path):
        return green(name, found)
    if beside is not None and (beside / name).exists():
        return yellow(name, f"not on the servers' PATH, though {beside / name} is there: {breaks}", f"engine.env={{PATH: {beside}:{path}}}")  # fmt: skip
    return yellow(name, f"not found: {breaks}", f"{remedy}; kernels that come compiled, or are in a cache, do without.")


def kernel_caches(engine: EngineConf | None = None) -> list[Check]:
    """Kernels compiled by earlier servers of this user, where a server looks for them."""
    have = dict(os.environ) if engine is None else server_environment(engine)
    sizes = {name: size_of(folder) for name, folder in _cache_folders(have).items() if folder.is_dir()}
    what = ", ".join(f"{name} {gib(size)}" for name, size in sizes.items()) or "none yet"
    if sum(sizes.values()) < LEAST_CACHE:
        return [yellow("compiled kernels", what, "The first server with each backend compiles for minutes, silently: keep deadlines.load_idle_s at 300 or more, or bring the caches from a machine of the same kind.")]  # fmt: skip
    return [green("compiled kernels", what)]


def _cache_folders(have: Mapping[str, str]) -> dict[str, Path]:
    at_home, caches = home(), caches_folder()
    return {
        "flashinfer": Path(have.get("FLASHINFER_WORKSPACE_BASE", at_home)) / ".cache" / "flashinfer",
        "tvm-ffi": Path(have.get("TVM_FFI_CACHE_DIR", at_home / ".cache" / "tvm-ffi")),
        "triton": Path(have.get("TRITON_CACHE_DIR", at_home / ".triton" / "cache")),
        "torchinductor": Path(have.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{_user()}")),
        "sglang": Path(have.get("SGLANG_CACHE_DIR", caches / "sglang")),
        "deep_gemm": at_home / ".cache" / "deep_gemm",
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return str(os.getuid())
