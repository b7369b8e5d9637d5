"""References: what ${target.path} and ${oc.env:NAME} in a config stand for.  OmegaConf has one door, this one.

Not here: which values hold one, and what becomes of those that cannot be resolved (given.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.checks import SECRET
from orchestrator.config.yaml_text import Key
from results.redaction import is_secret

_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*([A-Za-z0-9_]+)")


def replace(asked: Sequence[tuple[Key, str]], values: dict[str, Any], defaults: dict[str, Any]) -> dict[Key, str]:
    """Put what each reference stands for in its place in `values`; returns why some cannot be, by key.

    Args:
        asked: Every (key, text) of `values` that holds a reference.
        values: The merged config.
        defaults: What may be referred to although nobody gave it.
    """
    broken = {key: reason for key, text in asked if (reason := _unreadable(text))}
    for key in broken:
        _put(values, key, "")
    tree = OmegaConf.create(_overlaid(defaults, values))
    for key, _ in asked:
        if key not in broken and (reason := _replace(tree, key, values)):
            broken[key] = reason
    return broken


def _replace(tree: Any, key: Key, values: dict[str, Any]) -> str | None:
    try:
        value = _at(tree, key)
        value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        return _reason(error)
    if "${" in str(value):
        return "still holds ${ when resolved, which a config cannot store."
    _put(values, key, value)
    return None


def _unreadable(text: str) -> str | None:
    """Why this reference is refused before anything is looked up."""
    if any(map(is_secret, _ENVIRONMENT.findall(text))):
        return SECRET
    try:
        OmegaConf.create({"value": text})
    except OmegaConfBaseException as error:
        return f"no readable reference, as ${{target.path}} is one: {_reason(error)}"
    return None


def _reason(error: Exception) -> str:
    said = str(error).splitlines()[0].removeprefix("KeyError raised while resolving interpolation: ")
    return f"{said.strip(chr(34))}."


def _overlaid(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    both = {name for name in low.keys() & high.keys() if isinstance(low[name], dict) and isinstance(high[name], dict)}
    return {**low, **high, **{name: _overlaid(low[name], high[name]) for name in both}}


def _at(values: Any, key: Key) -> Any:
    for name in key:
        values = values[name]
    return values


def _put(values: Any, key: Key, value: Any) -> None:
    _at(values, key[:-1])[key[-1]] = value
