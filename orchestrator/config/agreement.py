"""Agreement: what must hold between the keys of a config, each of which is fine by itself.

A check is skipped while a section it looks at has mistakes of its own, so that one slip is not reported twice.
Not here: single values (checks.py); what a server of some version accepts (sweeps/rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.config.nearest import nearest
from orchestrator.config.sources import CONF
from orchestrator.config.yaml_text import Key
from orchestrator.errors import ConfError
from orchestrator.plan import Plan
from sweeps.settings import knobs
from sweeps.space import SearchSpace

Mistakes = Iterator[tuple[Key, str]]

TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
TRIPLE_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE")
DRAFTER_ALGORITHMS = ("EAGLE3", "STANDALONE", "DFLASH")
"""Algorithms that load a checkpoint of their own; EAGLE may find its layers in the target."""


def disagreements(plan: Plan, asked: SearchSpace, sound: Callable[..., bool], to_run: bool) -> Mistakes:
    """Every mistake between keys.  `asked` is the space as it was given, without what follows from other sections;
    `sound(*sections)` says whether these sections can be looked at.  Not `to_run`: this machine's disk is not asked."""
    for sections, check in _CHECKS:
        if sound(*sections) and (to_run or check not in _ON_DISK):
            yield from check(plan, asked)


def _algorithm(plan: Plan, asked: SearchSpace) -> Mistakes:
    if "algorithm" in asked.domains:
        return
    speculative = [name for name in asked.domains if name in knobs() and knobs()[name].scope == "speculation"]
    if plan.conf["drafters"] or speculative:
        why = f"space.{speculative[0]} is" if speculative else "drafters are"
        yield ("space", "algorithm"), f"missing, though {why} given. Write e.g. algorithm: [none, EAGLE3]."


def _triple(_: Plan, asked: SearchSpace) -> Mistakes:
    given = [name for name in TRIPLE if name in asked.domains]
    algorithms = _chosen(asked, "algorithm", TRIPLE_ALGORITHMS)
    if algorithms and given and len(given) < len(TRIPLE):
        for name in TRIPLE:
            if name not in given:
                yield (
                    ("space", name),
                    f"missing: {algorithms[0]} takes {', '.join(TRIPLE)} all together or none of them.",
                )


def _drafter(plan: Plan, asked: SearchSpace) -> Mistakes:
    algorithms = _chosen(asked, "algorithm", DRAFTER_ALGORITHMS)
    if algorithms and "drafter" not in asked.domains:
        names = f"[{', '.join(plan.drafters)}]" if plan.drafters else "NAME, and drafters: {NAME: path}"
        yield ("space", "drafter"), f"missing: {algorithms[0]} needs a drafter. Write drafter: {names}."


def _drafter_names(plan: Plan, asked: SearchSpace) -> Mistakes:
    if "drafter" not in asked.domains:
        return
    for name in asked.domains["drafter"].values():
        if name not in plan.drafters:
            hint = nearest(name, plan.drafters) or " Write drafters: {NAME: path} and its name here."
            yield ("space", "drafter"), f"{name!r} is no name under drafters.{hint}"


def _room(plan: Plan, asked: SearchSpace) -> Mistakes:
    domain, largest = asked.domains.get("max_running_requests"), max(plan.workload.concurrency)
    if domain and min(domain.values()) < largest:
        low = min(domain.values())
        yield (
            ("space", "max_running_requests"),
            f"{low} is below the largest concurrency, {largest}: the server would queue. Raise it, or leave it out.",
        )


def _points_that_count(plan: Plan, _: SearchSpace) -> Mistakes:
    for point in plan.goal.at:
        if point not in plan.workload.concurrency:
            there = ", ".join(map(str, plan.workload.concurrency))
            yield ("objective", "at"), f"{point} is not measured: workload.concurrency is {there}."


def _some_bound(plan: Plan, _: SearchSpace) -> Mistakes:
    budget = plan.budget
    if budget.launches is None and budget.gpu_hours is None and budget.hours is None:
        yield ("budget",), "has no bound: a sweep would never end. Give launches, gpu_hours or hours."


def _needs_of_sglang(plan: Plan, _: SearchSpace) -> Mistakes:
    if plan.engine.name != "sglang":
        return
    if not plan.engine.python:
        yield (
            ("engine", "python"),
            "missing: the interpreter of the environment SGLang is installed in, e.g. /opt/sglang/bin/python.",
        )
    if not plan.target.path:
        yield ("target", "path"), "missing: the directory of the target model, or its hub name."


def _checkpoints(plan: Plan, space: SearchSpace) -> Mistakes:
    """Of the target and of every drafter that the space can choose."""
    if plan.engine.name != "sglang":
        return
    chosen = space.domains["drafter"].values() if "drafter" in space.domains else []
    places: list[tuple[Key, str]] = [(("target", "path"), plan.target.path)]
    places += [(("drafters", name), path) for name, path in plan.drafters.items() if name in chosen]
    for key, path in places:
        if path.startswith("/") and not (Path(path) / "config.json").is_file():
            yield (
                key,
                f"{path}: {'no config.json in it' if Path(path).is_dir() else 'no such directory'}. Give a checkpoint's directory, or a hub name.",
            )


def _profile(plan: Plan, _: SearchSpace) -> Mistakes:
    """A simulated engine knows the drafters of its profile and no others."""
    if plan.engine.name != "simulated":
        return
    known, wrong = profile_drafters(plan.engine.profile)
    yield from ((("engine", "profile"), line) for line in wrong)
    for name in plan.conf["drafters"]:
        if not wrong and name not in known:
            yield ("drafters", name), f"profile {plan.engine.profile} knows no such drafter.{nearest(name, known)}"


def _prompts(plan: Plan, _: SearchSpace) -> Mistakes:
    prompts = plan.workload.prompts
    shipped = sorted({"chat-mix", *(path.stem for path in (CONF / "prompts").glob("*.jsonl"))})
    if prompts not in shipped and not Path(prompts).is_file():
        yield ("workload", "prompts"), f"{prompts!r} is neither a JSONL file nor shipped.{nearest(prompts, shipped)}"


def _gpus(plan: Plan, _: SearchSpace) -> Mistakes:
    gpus = plan.cluster.gpus
    if gpus in ("all", "none"):
        return
    if isinstance(gpus, str) or not gpus:
        yield ("cluster", "gpus"), f"{gpus!r} is neither all, none nor a list such as [0, 1]."


def _warm_start(plan: Plan, _: SearchSpace) -> Mistakes:
    for path in plan.warm_start:
        if not path.is_dir():
            yield ("warm_start",), f"{path}: no such run directory."


def profile_drafters(profile: str) -> tuple[list[str], list[str]]:
    """Names of the drafters that a simulated engine has, and what is wrong with the profile."""
    from orchestrator.simulator.profile import load_profile

    try:
        return list(load_profile(profile).drafters), []
    except ConfError as error:
        return [], [line.removeprefix("engine.profile: ") for line in error.mistakes]


def _chosen(space: SearchSpace, name: str, among: tuple[str, ...]) -> list[Any]:
    domain = space.domains.get(name)
    return [value for value in domain.values() if value in among] if domain else []


_CHECKS: list[tuple[tuple[str, ...], Callable[[Plan, SearchSpace], Mistakes]]] = [
    (("engine", "target"), _needs_of_sglang),
    (("engine", "target", "drafters"), _checkpoints),
    (("engine", "drafters"), _profile),
    (("engine", "space", "drafters"), _algorithm),
    (("space",), _triple),
    (("space", "drafters"), _drafter),
    (("engine", "space", "drafters"), _drafter_names),
    (("space", "workload"), _room),
    (("objective", "workload"), _points_that_count),
    (("budget",), _some_bound),
    (("workload",), _prompts),
    (("cluster",), _gpus),
    (("warm_start",), _warm_start),
]

_ON_DISK = (_checkpoints, _prompts, _warm_start)
