"""What a conf needs, against what is there: checkpoints, prompts, GPUs for its servers, its Ray cluster."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.doctor.check import Check, gib, green, red, yellow
from orchestrator.doctor.disk import home
from orchestrator.drafters import Inspected, found_here, line_of
from orchestrator.errors import ConfError, MachineError
from orchestrator.gpus import discover
from orchestrator.measuring.workload import load_prompts
from orchestrator.nvml import Nvml
from orchestrator.plan import Plan
from results.acceptance import Pair
from results.coverage import named
from sweeps.finding import Finding
from sweeps.settings import ARGS

CONNECT_S = 3.0
POINTER = b"version https://git-lfs"
LARGEST_INDEX = 64 * 2**20


def mistakes(error: ConfError) -> list[Check]:
    """Of a conf that cannot be loaded; what it needs is looked at once it can."""
    return [red("config", line, "Correct it there, or give the key anew: key=value.") for line in error.mistakes]


def checkpoints(plan: Plan, variables: Mapping[str, str] | None = None) -> list[Check]:
    """The target and every drafter that the space can choose, on disk or in Hugging Face's cache."""
    if plan.engine.name == "simulated":
        return [green("profile", f"{plan.engine.profile}: drafters {', '.join(plan.drafters) or 'none'}; no checkpoint is read")]  # fmt: skip
    if plan.engine.name == "attached":
        return [green("server", f"{plan.engine.url} already runs; no checkpoint is read")]
    environment = {**os.environ, **plan.engine.env} if variables is None else variables
    chosen = plan.space.domains["drafter"].values() if "drafter" in plan.space.domains else []
    places = {"target": plan.target.path, **{f"drafter {name}": p for name, p in plan.drafters.items() if name in chosen}}  # fmt: skip
    dummy = "dummy" in _held(plan, "load_format")
    return [_checkpoint(name, path, environment, dummy) for name, path in places.items()]


def drafters(plan: Plan) -> list[Check]:
    """What a sweep's own inspection finds of every algorithm with its drafter, where the checkpoints are on this disk."""
    found = found_here(plan, None)
    checks = [_finding(plan, found, pair, one) for pair, one in found.said()]
    fit = [named(pair) for pair in found.findings if not any(pair == other for other, _ in found.said())]
    return [*checks, green("drafters", f"{', '.join(fit)}: inspected, no errors")] if fit else checks


def _finding(plan: Plan, found: Inspected, pair: Pair, one: Finding) -> Check:
    what = line_of(plan, pair, one)
    if one.severity == "error" and pair in found.refused:
        return red("drafters", what, "A sweep drops this drafter: correct it, or leave it out of space.drafter.")
    return yellow("drafters", what, "python -m orchestrator inspect DRAFTER target=TARGET says all of it.")


def _held(plan: Plan, argument: str) -> list[object]:
    domain = plan.space.domains.get(ARGS + argument)
    return list(domain.values()) if domain else []


def _checkpoint(name: str, path: str, environment: Mapping[str, str], dummy: bool) -> Check:
    if not path.startswith("/"):
        return _relative(name, path) if Path(path).is_dir() else _hub(name, path, environment)
    folder = Path(path)
    if not folder.is_dir():
        return red(name, f"{path}: no such directory", "Give a checkpoint's directory, or a hub name.")
    if not (folder / "config.json").is_file():
        return red(name, f"{path}: no config.json in it", "Give the directory that config.json lies in.")
    weights = [file for pattern in ("*.safetensors", "*.bin", "*.gguf") for file in folder.glob(pattern)]
    missing = [*_missing(folder), *(file.name for file in weights if _is_pointer(file))]
    if missing:
        return red(name, f"{path}: {len(missing)} files of weights are missing or mere pointers, such as {missing[0]}", "Download it anew; with git: git lfs pull.")  # fmt: skip
    if not weights and not dummy:
        return red(name, f"{path}: config.json, but no weights", "Download them, or server_args.load_format=dummy for random ones.")  # fmt: skip
    return green(name, f"{path}, {gib(sum(file.stat().st_size for file in weights))} of weights")


def _relative(name: str, path: str) -> Check:
    """A word that could be a hub name; SGLang, started elsewhere, would take it for one."""
    key = "target.path" if name == "target" else f"drafters.{name.removeprefix('drafter ')}"
    return red(name, f"{path} is a directory here, but reads as a hub name", f"Write {key}=./{path}.")


def _missing(folder: Path) -> Iterator[str]:
    """Files that an index of weights names and that are not there."""
    for index in folder.glob("*.safetensors.index.json"):
        if index.stat().st_size > LARGEST_INDEX:
            continue
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            yield index.name
            continue
        yield from sorted(str(file) for file in named if not (folder / str(file)).is_file())


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as start:
        return start.read(len(POINTER)) == POINTER


def _hub(name: str, path: str, environment: Mapping[str, str]) -> Check:
    at_home = Path(environment.get("HF_HOME") or home() / ".cache" / "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or at_home / "hub")
    if any(hub.glob(f"models--{path.replace('/', '--')}/snapshots/*/config.json")):
        return green(name, f"{path}, in {hub}")
    what = f"{path} is a hub name and not in {hub}"
    if environment.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return red(name, f"{what}, and HF_HUB_OFFLINE forbids to download it", "Download it first, or give its directory.")  # fmt: skip
    return yellow(name, what, "The first launch downloads it, within deadlines.load_s; better download it before.")


def prompts(plan: Plan) -> list[Check]:
    try:
        book = load_prompts(plan.workload, None)
    except ConfError as error:
        return [red("prompts", line, "Correct the file, or choose another with workload.prompts.") for line in error.mistakes]  # fmt: skip
    return [green("prompts", f"{plan.workload.prompts}: {len(book.measured)} to measure with, {len(book.warm_up)} to warm up with")]  # fmt: skip


def tensor_parallel(plan: Plan, nvml: Nvml | None = None) -> list[Check]:
    """Whether the largest server fits on this machine's GPUs, and whether some would idle."""
    size = max(int(value) for value in plan.space.domains["tp_size"].values())
    if plan.cluster.address != "local":
        return [green("tp_size", f"{size}; the cluster's machines decide")]
    if plan.engine.name != "simulated" and plan.cluster.gpus == "none":
        return [green("tp_size", f"{size}, one server at a time on the CPU")]
    try:
        count = _count(plan, nvml)
    except MachineError as error:
        return [red("tp_size", f"{size}, but {error}", "See the check of the GPUs.")]
    if size > count:
        return [red("tp_size", f"a server needs {size} GPUs, there are {count}", "Lower target.tp_size (or space.tp_size), or run it on a machine with more.")]  # fmt: skip
    what = f"{size} of {count} GPUs a server, {count // size} at a time"
    if count % size:
        return [yellow("tp_size", f"{what}; {count % size} stay idle", "Nothing to mend; other jobs may use them by cluster.gpus=[0,1].")]  # fmt: skip
    return [green("tp_size", what)]


def _count(plan: Plan, nvml: Nvml | None) -> int:
    if plan.engine.name == "simulated":
        from orchestrator.simulator.profile import load_profile

        return load_profile(plan.engine.profile).gpus
    return len(discover(plan.cluster.gpus, nvml))


def cluster(plan: Plan, timeout_s: float = CONNECT_S) -> list[Check]:
    """Whether something listens where `cluster.address` says; whether it is a Ray that fits, only Ray can tell."""
    address = plan.cluster.address
    if address == "local":
        return [green("Ray cluster", "one of our own, on this machine")]
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return [red("Ray cluster", f"cluster.address {address!r} is no host:port", "Write e.g. cluster.address=10.0.0.1:6379 (ray status on the head node shows it), or local.")]  # fmt: skip
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError as error:
        return [red("Ray cluster", f"{address} cannot be reached ({error})", "Is it started there (ray start --head --port=6379), and the port open to this machine?")]  # fmt: skip
    return [green("Ray cluster", f"{address} answers")]
