"""SearchSpace: for every knob what a sweep may give it: one value (held), some (chosen) or a range.

`server_args` are swept under the name `server_args.<name>`.  Not here: which combinations can run (rules.py), how they
are proposed (sampler/).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.settings import ARGS, Settings, knobs, spelt


@dataclass(frozen=True)
class Held:
    value: Any

    def values(self) -> list[Any]:
        return [self.value]


@dataclass(frozen=True)
class Choice:
    options: tuple[Any, ...]

    def values(self) -> list[Any]:
        return list(self.options)


@dataclass(frozen=True)
class Range:
    """Whole numbers from low to high, both included; or, with `whole` False, a continuous range."""

    low: float
    high: float
    whole: bool = True

    def values(self) -> list[Any]:
        """Every whole number; of a continuous range, nine points (for counting and for a fallback only)."""
        if self.whole:
            return list(range(int(self.low), int(self.high) + 1))
        return [self.low + (self.high - self.low) * i / 8 for i in range(9)]


Domain = Held | Choice | Range


def written(domain: Domain) -> Any:
    """A domain as a config writes it; a value of several words is a list inside a list, since a list chooses."""
    if isinstance(domain, Range):
        return {"low": domain.low, "high": domain.high}
    if isinstance(domain, Held) and not isinstance(domain.value, tuple):
        return domain.value
    return [list(value) if isinstance(value, tuple) else value for value in domain.values()]


@dataclass(frozen=True)
class SearchSpace:
    """Knob name (or `server_args.<name>`) → Domain.  Knobs that are missing are left to the server."""

    domains: Mapping[str, Domain]

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", {_spelt(name): domain for name, domain in self.domains.items()})

    @property
    def free(self) -> dict[str, Choice | Range]:
        """The domains with more than one value, in the order of the knobs."""
        order = [*knobs(), *sorted(name for name in self.domains if name.startswith(ARGS))]
        found = {name: self.domains[name] for name in order if name in self.domains}
        return {n: d for n, d in found.items() if not isinstance(d, Held) and len(d.values()) > 1}

    @property
    def size(self) -> int:
        """Points of the full grid, before any rule."""
        return math.prod(len(domain.values()) for domain in self.domains.values())

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """The Settings with these values for the free knobs and the held ones for the rest; not yet settled."""
        chosen = {name: values.get(name, domain.values()[0]) for name, domain in self.domains.items()}
        args = {name.removeprefix(ARGS): v for name, v in chosen.items() if name.startswith(ARGS)}
        return Settings.from_dict({n: v for n, v in chosen.items() if n in knobs()} | {"server_args": args})

    def grid(self) -> Iterator[Settings]:
        """Every point of the full grid, unsettled and with twins."""
        free = self.free
        for values in itertools.product(*(domain.values() for domain in free.values())):
            yield self.settings(dict(zip(free, values, strict=True)))


def _spelt(name: str) -> str:
    return ARGS + spelt(name.removeprefix(ARGS)) if name.startswith(ARGS) else name
