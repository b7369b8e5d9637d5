"""YAML as text: read into plain values, and written so that it reads back the same.

Two differences to the usual Python reader, both because it guesses silently: `1e-3` is a number, and `12:30:00`, `08`
and `2026-01-01` are text (it makes 45000, text and a date of them).  A key given twice is reported, not overwritten.
Not here: what a value means (checks.py), files and their order (sources.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

Key = tuple[str | int, ...]
"""Where a value stands: ("space", "algorithm", 0) is space.algorithm[0]."""
Report = Callable[[Key, str], None]

_BOOLEAN = re.compile(r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")
_NOTHING = re.compile(r"^(?:~|null|Null|NULL|)$")
_WHOLE = re.compile(r"^[-+]?(?:0|[1-9][0-9]{0,17})$")
"""Longer ones are text: no key of ours takes them, and no column of a row holds them."""
_DECIMAL = re.compile(
    r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf|\.Inf|\.INF)$|^\.nan$|^\.NaN$"
)
_RULES = {"bool": _BOOLEAN, "null": _NOTHING, "int": _WHOLE, "float": _DECIMAL}


class _Loader(yaml.SafeLoader):
    """Takes for a boolean, null or number what _RULES say, and nothing else."""


class _Dumper(yaml.SafeDumper):
    """Quotes whatever this reader or the usual one would not take for text."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {}
for _name, _rule in _RULES.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _rule, None)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _DECIMAL, list("-+0123456789."))


def read_yaml(text: str, report: Report) -> Any:
    """The plain values of a YAML text; `report` hears of keys given twice or without a blank, which are left out.

    Raises:
        yaml.YAMLError: not YAML, or a tag that is not plain data.  `yaml_mistake` puts it in words.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _plain(loader, node, (), report)
    except RecursionError:
        raise yaml.YAMLError("an alias (*name) stands inside what it names") from None
    finally:
        loader.dispose()


def write_yaml(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def yaml_mistake(error: yaml.YAMLError) -> str:
    """Line, column and reason of a syntax error, on one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {error.problem or error.context}"


def number(text: str) -> int | float | None:
    """The number a text spells in this YAML; None when it spells none."""
    if _WHOLE.match(text):
        return int(text)
    return float(text) if _DECIMAL.match(text) and text[-1].isdigit() else None


def shown(key: Key) -> str:
    """A key as a person writes it: space.algorithm[0]."""
    words = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in key]
    return "".join(words).removeprefix(".")


def _plain(loader: Any, node: yaml.Node, at: Key, report: Report) -> Any:
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(loader, node, at, report)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_plain(loader, item, (*at, i), report) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.MarkedYAMLError(problem=f"the tag {node.tag} is not plain data", problem_mark=node.start_mark)
    return loader.construct_object(node)


def _no_blank(name: str, value: yaml.Node) -> bool:
    """Whether {a:1}, which is the key `a:1` without a value to YAML, was meant for {a: 1}."""
    return (
        ":" in name.strip(":") and isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
    )


def _mapping(loader: Any, node: yaml.MappingNode, at: Key, report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {}
    twice = set()
    for key_node, value_node in node.value:
        name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        if not key_node.tag.endswith(":str"):
            report((*at, name), f"this key is not text to YAML: quote it, '{name}'.")
        elif name in found:
            twice.add(name)
        elif _no_blank(name, value_node):
            first, _, rest = name.partition(":")
            report((*at, first), f"YAML wants a blank after the colon: write {first}: {rest}.")
        else:
            found[name] = _plain(loader, value_node, (*at, name), report)
    for name in sorted(twice):
        report((*at, name), "given twice. Keep one of them.")
        del found[name]
    return found
