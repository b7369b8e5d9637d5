"""Agreement: what must hold between the keys of a config, each of which is fine by itself.

A check is skipped while a key it looks at has a mistake of its own, so that one slip is not reported twice and no slip
waits for another.
Not here: single values (checks.py); what a server of some version accepts (sweeps/rules.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.config import inputs
from orchestrator.config.inputs import Mistakes, Sound, profile_drafters
from orchestrator.nearest import nearest
from orchestrator.plan import RANDOM, Plan
from sweeps.settings import ARGS, knobs
from sweeps.space import SearchSpace

TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
TRIPLE_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE")
DRAFTER_ALGORITHMS = ("EAGLE3", "STANDALONE", "DFLASH")
"""Algorithms that load a checkpoint of their own; EAGLE may find its layers in the target."""


def disagreements(plan: Plan, asked: SearchSpace, sound: Sound, to_run: bool, inputs: bool) -> Mistakes:
    """Every mistake between keys.  `asked` is the space as it was given, without what follows from other sections.
    Not `to_run`: this machine's disk is not asked, but for `inputs`: prompts, recording and earlier runs."""
    left_out = [check for check in _ON_DISK if not to_run and not (inputs and check in _INPUTS)]
    for names, check in _CHECKS:
        if all(sound(tuple(name.split("."))) for name in names) and check not in left_out:
            yield from check(plan, asked, sound)


def _algorithm(plan: Plan, asked: SearchSpace, sound: Sound) -> Mistakes:
    if "algorithm" in asked.domains:
        return
    speculative = [name for name in _given(asked, sound, knobs()) if knobs()[name].scope == "speculation"]
    if plan.conf["drafters"] or speculative:
        why = f"space.{speculative[0]} is" if speculative else "drafters are"
        yield ("space", "algorithm"), f"missing, though {why} given. Write e.g. algorithm: [none, EAGLE3]."


def _triple(_: Plan, asked: SearchSpace, sound: Sound) -> Mistakes:
    given = _given(asked, sound, TRIPLE)
    algorithms = _chosen(asked, "algorithm", TRIPLE_ALGORITHMS)
    if algorithms and given and len(given) < len(TRIPLE):
        for name in TRIPLE:
            if name not in given:
                yield (
                    ("space", name),
                    f"missing: {algorithms[0]} takes {', '.join(TRIPLE)} all together or none of them.",
                )


def _drafter(plan: Plan, asked: SearchSpace, _: Sound) -> Mistakes:
    algorithms = _chosen(asked, "algorithm", DRAFTER_ALGORITHMS)
    if algorithms and "drafter" not in asked.domains:
        names = f"[{', '.join(plan.drafters)}]" if plan.drafters else "NAME, and drafters: {NAME: path}"
        yield ("space", "drafter"), f"missing: {algorithms[0]} needs a drafter. Write drafter: {names}."


def _drafter_names(plan: Plan, asked: SearchSpace, sound: Sound) -> Mistakes:
    if "drafter" not in asked.domains or not _drafters_known(plan, sound):
        return
    for name in asked.domains["drafter"].values():
        if name not in plan.drafters and sound(("drafters", name)):
            hint = nearest(name, plan.drafters) or " Write drafters: {NAME: path} and its name here."
            yield ("space", "drafter"), f"{name!r} is no name under drafters.{hint}"


def _drafters_known(plan: Plan, sound: Sound) -> bool:
    """Whether the names are all there: those given, else those of a profile, which can be read."""
    if plan.conf["drafters"]:
        return True
    profile_read = sound(("engine", "profile")) and not profile_drafters(plan.engine.profile)[1]
    return sound(("engine", "name")) and (plan.engine.name != "simulated" or profile_read)


def _room(plan: Plan, asked: SearchSpace, _: Sound) -> Mistakes:
    domain, largest = asked.domains.get("max_running_requests"), max(plan.workload.concurrency)
    if domain and min(domain.values()) < largest:
        low = min(domain.values())
        yield (
            ("space", "max_running_requests"),
            f"{low} is below the largest concurrency, {largest}: the server would queue. Raise it, or leave it out.",
        )


def _points_that_count(plan: Plan, *_: Any) -> Mistakes:
    for point in plan.goal.at:
        if point not in plan.workload.concurrency:
            there = ", ".join(map(str, plan.workload.concurrency))
            yield ("objective", "at"), f"{point} is not measured: workload.concurrency is {there}."


def _weights(plan: Plan, *_: Any) -> Mistakes:
    """One a load point that counts, and something to weigh."""
    weights, points = plan.conf["objective"]["weights"], plan.goal.at or sorted(set(plan.workload.concurrency))
    if weights and len(weights) != len(points):
        named = ", ".join(map(str, points))
        yield (
            ("objective", "weights"),
            f"{len(weights)} numbers for the {len(points)} load points that count ({named}). Give one for each.",
        )
    elif weights and not sum(weights):
        yield ("objective", "weights"), "are all 0: nothing counts. Give one load point at least a weight."


def _some_bound(plan: Plan, *_: Any) -> Mistakes:
    budget = plan.budget
    if budget.launches is None and budget.gpu_hours is None and budget.hours is None:
        yield ("budget",), "has no bound: a sweep would never end. Give launches, gpu_hours or hours."


def _interpreter(plan: Plan, *_: Any) -> Mistakes:
    if plan.engine.name == "sglang" and not plan.engine.python:
        yield (
            ("engine", "python"),
            "missing: the interpreter of the environment SGLang is installed in, e.g. /opt/sglang/bin/python.",
        )


def _attached(plan: Plan, asked: SearchSpace, _: Sound) -> Mistakes:
    if plan.engine.name != "attached":
        if plan.engine.url is not None:
            yield ("engine", "url"), "only engine.name: attached has one."
        return
    if plan.engine.url is None:
        yield ("engine", "url"), "missing: the server that already runs, http://host:port."
    elif not re.fullmatch(r"http://[^/@?#]+/?", plan.engine.url):
        yield ("engine", "url"), f"{plan.engine.url!r} is no http://host:port: give the server that already runs."
    if asked.domains:
        section = "server_args" if all(name.startswith(ARGS) for name in asked.domains) else "space"
        yield (
            (section,),
            "nothing can be chosen of a server that already runs. Name a config without space and server_args (docs/guide.md has one).",
        )


def _launch_mode(plan: Plan, *_: Any) -> Mistakes:
    if plan.engine.launch_mode != "plain" and plan.engine.name in ("attached", "replay"):
        yield ("engine", "launch_mode"), f"engine.name: {plan.engine.name} launches no server. Leave it out."


def _target(plan: Plan, *_: Any) -> Mistakes:
    if plan.engine.name == "sglang" and not plan.target.path:
        yield ("target", "path"), "missing: the directory of the target model, or its hub name."


def _rate(plan: Plan, *_: Any) -> Mistakes:
    load = plan.workload
    if load.arrival == "poisson" and load.request_rate is None:
        yield ("workload", "request_rate"), "missing: arrival poisson needs requests per second and stream, e.g. 0.5."
    if load.arrival == "closed" and load.request_rate is not None:
        yield (
            ("workload", "request_rate"),
            "only arrival: poisson has a rate; a closed loop sends as fast as it is answered.",
        )


def _random_prompts(plan: Plan, asked: SearchSpace, _: Sound) -> Mistakes:
    domain = asked.domains.get("algorithm")
    speculates = domain is not None and any(value != "none" for value in domain.values())
    if plan.workload.prompts == RANDOM and speculates and not plan.workload.random_prompts:
        yield (
            ("workload", "prompts"),
            "random words are like no text: acceptance on them says nothing. Give real prompts, or random_prompts: true.",
        )


def _fits_context(plan: Plan, *_: Any) -> Mistakes:
    """A server refuses a request whose prompt and answer are longer together."""
    load, context = plan.workload, plan.target.context_length
    if context is None:
        return
    if load.output_tokens >= context:
        yield (
            ("workload", "output_tokens"),
            f"{load.output_tokens} leave no room for a prompt in target.context_length {context}: every request would be refused. Lower it, or serve a longer context.",
        )
    elif isinstance(load.input_tokens, int) and load.input_tokens + load.output_tokens > context:
        yield (
            ("workload", "input_tokens"),
            f"{load.input_tokens} and output_tokens {load.output_tokens} are more than target.context_length {context}.",
        )


def _client(plan: Plan, *_: Any) -> Mistakes:
    load, engine = plan.workload, plan.engine
    if load.client == "bench_serving" and engine.name not in ("sglang", "attached"):
        yield ("workload", "client"), f"bench_serving is SGLang's: engine {engine.name} has none."
    if load.client == "bench_serving" and engine.name == "attached" and not engine.python:
        yield ("engine", "python"), "missing: bench_serving is run by the interpreter that has SGLang, on this machine."
    if load.client == "bench_serving" and load.arrival != "closed":
        yield ("workload", "client"), "bench_serving is run with arrival: closed alone."


def _gpus(plan: Plan, *_: Any) -> Mistakes:
    gpus = plan.cluster.gpus
    if gpus in ("all", "none"):
        return
    if isinstance(gpus, str) or not gpus:
        yield ("cluster", "gpus"), f"{gpus!r} is neither all, none nor a list such as [0, 1]."


def _gpus_of_a_cluster(plan: Plan, *_: Any) -> Mistakes:
    gpus = plan.cluster.gpus
    if isinstance(gpus, list) and plan.cluster.address != "local":
        yield (
            ("cluster", "gpus"),
            f"{gpus} are this machine's; of a cluster they are chosen where its Ray is started: CUDA_VISIBLE_DEVICES=… ray start ….",
        )


def _given(asked: SearchSpace, sound: Sound, names: Iterable[str]) -> list[str]:
    """Those of the knobs that were given, be it with a mistake."""
    return [name for name in names if name in asked.domains or not sound(("space", name))]


def _chosen(space: SearchSpace, name: str, among: tuple[str, ...]) -> list[Any]:
    domain = space.domains.get(name)
    return [value for value in domain.values() if value in among] if domain else []


_CHECKS: list[tuple[tuple[str, ...], Callable[[Plan, SearchSpace, Sound], Mistakes]]] = [
    (("engine.name", "engine.python"), _interpreter),
    (("engine.name", "engine.url"), _attached),
    (("engine.name", "engine.launch_mode"), _launch_mode),
    (("engine.name", "engine.recording"), inputs.recording),
    (("engine.name", "target.path"), _target),
    (("engine.name", "target.path"), inputs.target),
    (("engine.name", "space.drafter"), inputs.drafters),
    (("engine.name", "engine.profile"), inputs.profile),
    (("space.algorithm",), _algorithm),
    (("space.algorithm",), _triple),
    (("space.algorithm", "space.drafter"), _drafter),
    (("space.drafter",), _drafter_names),
    (("space.max_running_requests", "workload.concurrency"), _room),
    (("objective.at", "workload.concurrency"), _points_that_count),
    (("objective.at", "objective.weights", "workload.concurrency"), _weights),
    (("budget.launches", "budget.gpu_hours", "budget.hours"), _some_bound),
    (("workload.prompts",), inputs.prompts),
    (("workload.prompts", "workload.random_prompts", "space.algorithm"), _random_prompts),
    (("workload.arrival", "workload.request_rate"), _rate),
    (("workload.input_tokens", "workload.output_tokens", "target.context_length"), _fits_context),
    (("workload.client", "workload.arrival", "engine.name", "engine.python"), _client),
    (("cluster.gpus",), _gpus),
    (("cluster.gpus", "engine.name", "engine.profile"), inputs.gpus_of_profile),
    (("cluster.address",), inputs.address),
    (("cluster.gpus", "cluster.address"), _gpus_of_a_cluster),
    (("sampler.name",), inputs.sampler),
    ((), inputs.warm_start),
]
"""The keys that each check looks at, and the check."""

_ON_DISK = (
    inputs.target,
    inputs.drafters,
    inputs.prompts,
    inputs.warm_start,
    inputs.sampler,
    inputs.recording,
    inputs.address,
    inputs.gpus_of_profile,
)
"""What is not asked where a conf is only read: what matters to whoever runs it."""
_INPUTS = (inputs.prompts, inputs.warm_start, inputs.recording, inputs.address, inputs.gpus_of_profile)
"""Of these, what a laptop without models and GPUs has to have, too."""
