"""Config: from words on a command line, or a stored config, to a whole, checked, frozen Plan; or one ConfError that
names every mistake.

Not here: reading files and words (sources.py), references (references.py), the sections one by one (sections.py), single
values (checks.py), what must hold between keys (agreement.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.config.agreement import disagreements
from orchestrator.config.checks import SECRET
from orchestrator.config.given import Given, leaves
from orchestrator.config.inputs import profile_drafters
from orchestrator.config.sections import (
    KEYS,
    SECTIONS,
    read_drafters,
    read_drafters_unchecked,
    read_goal,
    read_notify,
    read_out,
    read_section,
    read_space,
    read_warm_start,
    read_weights,
    refuse_unknown,
)
from orchestrator.config.sources import give, label_of, regive
from orchestrator.config.yaml_text import write_yaml
from orchestrator.errors import ConfError
from orchestrator.plan import EngineConf, Plan, Target, Workload
from results.redaction import secret_in
from sweeps.observation import Goal
from sweeps.settings import ARGS, knobs
from sweeps.space import Held, SearchSpace, written

ROOM_AT_A_RATE = 4
"""Requests that may run at once for each of a point's streams when they come at a rate: more than one may be out."""
MAY_CHANGE = ("budget.", "cluster.", "deadlines.", "engine.python", "engine.launch_mode", "notify")
"""What a resume may be told anew."""


def load_plan(words: Sequence[str], to_run: bool = True, otherwise: str | None = None, inputs: bool = False) -> Plan:
    """The Plan of `conf=NAME key=value …`; without conf=, of `otherwise`.

    Not `to_run`: whether models and prompts are on this machine's disk is not asked; with `inputs` of models alone.

    Raises:
        ConfError: every mistake of all files and words.
    """
    given, name = give(words, otherwise)
    return _plan(given, name, to_run, inputs)


def plan_from_conf(conf: dict[str, Any], name: str, base: Path, to_run: bool = True) -> Plan:
    """The Plan of a stored config, as `Plan.conf` holds it, whose plan.yaml is in the directory `base`.

    Not `to_run`: it is only read, perhaps on another machine, where models and prompts need not be.

    Raises:
        ConfError: as load_plan.
    """
    return _plan(regive(conf, label_of(base / "plan.yaml"), base, ()), name, to_run)


def with_words(plan: Plan, words: Sequence[str]) -> Plan:
    """The same config with some keys given anew.

    Raises:
        ConfError: as load_plan.
    """
    return _plan(regive(plan.conf, "plan.yaml", Path.cwd(), words), plan.name)


def to_yaml(plan: Plan) -> str:
    """The resolved config; as a file it loads again to an equal Plan."""
    return write_yaml(plan.conf)


def changed(old: Plan, new: Plan) -> list[str]:
    """Keys that differ and that a resume may not change, a line each: `space.num_steps: 1..3 → 1..5`."""
    before, after = dict(_flat(old.conf)), dict(_flat(new.conf))
    keys = [key for key in {**before, **after} if not key.startswith(MAY_CHANGE)]
    pairs = [(key, before.get(key, "not given"), after.get(key, "not given")) for key in keys]
    return [f"{key}: {was} → {now}" for key, was, now in pairs if was != now]


def _plan(given: Given, name: str, to_run: bool = True, inputs: bool = False) -> Plan:
    given.resolve({section: asdict(kind()) for section, kind in SECTIONS.items()})
    refuse_unknown(given, (), KEYS)
    _refuse_secrets(given, to_run)
    asked = read_space(given)
    plan = _assembled(given, name, asked)
    for key, text in list(disagreements(plan, asked, given.sound, to_run, inputs)):
        given.mistake(key, text)
    if given.mistakes:
        raise ConfError(given.mistakes)
    return plan


def _refuse_secrets(given: Given, to_run: bool) -> None:
    """A config is stored with its run, and whatever it names stands in command lines: it holds no secret's value."""
    found = [(key, secret_in(text)) for key, text in leaves(given.values) if to_run and isinstance(text, str)]
    for key, name in found:
        if name is not None:
            given.mistake(key, f"holds the value of the variable {name}, which {SECRET}")
            given.drop(key)


def _assembled(given: Given, name: str, asked: SearchSpace) -> Plan:
    sections = {section: read_section(given, section, kind) for section, kind in SECTIONS.items()}
    if sections["engine"].name == "attached":
        sections["cluster"] = replace(sections["cluster"], gpus="none")
    goal, drafters, warm_start, out = read_goal(given), read_drafters(given), read_warm_start(given), read_out(given)
    unchecked, weights, notify = read_drafters_unchecked(given), read_weights(given), read_notify(given)
    points = goal.at or sorted(set(sections["workload"].concurrency))
    goal = replace(goal, weights=dict(zip(points, weights, strict=False)))
    parts = {
        **{section: asdict(value) for section, value in sections.items()},
        **_stored_space(asked),
        "drafters": drafters,
        "drafters_unchecked": unchecked,
        "objective": _stored_goal(goal, weights),
        "warm_start": [str(path) for path in warm_start],
        "notify": list(notify),
        "out": str(out),
    }
    return Plan(
        name=name,
        drafters=drafters or _own_drafters(sections["engine"], asked),
        space=_whole_space(asked, sections["target"], sections["workload"]),
        goal=goal,
        warm_start=warm_start,
        out=out,
        conf={key: parts[key] for key in KEYS},
        drafters_unchecked=unchecked,
        notify=notify,
        **sections,
    )


def _own_drafters(engine: EngineConf, asked: SearchSpace) -> dict[str, str]:
    """Where none are given: a simulated engine has those of its profile; a replay, which reads no checkpoint, any that
    the space names (whether they were recorded is seen once the recording is read)."""
    if engine.name == "simulated":
        names = profile_drafters(engine.profile)[0]
    else:
        names = asked.domains["drafter"].values() if engine.name == "replay" and "drafter" in asked.domains else []
    return {name: name for name in names}


def _whole_space(asked: SearchSpace, target: Target, workload: Workload) -> SearchSpace:
    """With what other sections say of a server, in the order of the knobs."""
    streams = max(workload.concurrency)
    implied = {
        "algorithm": Held("none"),
        "max_running_requests": Held(streams if workload.arrival == "closed" else ROOM_AT_A_RATE * streams),
        "tp_size": Held(target.tp_size),
    }
    domains = {**implied, **asked.domains}
    order = [name for name in knobs() if name in domains]
    return SearchSpace({name: domains[name] for name in [*order, *sorted(domains.keys() - set(order))]})


def _stored_space(asked: SearchSpace) -> dict[str, dict[str, Any]]:
    """The space as it was asked for; what other sections imply is derived anew, so that a changed word counts."""
    domains = {name: written(domain) for name, domain in asked.domains.items()}
    args = {name: domain for name, domain in domains.items() if name.startswith(ARGS)}
    return {
        "space": {name: domain for name, domain in domains.items() if name not in args},
        "server_args": {name.removeprefix(ARGS): domain for name, domain in args.items()},
    }


def _stored_goal(goal: Goal, weights: Sequence[float]) -> dict[str, Any]:
    return {
        "maximize": goal.maximize, "minimize": goal.minimize, "at": list(goal.at) or "all", "weights": list(weights), "limits": dict(goal.limits),
        "price_per_gpu_hour": goal.price_per_gpu_hour,
    }  # fmt: skip


def _flat(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key → value as a person reads it."""
    for name, value in values.items():
        if isinstance(value, dict) and value.keys() != {"low", "high"}:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", f"{value['low']}..{value['high']}" if isinstance(value, dict) else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )
