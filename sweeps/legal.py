"""Legal: the whole of a space, counted: which distinct settings can run, how many points are twins, what refuses the rest.

A space falls into parts whose knobs no rule ties together (Rule.reads says which do).  Each part is enumerated by itself
and the whole follows: counts are multiplied, and settings are put together, one of each part, when they are looked at.
Not here: the rules (rules.py), which of the settings to try (sampler/).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.facts import NOTHING_KNOWN, Facts
from sweeps.rewrites import RENAMED, Changes
from sweeps.rule import Rule, Why
from sweeps.rules import REFUSALS, problems, refusals, rewrites, settle
from sweeps.settings import ARGS, Settings, knobs
from sweeps.space import SearchSpace
from sweeps.together import Part, Together, Values, values_of, varied

ENUMERABLE = 1_000_000
"""Points of the largest part up to which a space is enumerated."""

_PLACE = {rule.name: place for place, rule in enumerate(REFUSALS)}
_UNREFUSED = len(REFUSALS)


class TooLarge(Exception):  # noqa: N818 - what is the matter, as words
    """Some part of the space has more points than can be looked at one by one."""


@dataclass(frozen=True)
class Legal:
    total: int
    """Points of the grid; of a continuous range, nine stand for all."""
    settings: Sequence[Settings]
    """The distinct settings that can run, settled."""
    collapsed: int
    """Points that can run and are twins of another one."""
    refused: Counter[str]
    """Name of a rule → points it refuses; a point counts for one rule only, the first that can tell."""
    reasons: Mapping[str, str]
    """Name of a rule → why it refuses the first of them."""
    exact: bool = True
    """False: these are figures of points drawn at random (`sampled`)."""

    def asked(self, settings: Settings) -> Mapping[str, Any] | None:
        """Values of free knobs that settle into these settings; None when they are not among the legal ones."""
        return self.settings.asked(settings) if isinstance(self.settings, Together) else None

    def plain_servers(self, facts: Facts = NOTHING_KNOWN) -> list[Settings]:
        """Those that the legal settings are to be compared with, settled and distinct."""
        kept = self.settings.plain_side() if isinstance(self.settings, Together) else self.settings
        made = (settle(settings.plain(), facts).settings for settings in kept)
        return list({settings.key: settings for settings in made}.values())


def legal(space: SearchSpace, facts: Facts = NOTHING_KNOWN) -> Legal:
    """Count the whole grid of `space`, exactly.

    Raises:
        TooLarge: some part of the space has more than ENUMERABLE points.
    """
    shape = _Shape(space, facts)
    largest = max((shape.points(names) for names in shape.parts), default=1)
    if largest > ENUMERABLE:
        raise TooLarge(f"a part of the space has {largest} points; up to {ENUMERABLE} are looked at")
    base, first_refusal = shape.held()
    parts = [shape.part(names, base) for names in shape.parts]
    counts: Counter[int] = Counter({first_refusal: 1})
    for part in parts:
        counts = _joined(counts, part.counts)
    runs = counts.pop(_UNREFUSED, 0)
    settings = Together(base, parts if runs else [Part((), {}, (), Counter())])
    refused = Counter({REFUSALS[place].name: count for place, count in counts.items() if count})
    return Legal(space.size, settings, runs - len(settings), refused, {name: shape.reasons[name] for name in refused})


def sampled(draws: Iterable[Settings], facts: Facts) -> Legal:
    """The same figures of some points of a space too large to count: `draws`, as they are asked for."""
    found: dict[str, Settings] = {}
    refused: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    total = collapsed = 0
    for total, asked in enumerate(draws, start=1):  # noqa: B007 - the last one is the count
        settings = settle(asked, facts).settings
        if against := problems(settings, facts):
            refused[against[0].rule] += 1
            reasons.setdefault(against[0].rule, against[0].why)
        elif settings.key in found:
            collapsed += 1
        else:
            found[settings.key] = settings
    return Legal(total, list(found.values()), collapsed, refused, reasons, exact=False)


def _joined(one: Counter[int], other: Counter[int]) -> Counter[int]:
    """Of every point of one part with every point of another: which rule is the first to refuse it."""
    counts: Counter[int] = Counter()
    for (place, count), (other_place, other_count) in itertools.product(one.items(), other.items()):
        counts[min(place, other_place)] += count * other_count
    return counts


class _Shape:
    """How a space falls into parts, and the enumeration of one."""

    def __init__(self, space: SearchSpace, facts: Facts) -> None:
        self._space = space
        self._facts = facts
        self._domains = space.domains
        self._free = list(space.free)
        given = {*self._domains, *(ARGS + RENAMED.get(n.removeprefix(ARGS), "") for n in self._domains)} - {ARGS}
        self._all = {*knobs(), *given}
        self._rewrites = [rule for rule in rewrites(facts.known_version) if rule.awake(given)]
        self._refusals = [rule for rule in refusals(facts.known_version) if rule.awake(given)]
        self.reasons: dict[str, str] = {}
        """Name of a rule → why it refused the first point that it refused."""
        self._varying = self._what_varies()
        self.parts = self._tied()

    def points(self, names: set[str]) -> int:
        return math.prod(len(self._domains[name].values()) for name in self._free if name in names)

    def held(self) -> tuple[Settings, int]:
        """The values that are the same at every point, as settled, and the first rule that refuses every point for them."""
        settings = self._space.settings({})
        for rule in self._rewrites:
            if not rule.among(self._varying):
                for change in rule.says(settings, self._facts):
                    settings = settings.replace(**{change.knob: change.now})
        for refusal in self._refusals:
            why = None if refusal.among(self._varying) else refusal.says(settings, self._facts)
            if why is not None:
                self.reasons[refusal.name] = why
                return settings, _PLACE[refusal.name]
        return settings, _UNREFUSED

    def part(self, names: set[str], base: Settings) -> Part:
        """Every point of these knobs under the rules that read them, the others as in `base`.

        Knob by knob: after each, what can be settled or refused already is, and what has become the same goes on as one.
        """
        ordered = tuple(sorted(names))
        free = sorted((name for name in self._free if name in names), key=self._turn)
        rows = [_Row(base, 1, ())]
        counts: Counter[int] = Counter()
        for knob in self._in_turn(free, names):
            rows = knob.tried(rows, counts, self.reasons, self._facts)
            rows = _without_twins(rows, ordered) if knob.rewriting else rows
        counts[_UNREFUSED] = sum(row.points for row in rows)
        found = {values_of(row.settings, ordered): row.asked for row in rows}
        return Part(ordered, found, tuple(free), counts)

    def _turn(self, name: str) -> tuple[bool, int]:
        """What only speculation has comes first, since most of it can be settled early; few values before many."""
        speculation = name in knobs() and knobs()[name].scope == "speculation"
        return (not speculation, len(self._domains[name].values()))

    def _in_turn(self, free: list[str], names: set[str]) -> Iterator[_Knob]:
        """Each free knob with the rules that can be asked once it has its value: those whose answer no later one changes."""
        rewriting = [rule for rule in self._rewrites if rule.among(names)]
        refusing = [(_PLACE[rule.name], rule) for rule in self._refusals if rule.among(names)]
        sizes = [len(self._domains[name].values()) for name in free]
        asked: list[Rule[Changes]] = []
        for place, name in enumerate(free):
            later = set(free[place + 1 :])
            ripe = _ripe(rewriting, later, names)
            new = [rule for rule in ripe if rule not in asked]
            again = [rule for rule in ripe if rule not in new and _follows(rule, new, names)]
            unripe = set().union(later, *(rule.written(names) for rule in rewriting if rule not in ripe))
            said = [pair for pair in refusing if not pair[1].among(unripe)]
            refusing = [pair for pair in refusing if pair not in said]
            asked = ripe
            yield _Knob(
                name, self._domains[name].values(), [rule for rule in ripe if rule in new or rule in again], said,
                rest=math.prod(sizes[place + 1 :]),
            )  # fmt: skip

    def _what_varies(self) -> set[str]:
        """Free knobs, and all that a rewrite may change along with them."""
        varying = {name for name in self._all if name in self._free or name in self._renamed_free()}
        while True:
            more = {name for rule in self._rewrites if rule.among(varying) for name in rule.among(self._all)}
            if more <= varying:
                return varying
            varying |= more

    def _renamed_free(self) -> set[str]:
        return {ARGS + RENAMED[name] for name in (n.removeprefix(ARGS) for n in self._free) if name in RENAMED}

    def _tied(self) -> list[set[str]]:
        """What varies, in sets that no rule reads across."""
        parts = [{name} for name in sorted(self._varying)]
        rules: list[Rule[Any]] = [*self._rewrites, *self._refusals]
        for read in [rule.among(self._varying) for rule in rules]:
            touched = [part for part in parts if part & read]
            if len(touched) > 1:
                parts = [part for part in parts if part not in touched] + [set().union(*touched)]
        return parts


def _ripe(rewriting: Iterable[Rule[Changes]], later: set[str], names: set[str]) -> list[Rule[Changes]]:
    """Those that read no later knob, nor anything that an unripe one before them may still change."""
    ripe, unsettled = [], set(later)
    for rule in rewriting:
        if not rule.among(unsettled):
            ripe.append(rule)
        else:
            unsettled |= rule.written(names)
    return ripe


def _follows(rule: Rule[Changes], new: Iterable[Rule[Changes]], names: set[str]) -> bool:
    """Whether a rewrite may have something to say after these, though it was asked before."""
    return any(rule.among(names) & other.written(names) for other in new)


@dataclass(slots=True)
class _Row:
    """Points that are the same so far."""

    settings: Settings
    points: int
    asked: Values


@dataclass(frozen=True)
class _Knob:
    """A free knob in its turn."""

    name: str
    values: Sequence[Any]
    rewriting: Sequence[Rule[Changes]]
    refusing: Sequence[tuple[int, Rule[Why]]]
    rest: int
    """Points of the knobs that come later."""

    def tried(self, rows: Sequence[_Row], counts: Counter[int], reasons: dict[str, str], facts: Facts) -> list[_Row]:
        """Every row with every value of this knob; what is refused is counted, for its first reason, and left out."""
        found = []
        for row in rows:
            for value in self.values:
                settings = varied(row.settings, {self.name: value})
                for rewrite in self.rewriting:
                    for change in rewrite.says(settings, facts):
                        settings.__dict__[change.knob] = change.now  # made here, and nobody else has seen it
                place = self._first_refusal(settings, reasons, facts)
                if place is None:
                    found.append(_Row(settings, row.points, (*row.asked, value)))
                else:
                    counts[place] += row.points * self.rest
        return found

    def _first_refusal(self, settings: Settings, reasons: dict[str, str], facts: Facts) -> int | None:
        for place, rule in self.refusing:
            if (why := rule.says(settings, facts)) is not None:
                reasons.setdefault(rule.name, why)
                return place
        return None


def _without_twins(rows: Iterable[_Row], names: Values) -> list[_Row]:
    found: dict[Values, _Row] = {}
    for row in rows:
        first = found.setdefault(values_of(row.settings, names), row)
        if first is not row:
            first.points += row.points
    return list(found.values())
