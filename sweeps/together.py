"""Together: settings put together from one legal choice of each part of a space, made when they are looked at.

Not here: finding the parts and what is legal in them (legal.py).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from sweeps.settings import ARGS, Settings, knobs, passed

Values = tuple[Any, ...]
_ABSENT = object()
"""Value of an argument that is not passed through."""


@dataclass(frozen=True)
class Part:
    """Knobs that rules tie together."""

    names: tuple[str, ...]
    """Those whose value differs within the part, by choice or by a rewrite."""
    legal: Mapping[Values, Values]
    """Settled values of `names` → values of `free` that settle so."""
    free: tuple[str, ...]
    counts: Counter[int]
    """Place of the first rule to refuse (one past the last: none) → points."""


class Together(Sequence[Settings]):
    """Settings put together from one legal choice of each part; the last part changes first."""

    def __init__(self, base: Settings, parts: Sequence[Part]) -> None:
        self._base = base
        self._parts = parts
        self._choices = [list(part.legal) for part in parts]

    def __len__(self) -> int:
        return math.prod(map(len, self._choices))

    @overload
    def __getitem__(self, index: int) -> Settings: ...
    @overload
    def __getitem__(self, index: slice) -> list[Settings]: ...
    def __getitem__(self, index: int | slice) -> Settings | list[Settings]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        chosen = []
        for choices in reversed(self._choices):
            index, place = divmod(index, len(choices))
            chosen.append(choices[place])
        return self._made(reversed(chosen))

    def __iter__(self) -> Iterator[Settings]:
        return map(self._made, itertools.product(*self._choices))

    def asked(self, settings: Settings) -> Mapping[str, Any] | None:
        found: dict[str, Any] = {}
        chosen = [values_of(settings, part.names) for part in self._parts]
        for part, values in zip(self._parts, chosen, strict=True):
            if values not in part.legal:
                return None
            found |= dict(zip(part.free, part.legal[values], strict=True))
        return found if self._made(chosen) == settings else None

    def plain_side(self) -> Together:
        """The same with each part cut down to what differs between its plain servers."""
        return Together(self._base, [_plain_side(part) for part in self._parts])

    def _made(self, chosen: Iterable[Values]) -> Settings:
        changed: dict[str, Any] = {}
        for part, values in zip(self._parts, chosen, strict=True):
            changed.update(zip(part.names, values, strict=True))
        return varied(self._base, changed)


def _plain_side(part: Part) -> Part:
    kept = [place for place, name in enumerate(part.names) if _of_the_plain_server(name)]
    first: dict[Values, Values] = {}
    for values in part.legal:
        first.setdefault(tuple(values[place] for place in kept), values)
    return Part(part.names, {values: part.legal[values] for values in first.values()}, part.free, part.counts)


def _of_the_plain_server(name: str) -> bool:
    if name.startswith(ARGS):
        return not name.startswith(ARGS + "speculative_")
    return knobs()[name].scope == "server"


def varied(base: Settings, values: Mapping[str, Any]) -> Settings:
    """New settings with these values of knobs and arguments; quicker than Settings.replace, which checks every field."""
    made = object.__new__(Settings)
    made.__dict__.update(base.__dict__)
    args = None
    for name, value in values.items():
        if not name.startswith(ARGS):
            made.__dict__[name] = value
            continue
        args = dict(base.server_args) if args is None else args
        args[name[len(ARGS) :]] = value
    if args is not None:
        made.__dict__["server_args"] = passed({n: value for n, value in args.items() if value is not _ABSENT})
    return made


def values_of(settings: Settings, names: Iterable[str]) -> Values:
    fields = settings.__dict__
    try:
        return tuple([fields[name] for name in names])
    except KeyError:
        return tuple([fields[name] if name in fields else _argument(settings, name) for name in names])


def _argument(settings: Settings, name: str) -> Any:
    return dict(settings.server_args).get(name[len(ARGS) :], _ABSENT)
