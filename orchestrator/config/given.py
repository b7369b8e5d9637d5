"""Given: what a person gave, files and words merged into one tree, each value with the place it came from.

Mappings merge, everything else replaces.  Not here: which files and words (sources.py), how ${references} are resolved
(references.py), what a key may hold (sections.py, checks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.yaml_text import Key, shown


@dataclass(frozen=True)
class Source:
    """One YAML, or the command line: its values as written.  Relative paths in it are relative to `folder`."""

    label: str
    folder: Path
    values: dict[str, Any]


@dataclass
class Given:
    """The merged tree while it is being checked, and every mistake found so far."""

    main: Source
    values: dict[str, Any] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    wrong: set[Key] = field(default_factory=set)
    """Keys that have a mistake, and keys nobody gave that a misspelt one may have meant."""
    _origins: dict[Key, Source] = field(default_factory=dict)

    def mistake(self, key: Key, text: str, source: Source | None = None, meant: Iterable[Key] = ()) -> None:
        """Note what is wrong with a key; `meant` are the keys it may be a misspelling of."""
        stop = "" if text.endswith((".", "?")) else "."
        line = f"{(source or self.source(key)).label}: {shown(key)}: {text}{stop}"
        if line not in self.mistakes:
            self.mistakes.append(line)
        self.wrong.update([key, *(other for other in meant if other not in self._origins)])

    def sound(self, key: Key) -> bool:
        """Whether there is no mistake at this key, inside it, or at what it stands in."""
        return not any(wrong[: len(key)] == key[: len(wrong)] for wrong in self.wrong)

    def source(self, key: Key) -> Source:
        """What gave this key; for a key that nobody gave, what last gave a part of the section it belongs to."""
        while key and key not in self._origins:
            key = key[:-1]
        return self._origins.get(key, self.main)

    def merge(self, source: Source) -> None:
        given = {name: value for name, value in source.values.items() if value is not None or name not in self.values}
        self._merge(self.values, given, source, ())

    def _merge(self, into: dict[str, Any], values: dict[str, Any], source: Source, at: Key) -> None:
        for name, value in values.items():
            self._origins[(*at, name)] = source
            if not isinstance(value, dict):
                into[name] = value
                continue
            if not isinstance(into.get(name), dict):
                into[name] = {}
            self._merge(into[name], value, source, (*at, name))

    def drop(self, key: Key) -> None:
        """Take a value out, together with the list it stands in."""
        inside: Any = self.values
        for name in key[:-1]:
            if not isinstance(inside.get(name), dict):
                inside.pop(name, None)
                return
            inside = inside[name]
        inside.pop(key[-1], None)

    def resolve(self, defaults: dict[str, Any]) -> None:
        """Replace every ${reference}, once and for all; `defaults` may be referred to as well."""
        for key in [key for key, text in leaves(self.values) if text == "???"]:
            self.mistake(key, "must be given: a config that this one builds on leaves it to you.")
            self.drop(key)
        asked = [(key, text) for key, text in leaves(self.values) if isinstance(text, str) and "${" in text]
        if not asked:
            return
        from orchestrator.config.references import replace  # imports OmegaConf, which most configs do without

        broken = replace(asked, self.values, defaults)
        for key, text in asked:
            if key in broken:
                self.mistake(key, f"{text!r}: {broken[key]}")
                self.drop(key)


def leaves(values: Any, at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is no mapping and no list, with its key."""
    if isinstance(values, dict | list):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from leaves(value, (*at, name))
    else:
        yield at, values
