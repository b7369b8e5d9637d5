"""What a conf needs, against what is there: checkpoints, prompts, GPUs for its servers, its Ray cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.cluster import LOCAL, machines, misspelt
from orchestrator.doctor.check import Check, gib, green, red, yellow
from orchestrator.doctor.disk import home
from orchestrator.drafters import Inspected, found_here, line_of
from orchestrator.engines import dialect_for
from orchestrator.engines.arguments import unknown_arguments
from orchestrator.errors import ConfError, MachineError
from orchestrator.measuring.workload import load_prompts
from orchestrator.nvml import Nvml
from orchestrator.offers import gpu_sets, own_gpus, per_set
from orchestrator.plan import Plan
from results.acceptance import Pair
from results.coverage import named
from sweeps.finding import Finding
from sweeps.settings import ARGS, Settings

ANSWERS_S = 45.0
"""Of a server that runs, and of a Ray: both are waited for at least as long as by a sweep."""
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
        return [_server(plan)]
    environment = {**os.environ, **plan.engine.env} if variables is None else variables
    chosen = plan.space.domains["drafter"].values() if "drafter" in plan.space.domains else []
    places = {"target": plan.target.path, **{f"drafter {name}": p for name, p in plan.drafters.items() if name in chosen}}  # fmt: skip
    dummy = "dummy" in _held(plan, "load_format")
    return [_checkpoint(name, path, environment, dummy) for name, path in places.items()]


def _server(plan: Plan) -> Check:
    """The one that runs already, as it says itself."""
    from orchestrator.engines.attached import Attached  # late: it brings in the load generator

    dialect = Attached(plan)
    try:
        runs = f"SGLang {dialect.version} with {dialect.target}, {dialect.as_run(dialect.info, Settings())}"
    except MachineError as error:
        return red("server", str(error), "Start it, or correct engine.url: a sweep would not start.")
    return green("server", f"{plan.engine.url} already runs: {runs}; no checkpoint is read")


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


def arguments(plan: Plan) -> list[Check]:
    """Names under server_args, as far as the engine's own are known here."""
    try:
        unknown = unknown_arguments(plan, dialect_for(plan).version)
    except MachineError:  # said by the checks of the engine
        return []
    return [red("server_args", line, "Correct the name, or leave it out.") for line in unknown]


def tensor_parallel(plan: Plan, nvml: Nvml | None = None) -> list[Check]:
    """Whether the largest server fits on this machine's GPUs, and whether some would idle."""
    size = max(int(value) for value in plan.space.domains["tp_size"].values())
    if plan.cluster.address != LOCAL:
        return [green("tp_size", f"{size}; the cluster's machines decide")]
    if not per_set(plan):
        return [green("tp_size", f"{size}, one server at a time on the CPU")]
    try:
        count = len(own_gpus(plan, nvml))
    except MachineError as error:
        return [red("tp_size", f"{size}, but {error}", "See the check of the GPUs.")]
    if size > count:
        return [red("tp_size", f"a server needs {size} GPUs, there are {count}", "Lower target.tp_size (or space.tp_size), or run it on a machine with more.")]  # fmt: skip
    what = f"{size} of {count} GPUs a server, {count // size} at a time"
    if count % size:
        return [yellow("tp_size", f"{what}; {count % size} stay idle", "Nothing to mend; other jobs may use them by cluster.gpus=[0,1].")]  # fmt: skip
    return [green("tp_size", what)]


def cluster(plan: Plan) -> list[Check]:
    """Whether a Ray answers where `cluster.address` says, and has the machines."""
    address = plan.cluster.address
    if address == LOCAL:
        return [green("Ray cluster", "one of our own, on this machine")]
    if wrong := misspelt(address):
        return [red("Ray cluster", f"cluster.address: {wrong}", "A sweep would not start.")]
    try:
        found = machines(address)
        sets = gpu_sets(found, plan.cluster.accelerator, per_set(plan))
    except MachineError as error:
        return [red("Ray cluster", str(error), "A sweep would not start.")]
    return [green("Ray cluster", f"{address} answers; {sets} servers at a time")]
