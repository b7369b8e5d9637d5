"""Inputs: what a config names outside itself, as checks of whether it is there: models, prompts, rows, a profile, a cluster.

Not here: what must hold between the keys (agreement.py); whether a model fits (sweeps/drafter.py), whether a Ray answers (cluster.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.cluster import misspelt
from orchestrator.config.sources import CONF
from orchestrator.config.yaml_text import Key
from orchestrator.errors import ConfError
from orchestrator.nearest import nearest
from orchestrator.plan import RANDOM, Plan
from results.files import RunDirProblem
from results.rundir import RunDir
from sweeps.space import SearchSpace

Mistakes = Iterator[tuple[Key, str]]

Sound = Callable[[Key], bool]
"""Whether a key can be looked at: it has no mistake, nor may a misspelt one have been meant for it."""


def target(plan: Plan, *_: Any) -> Mistakes:
    if plan.engine.name == "sglang":
        yield from _checkpoint(("target", "path"), plan.target.path)


def drafters(plan: Plan, asked: SearchSpace, _: Sound) -> Mistakes:
    """Every drafter that the space can choose."""
    if plan.engine.name != "sglang" or "drafter" not in asked.domains:
        return
    chosen = {name: path for name, path in plan.drafters.items() if name in asked.domains["drafter"].values()}
    wrong = {name: list(_checkpoint(("drafters", name), path)) for name, path in chosen.items()}
    there = [name for name, mistakes in wrong.items() if not mistakes]
    alone = f" To leave it out: space.drafter=[{', '.join(there)}]." if there else ""
    for mistakes in wrong.values():
        yield from ((key, f"{text}{alone}") for key, text in mistakes)


def _checkpoint(key: Key, path: str) -> Mistakes:
    if path.startswith("/") and not (Path(path) / "config.json").is_file():
        lacks = "no config.json in it" if Path(path).is_dir() else "no such directory"
        yield key, f"{path}: {lacks}. Give a checkpoint's directory, or a hub name."


def profile(plan: Plan, *_: Any) -> Mistakes:
    """A simulated engine knows the drafters of its profile and no others."""
    if plan.engine.name != "simulated":
        return
    known, wrong = profile_drafters(plan.engine.profile)
    yield from ((("engine", "profile"), line) for line in wrong)
    for name in plan.conf["drafters"]:
        if not wrong and name not in known:
            yield ("drafters", name), f"profile {plan.engine.profile} knows no such drafter.{nearest(name, known)}"


def gpus_of_profile(plan: Plan, *_: Any) -> Mistakes:
    """A simulated engine has the GPUs of its profile and no others."""
    profile, gpus = plan.engine.profile, plan.cluster.gpus
    if plan.engine.name != "simulated" or isinstance(gpus, str) or profile_drafters(profile)[1]:
        return
    from orchestrator.simulator.profile import load_profile

    there = [str(number) for number in range(load_profile(profile).gpus)]
    wrong = [repr(gpu) for gpu in gpus if gpu not in there]
    if wrong:
        what = (
            f"profile {profile} has no GPU {' nor '.join(wrong)}. There are: {', '.join(there)}; all takes all of them."
        )
        yield ("cluster", "gpus"), what


def recording(plan: Plan, *_: Any) -> Mistakes:
    path = plan.engine.recording
    if plan.engine.name == "replay" and (path is None or not Path(path).exists()):
        what = "missing: the rows to replay" if path is None else f"{path}: no such file or directory to replay"
        yield ("engine", "recording"), f"{what}. Give a run directory, Parquet or JSON lines."


def prompts(plan: Plan, *_: Any) -> Mistakes:
    prompts = plan.workload.prompts
    if prompts == RANDOM:
        return
    shipped = sorted({"chat-mix", *(path.stem for path in (CONF / "prompts").glob("*.jsonl"))})
    if prompts not in shipped and not Path(prompts).is_file():
        yield ("workload", "prompts"), f"{prompts!r} is neither a JSONL file nor shipped.{nearest(prompts, shipped)}"


def warm_start(plan: Plan, *_: Any) -> Mistakes:
    for path in plan.warm_start:
        try:
            RunDir.open(path)
        except RunDirProblem as problem:
            yield ("warm_start",), str(problem)


def sampler(plan: Plan, *_: Any) -> Mistakes:
    if plan.sampler.name == "gp" and importlib.util.find_spec("torch") is None:
        yield (
            ("sampler", "name"),
            "gp needs torch, which is not installed here: pip install -e '.[gp]' in its checkout, or take spec.",
        )


def address(plan: Plan, *_: Any) -> Mistakes:
    if wrong := misspelt(plan.cluster.address):
        yield ("cluster", "address"), wrong


def profile_drafters(profile: str) -> tuple[list[str], list[str]]:
    """Names of the drafters that a simulated engine has, and what is wrong with the profile."""
    from orchestrator.simulator.profile import load_profile

    try:
        return list(load_profile(profile).drafters), []
    except ConfError as error:
        return [], [line.removeprefix("engine.profile: ") for line in error.mistakes]
