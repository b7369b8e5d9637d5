"""docs/config.md and the help of `plan`: every key of a config, made from the dataclasses that declare them.

Not here: reading a config (sections.py).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from orchestrator.config.sections import KEYS, OBJECTIVE, SECTIONS
from results.measurement import metrics
from sweeps.settings import Settings, knobs

_LEADS = {"space": "Each knob takes one value (held), a list (one is chosen) or `{low: …, high: …}` (a range)."}
_PLAIN: dict[str, tuple[str, str, str]] = {
    "drafters": ("name: path", "{}", "Drafters by name; space.drafter chooses among the names."),
    "drafters_unchecked": ("true or false", "false", "Launch drafters that inspection refuses, too; their rows carry the flag drafter_unchecked."),
    "server_args": ("name: value", "{}", "Any other argument of the engine under its own name, held or swept as in space; one of several words is a list in that list: [[1, 2, 4]] holds, [[1, 2], [1, 2, 4]] chooses."),
    "warm_start": ("list of paths", "[]", "Earlier run directories whose rows the sampler learns from."),
    "notify": ("list of arguments", "[]", "A command to run when the sweep ends, well or badly: facts as JSON on its standard input and as SWEEP_STATE, SWEEP_RUN, SWEEP_VERDICT, SWEEP_REPORT."),
    "out": ("path", "runs", "Where runs go, as <out>/<conf>/<utc stamp>/; on the command line out=DIR is the run directory itself."),
}  # fmt: skip
_OBJECTIVE: dict[str, tuple[str, str, str]] = {
    "maximize": ("speedup, or a metric that is better higher", "speedup", "What counts: speedup is output_tok_s over the best plain server."),
    "minimize": ("a metric that is better lower", "null", "Instead of maximize, e.g. tpot_p50_ms: a speedup is then how many times lower than the plain server's."),
    "at": ("all, or a list of concurrencies", "all", "Load points that count."),
    "weights": ("list of numbers, one a load point that counts", "[]", "What each counts in the mean of log speedups that one setting for all loads is judged by, in the order of at; empty: all alike."),
    "limits": ("metric: upper bound", "{}", "Bounds on metrics that are better lower, e.g. {ttft_p99_ms: 500}; what breaks one cannot win."),
    "price_per_gpu_hour": ("number", "null", "Of any currency: then the reports say what a million tokens cost."),
}  # fmt: skip
HEAD = """# Every key of a config

Made from the declarations by `make docs`; do not edit. An annotated example is [conf/eagle3.yaml](../conf/eagle3.yaml); `python -m orchestrator plan conf=… -h` prints
this list with the values that a config gives. A key that is left out has its default; unknown keys are refused, all mistakes at once."""


@dataclass(frozen=True)
class KeyDoc:
    key: str
    kind: str
    """What may stand there, in words."""
    default: str
    doc: str


def keys() -> Iterator[KeyDoc]:
    """In the order in which a config is stored."""
    for top in KEYS:
        if top in SECTIONS:
            yield from _section(top, SECTIONS[top])
        elif top == "space":
            yield from _space()
        elif top == "objective":
            yield from (KeyDoc(f"objective.{name}", *_OBJECTIVE.get(name, ("", "", ""))) for name in OBJECTIVE)
        else:
            yield KeyDoc(top, *_PLAIN.get(top, ("", "", "")))


def config_page() -> str:
    found = list(keys())
    parts = [HEAD]
    for top in KEYS:
        rows = [one for one in found if one.key.split(".")[0] == top]
        parts += [
            f"## {top}",
            "\n".join(["| key | takes | default | meaning |", "| --- | --- | --- | --- |", *map(_row, rows)]),
        ]
    names = ", ".join(f"`{metric.name}`" for metric in metrics().values() if metric.better == "lower")
    return "\n\n".join([*parts, f"Metrics that `objective.limits` takes: {names}."]) + "\n"


def keys_shown(conf: Mapping[str, Any] | None) -> Iterator[str]:
    """One or two lines a key for a terminal; `conf`: the resolved config whose values are shown, None: defaults."""
    width = max(len(one.key) for one in keys())
    for one in keys():
        value = _given(one.key, conf) if conf is not None else None
        yield f"{one.key:{width}}  {one.doc}"
        yield f"{'':{width}}  {one.kind}; default {one.default}{f'; here {value}' if value is not None else ''}"


def _section(name: str, kind: type[Any]) -> Iterator[KeyDoc]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        made = field.default_factory
        default = made() if made is not dataclasses.MISSING else field.default
        bounds = _bounds(field.metadata)
        yield KeyDoc(f"{name}.{field.name}", _words(hints[field.name]) + bounds, _shown(default), field.metadata["doc"])


def _space() -> Iterator[KeyDoc]:
    for knob in knobs().values():
        bounds = _bounds({"low": knob.low, "high": knob.high})
        choices = f" ({', '.join(map(str, knob.choices))})" if knob.choices else ""
        own = getattr(Settings(), knob.name)
        default = "the server's own" if own is None else _shown(own)
        doc = f"{knob.doc} SGLang: {knob.server_name}."
        yield KeyDoc(f"space.{knob.name}", f"{_words(knob.type)}{bounds}{choices}", default, doc)


def _words(kind: Any) -> str:
    """A type for a person."""
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, options))
    if get_origin(kind) is list:
        return f"list of {_words(options[0])}s"
    if get_origin(kind) is dict:
        return "name: text"
    if options:
        return " or ".join("null" if option is type(None) else _words(option) for option in options)
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}[kind.__name__]


def _bounds(metadata: Mapping[str, Any]) -> str:
    low, high, above = metadata.get("low"), metadata.get("high"), metadata.get("above")
    if above is not None:
        return f" above {above:g}"
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    return f" from {low:g}" if low is not None else f" to {high:g}" if high is not None else ""


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return (
        {None: "null", True: "true", False: "false", "": "empty"}.get(value, str(value))
        if isinstance(value, str | bool | None)
        else str(value)
    )


def _given(key: str, conf: Mapping[str, Any]) -> str | None:
    value: Any = conf
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else _shown(value)


def _row(one: KeyDoc) -> str:
    cells = (f"`{one.key}`", one.kind, f"`{one.default}`", one.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    (Path(sys.argv[1]) / "config.md").write_text(config_page(), encoding="utf-8")
