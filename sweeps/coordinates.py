"""Coordinates: a space as a sampler sees it, static and independent, and the way back to legal settled Settings.

Not here: which coordinates to try (sampler/), what is legal (legal.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sweeps.facts import Facts
from sweeps.legal import ENUMERABLE, Legal, TooLarge, legal
from sweeps.rules import TREE_ALGORITHMS, problems, settle, tree_capacity
from sweeps.settings import ARGS, Settings
from sweeps.space import Choice, Domain, Range, SearchSpace

DRAWS = 4000
"""Random points looked at for one that is new, where the space is too large to enumerate."""
FILL = "draft_fill"
"""Coordinate of num_draft_tokens: 0 is its lower and 1 its upper bound at these steps and topk, geometric between."""
UNIT = Range(0.0, 1.0, whole=False)


@dataclass(frozen=True)
class Proposal:
    settings: Settings
    coordinates: Mapping[str, Any]


class Coordinates:
    """A space in coordinates that are static and independent, as every sampler wants them, and back to legal settled Settings."""

    def __init__(self, space: SearchSpace, facts: Facts) -> None:
        self.space = _proposed_space(space)
        self._facts = facts
        self.largest_concurrency = facts.largest_concurrency
        self.speculates = any(a != "none" for a in space.domains["algorithm"].values()) if "algorithm" in space.domains else False  # fmt: skip
        self._free = self.space.free
        self._fills = "num_draft_tokens" in self._free
        self.axes: dict[str, Choice | Range] = {
            (FILL if name == "num_draft_tokens" else name): UNIT if name == "num_draft_tokens" else domain
            for name, domain in self._free.items()
        }
        """Name of a coordinate → what it may be: for a Choice the place of an option, for a Range the value itself."""
        self._remaining: Iterator[Proposal] | None = None

    @cached_property
    def legal(self) -> Legal | None:
        """Everything legal; None when there is too much of it to look at."""
        try:
            return legal(self.space, self._facts)
        except TooLarge:
            return None

    def fits_in(self, launches: int | None) -> bool:
        """Whether so many launches are enough for every legal setting."""
        ranges = [domain for domain in self._free.values() if isinstance(domain, Range)]
        if launches is None or not all(domain.whole for domain in ranges):
            return False
        return self.legal is not None and len(self.legal.settings) <= launches

    def decode(self, coordinates: Mapping[str, Any]) -> Settings | None:
        """Settled settings of these coordinates; None when they are illegal."""
        values = {n: _value(d, coordinates[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
        if self._fills:
            options = self._draft_tokens(self.space.settings(values))
            if not options:
                return None
            values["num_draft_tokens"] = options[_filled(coordinates[FILL], len(options))]
        settings = settle(self.space.settings(values), self._facts).settings
        return None if problems(settings, self._facts) else settings

    def encode(self, settings: Settings) -> dict[str, Any] | None:
        """Coordinates that decode to these settings; None when they are outside the space."""
        direct = self._as_they_stand(settings)
        if direct is not None and self.decode(direct) == settings:
            return direct
        asked = self.legal.asked(settings) if self.legal is not None else None
        return None if asked is None else self._coordinates(asked)

    def _coordinates(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Of values of every free knob."""
        plain = {n: _coordinate(d, asked[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
        if not self._fills:
            return plain
        return plain | {FILL: _fill_of(self._draft_tokens(self.space.settings(asked)), asked["num_draft_tokens"])}

    def _as_they_stand(self, settings: Settings) -> dict[str, Any] | None:
        """Coordinates at which the free knobs have these values; None where one is not among its values."""
        given = settings.as_dict() | {ARGS + k: v for k, v in settings.server_args}
        coordinates: dict[str, Any] = {}
        for name, domain in self._free.items():
            if name == "num_draft_tokens":
                continue
            value = given.get(name)
            known = domain.values() if isinstance(domain, Choice) else None
            if value is None:
                value = domain.values()[0]
            if (known is not None and value not in known) or (isinstance(domain, Range) and not _within(domain, value)):
                return None
            coordinates[name] = _coordinate(domain, value)
        if self._fills:
            values = {n: _value(d, coordinates[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
            coordinates[FILL] = _fill_of(self._draft_tokens(self.space.settings(values)), settings.num_draft_tokens)
        return coordinates

    def some(self, chance: random.Random, count: int) -> list[Proposal]:
        """So many legal settings at random, distinct; fewer where not so many are found."""
        source = self._enumerated(self.legal, chance) if self.legal is not None else self._drawn(chance)
        found: dict[str, Proposal] = {}
        for proposal in source:
            found.setdefault(proposal.settings.key, proposal)
            if len(found) == count:
                break
        return list(found.values())

    def candidates(self, chance: random.Random | None) -> Iterator[Proposal]:
        """What is legal, in random order, or without `chance` as the space is written; what was taken does not come again.

        Of a space too large, some random points.
        """
        if self.legal is None:
            return self._drawn(chance or random.Random(0))  # noqa: S311 - an order, not secrets
        if self._remaining is None:
            self._remaining = self._enumerated(self.legal, chance)
        return self._remaining

    def _enumerated(self, known: Legal, chance: random.Random | None) -> Iterator[Proposal]:
        count = len(known.settings)
        order = chance.sample(range(count), min(count, ENUMERABLE)) if chance else range(count)
        for settings in (known.settings[place] for place in order):
            coordinates = self.encode(settings)
            assert coordinates is not None
            yield Proposal(settings, coordinates)

    def _drawn(self, chance: random.Random) -> Iterator[Proposal]:
        for _ in range(DRAWS):
            coordinates = {name: _draw(axis, chance) for name, axis in self.axes.items()}
            settings = self.decode(coordinates)
            if settings is not None:
                yield Proposal(settings, coordinates)

    def _draft_tokens(self, settings: Settings) -> list[int]:
        """Values of num_draft_tokens that are distinct launches at these steps and topk; none where no tree is of that size."""
        allowed = [int(v) for v in self._free["num_draft_tokens"].values()]
        if settings.algorithm not in TREE_ALGORITHMS or settings.num_steps is None or settings.eagle_topk is None:
            return allowed
        if settings.eagle_topk == 1:
            return [settings.num_steps + 1]
        capacity = tree_capacity(settings.num_steps, settings.eagle_topk)
        return [v for v in allowed if settings.num_steps < v <= capacity]


def _proposed_space(space: SearchSpace) -> SearchSpace:
    """The space without the plain server, unless there is nothing else."""
    domain = space.domains.get("algorithm")
    speculative = tuple(a for a in domain.values() if a != "none") if domain else ()
    if not speculative:
        return space
    return SearchSpace({**space.domains, "algorithm": Choice(speculative)})


def _within(domain: Range, value: Any) -> bool:
    """Settings of another run may hold anything that is passed through."""
    return isinstance(value, int | float) and domain.low <= value <= domain.high


def _value(domain: Domain, coordinate: Any) -> Any:
    return coordinate if isinstance(domain, Range) else domain.values()[int(coordinate)]


def _coordinate(domain: Domain, value: Any) -> Any:
    return value if isinstance(domain, Range) else domain.values().index(value)


def _filled(fill: float, count: int) -> int:
    """Index of the option at `fill`: option i owns an equal share of a logarithmic scale, so few tokens are as likely as many."""
    return min(count - 1, int((count + 1) ** fill) - 1)


def _fill_of(options: list[int], tokens: int | None) -> float:
    """Middle of the share that decodes to `tokens`; 0 where there is nothing to choose."""
    if len(options) < 2 or tokens not in options:
        return 0.0
    index = options.index(tokens)
    return (math.log(index + 1) + math.log(index + 2)) / 2 / math.log(len(options) + 1)


def _draw(axis: Choice | Range, chance: random.Random) -> Any:
    if isinstance(axis, Choice):
        return chance.randrange(len(axis.options))
    return chance.randint(int(axis.low), int(axis.high)) if axis.whole else chance.uniform(axis.low, axis.high)
