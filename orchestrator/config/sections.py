"""Sections: each part of a config read from what was given, key by key, as its own declaration says.

Keys, types, bounds and meaning are declared in plan.py (a dataclass a section), sweeps/settings.py (`space:`) and
results/measurement.py (`objective:`); here they are walked.  A mistake is noted and the key's default stands in, so that
one reading finds them all.  Not here: single values (checks.py), what must hold between keys (agreement.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from orchestrator.config.checks import (
    SECRET,
    Wrong,
    read_domain,
    read_knob,
    read_number,
    read_server_arg,
    read_text,
    read_value,
)
from orchestrator.config.given import Given
from orchestrator.config.yaml_text import Key, shown
from orchestrator.nearest import near, nearest
from orchestrator.plan import Budget, ClusterConf, Deadlines, EngineConf, SamplerConf, Target, Workload
from results.measurement import metrics
from results.redaction import is_secret
from sweeps.observation import Goal
from sweeps.settings import ARGS, knobs, spelt
from sweeps.space import Domain, SearchSpace

SECTIONS: dict[str, type[Any]] = {
    "target": Target,
    "engine": EngineConf,
    "cluster": ClusterConf,
    "workload": Workload,
    "budget": Budget,
    "sampler": SamplerConf,
    "deadlines": Deadlines,
}
KEYS = (
    "target", "drafters", "drafters_unchecked", "engine", "cluster", "space", "server_args", "workload", "objective", "budget", "sampler",
    "warm_start", "deadlines", "notify", "out",
)  # fmt: skip
"""What stands at the top of a config, in the order in which it is stored."""
OBJECTIVE = ("maximize", "minimize", "at", "weights", "limits", "price_per_gpu_hour")

_PATHS: dict[Key, Callable[[str], bool]] = {
    ("target", "path"): lambda text: text.startswith("."),
    ("engine", "python"): lambda text: "/" in text,
    ("engine", "recording"): lambda _: True,
    ("engine", "profile"): lambda text: text.endswith(".yaml"),
    ("workload", "prompts"): lambda text: text.endswith(".jsonl"),
}
"""Keys that hold a path, and which of their values are relative to the file that gives them."""
_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "speculative_draft_model": "speculative_draft_model_path",
}
_OTHER_HOMES: dict[str, Key] = {
    "model": ("target", "path"),
    "model_path": ("target", "path"),
    "context_length": ("target", "context_length"),
    "dtype": ("target", "dtype"),
    "host": ("engine", "host"),
}
"""Arguments of SGLang that are given elsewhere than in `server_args:`."""


def read_section(given: Given, name: str, kind: type[Any]) -> Any:
    """A section that is a dataclass of plan.py."""
    values, hints, clean = _mapping(given, name), get_type_hints(kind), {}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    refuse_unknown(given, (name,), fields)
    for key, field in fields.items():
        if key in values:
            with _noting(given, name, key):
                clean[key] = read_value(hints[key], values[key], key, field.metadata)
                clean[key] = _absolute(given, (name, key), clean[key], _PATHS.get((name, key)))
    _refuse_environment(given, clean.get("env", {}))
    return kind(**clean)


def read_space(given: Given) -> SearchSpace:
    """`space:` and `server_args:` as they were given; a value of null is as if the key were not there."""
    return SearchSpace({**_knob_domains(given), **_server_arg_domains(given)})


def read_drafters(given: Given) -> dict[str, str]:
    drafters = {}
    for name, value in _mapping(given, "drafters").items():
        with _noting(given, "drafters", name):
            drafters[name] = _absolute(given, ("drafters", name), read_text(value), lambda text: text.startswith("."))
    return drafters


def read_drafters_unchecked(given: Given) -> bool:
    value = given.values.get("drafters_unchecked")
    if value is not None:
        with _noting(given, "drafters_unchecked"):
            return bool(read_value(bool, value, "drafters_unchecked", {}))
    return False


def read_goal(given: Given) -> Goal:
    values, goal = _mapping(given, "objective"), Goal()
    refuse_unknown(given, ("objective",), OBJECTIVE)
    with _noting(given, "objective", "maximize"):
        goal = dataclasses.replace(goal, maximize=_metric_to_raise(values.get("maximize", goal.maximize)))
    if values.get("minimize") is not None:
        with _noting(given, "objective", "minimize"):
            goal = dataclasses.replace(goal, minimize=_metric_to_lower(values["minimize"], values.get("maximize")))
    with _noting(given, "objective", "at"):
        goal = dataclasses.replace(goal, at=_points(values.get("at", "all")))
    if values.get("price_per_gpu_hour") is not None:
        with _noting(given, "objective", "price_per_gpu_hour"):
            price = read_number(values["price_per_gpu_hour"], "price_per_gpu_hour", {"low": 0.0})
            goal = dataclasses.replace(goal, price_per_gpu_hour=price)
    return dataclasses.replace(goal, limits=_limits(given, values.get("limits")))


def read_weights(given: Given) -> list[float]:
    """Of the load points that count, in their order; empty: all alike."""
    values, weights = _mapping(given, "objective").get("weights"), []
    if values is not None and not isinstance(values, list):
        given.mistake(
            ("objective", "weights"), f"{values!r} is no list: write one number a load point, e.g. [2, 1, 1]."
        )
        return []
    for i, value in enumerate(values or []):
        with _noting(given, "objective", "weights", i):
            weights.append(read_number(value, "weights", {"low": 0.0}))
    return weights


def read_warm_start(given: Given) -> tuple[Path, ...]:
    values, paths = given.values.get("warm_start"), []
    if values is not None and not isinstance(values, list):
        given.mistake(("warm_start",), f"{values!r} is no list: write [{values}]")
        return ()
    for i, value in enumerate(values or []):
        with _noting(given, "warm_start", i):
            paths.append(Path(_absolute(given, ("warm_start", i), read_text(value), lambda _: True)))
    return tuple(paths)


def read_notify(given: Given) -> tuple[str, ...]:
    """An argument list; no shell reads it."""
    value = given.values.get("notify")
    if value is None:
        return ()
    if not isinstance(value, list):
        given.mistake(("notify",), f"{value!r} is no list of arguments: write [program, argument, …]")
        return ()
    words: list[str] = []
    for i, word in enumerate(value):
        with _noting(given, "notify", i):
            words.append(read_text(word))
    return tuple(words)


def read_out(given: Given) -> Path:
    """Where runs go; relative to the directory the sweep is started in, whoever gives it."""
    out = "runs"
    if given.values.get("out") is not None:
        with _noting(given, "out"):
            out = read_text(given.values["out"])
    return Path(_joined(Path.cwd(), out))


def refuse_unknown(given: Given, at: Key, names: Collection[str]) -> None:
    """Note every key of a section (or of the top) that is none of `names`."""
    inside = given.values if not at else _mapping(given, str(at[0]))
    for name in inside:
        if name not in names:
            hint, meant = _meant(name, at, names)
            given.mistake((*at, name), f"no such key.{hint}", meant=meant)


def _meant(name: str, at: Key, names: Collection[str]) -> tuple[str, list[Key]]:
    """Which keys a misspelt or misplaced one may have been, in words and as such."""
    if here := near(name, names):
        return nearest(name, names), [(*at, other) for other in here]
    homes = [home for home in _homes().get(name, ()) if home != (*at, name)]
    spelt = [repr(shown(home) if len(home) > 1 else f"{name}:") for home in homes]
    return f" Did you mean {' or '.join(spelt)}?" if homes else nearest(name, names), homes


@cache
def _homes() -> dict[str, list[Key]]:
    """Name of a key → everywhere it may stand."""
    homes: dict[str, list[Key]] = {name: [(name,)] for name in KEYS}
    inside = {section: [field.name for field in dataclasses.fields(kind)] for section, kind in SECTIONS.items()}
    for section, names in {**inside, "objective": list(OBJECTIVE), "space": list(knobs())}.items():
        for name in names:
            homes.setdefault(name, []).append((section, name))
    return homes


def _mapping(given: Given, name: str) -> dict[str, Any]:
    """A section's keys; nothing given is an empty section."""
    value = given.values.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    given.mistake((name,), f"{value!r} is no section: its keys stand under it, as in {name}: {{key: value}}.")
    return {}


@contextmanager
def _noting(given: Given, *key: str | int) -> Iterator[None]:
    """Note the mistake that reading this key meets, and go on."""
    try:
        yield
    except Wrong as wrong:
        for at, text in wrong.found:
            given.mistake((*key, *at), text)


def _absolute(given: Given, key: Key, value: Any, relative: Callable[[str], bool] | None) -> Any:
    """A path as it is from anywhere: relative ones start at the file that gives them."""
    if relative is None or not isinstance(value, str):
        return value
    return _joined(given.source(key).folder, value) if value.startswith("~/") or relative(value) else value


def _joined(folder: Path, text: str) -> str:
    """A path without leading `..`; symbolic links in what a person wrote stay (an environment's interpreter is one)."""
    path, folder = Path(text).expanduser() if text.startswith("~/") else Path(text), folder.resolve()
    if path.is_absolute():
        return str(path)
    parts = list(path.parts)
    while parts[:1] == [".."]:
        folder, parts = folder.parent, parts[1:]
    return str(folder.joinpath(*parts))


def _refuse_environment(given: Given, env: dict[str, str]) -> None:
    for name in env:
        if is_secret(name):
            given.mistake(("engine", "env", name), SECRET)
        elif name == "CUDA_VISIBLE_DEVICES":
            given.mistake(("engine", "env", name), "is set for each launch. Choose GPUs with cluster.gpus.")


def _knob_domains(given: Given) -> dict[str, Domain]:
    domains: dict[str, Domain] = {}
    for name, value in _mapping(given, "space").items():
        knob = knobs().get(name)
        if knob is None:
            hint, meant = _meant_knob(name)
            given.mistake(("space", name), f"no such knob.{hint}", meant=meant)
        elif value is not None:
            with _noting(given, "space", name):
                domains[name] = read_domain(value, partial(read_knob, knob), knob.type in (int, float))
    return domains


def _meant_knob(name: str) -> tuple[str, list[Key]]:
    plain = spelt(name)
    by_server_name = {knob.server_name: knob.name for knob in knobs().values()}
    if meant := by_server_name.get(_ALIASES.get(plain, plain)):
        return f" Did you mean '{meant}'?", [("space", meant)]
    hint, keys = _meant(name, ("space",), knobs())
    if near(name, knobs()):
        hint += " Knobs are declared in sweeps/settings.py."
    elif name not in _homes():
        hint = f" If it is an argument of SGLang, `server_args:` passes it through.{hint}"
    return hint, keys


def _server_arg_domains(given: Given) -> dict[str, Domain]:
    domains: dict[str, Domain] = {}
    for name, value in _mapping(given, "server_args").items():
        if refused := _not_passed(name):
            given.mistake(("server_args", name), refused[0], meant=refused[1])
        elif value is not None:
            with _noting(given, "server_args", name):
                domains[ARGS + name] = read_domain(value, read_server_arg, True)
    return domains


def _not_passed(name: str) -> tuple[str, list[Key]] | None:
    """Why an argument cannot be passed through, and the key to give it under."""
    plain = _ALIASES.get(name, name)
    for knob in knobs().values():
        if plain in (knob.server_name, knob.name):
            return f"is the knob '{knob.name}'. Write space.{knob.name}.", [("space", knob.name)]
    if name in _OTHER_HOMES:
        return f"is given elsewhere. Write {shown(_OTHER_HOMES[name])}.", [_OTHER_HOMES[name]]
    if name == "port":
        return "is chosen for each launch. Leave it out.", []
    return (SECRET, []) if is_secret(name) else None


def _metric_to_raise(value: object) -> str:
    names, text = ["speedup", *_metrics("higher")], read_text(value)
    if text in _metrics("lower"):
        raise Wrong(f"{text!r} is better lower. Write objective.minimize={text}")
    if text not in names:
        raise Wrong(f"{text!r} is nothing to maximize.{nearest(text, names)}")
    return text


def _metric_to_lower(value: object, raised: object) -> str:
    """`maximize: speedup` is the default and may stand beside it."""
    if raised not in (None, Goal().maximize):
        raise Wrong(
            f"{value!r}, and maximize {raised!r}: there is one goal. Give one of both, and a limit for the other."
        )
    names, text = _metrics("lower"), read_text(value)
    if text in ("speedup", *_metrics("higher")):
        raise Wrong(f"{text!r} is better higher. Write objective.maximize={text}")
    if text not in names:
        raise Wrong(f"{text!r} is nothing to minimize.{nearest(text, names)}")
    return text


def _metrics(better: str) -> list[str]:
    return [metric.name for metric in metrics().values() if metric.better == better]


def _points(value: object) -> tuple[int, ...]:
    if value == "all":
        return ()
    if not isinstance(value, list):
        raise Wrong(f"{value!r} is neither all nor a list of concurrencies")
    return tuple(read_value(list[int], value, "at", {"low": 1}))


def _limits(given: Given, values: object) -> dict[str, float]:
    names, limits = _metrics("lower"), {}
    if values is not None and not isinstance(values, dict):
        given.mistake(("objective", "limits"), f"{values!r} is no section: write e.g. {{ttft_p99_ms: 500}}.")
        return {}
    for name, value in (values or {}).items():
        if name not in names:
            higher = (
                " It is better higher: a limit is the most that a metric may be." if name in _metrics("higher") else ""
            )
            given.mistake(
                ("objective", "limits", name),
                f"no metric that can be limited from above.{higher or nearest(name, names)}",
            )
            continue
        with _noting(given, "objective", "limits", name):
            limits[name] = read_number(value, name, {"low": 0.0})
    return limits
