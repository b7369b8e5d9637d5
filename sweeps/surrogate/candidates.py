"""Candidates: settings as arrays, the form in which the models read them.

Not here: which settings are legal (sweeps/legal.py), what is expected of them (acceptance.py, step_time.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeps.settings import ARGS, Settings, knobs

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Shape = tuple[int, int, int]
"""Steps, topk and tokens verified (the root included) of one verify step."""

PLAIN: Shape = (0, 1, 1)
ASSUMED_TOKENS = 8
"""Draft tokens of settings that leave them to the server: what SGLang chooses is near it."""


def shape_of(settings: Settings) -> Shape:
    """A drafter without a depth of its own (NGRAM, DFLASH) counts as a chain of its tokens."""
    if not settings.speculative:
        return PLAIN
    tokens = settings.num_draft_tokens or (settings.num_steps or ASSUMED_TOKENS - 1) + 1
    if settings.num_steps is None:
        return (max(1, tokens - 1), 1, tokens)
    return (settings.num_steps, settings.eagle_topk or 1, tokens)


def proposer_of(settings: Settings) -> tuple[str, str | None] | None:
    """Who drafts: two settings with the same one share their acceptance; None: nobody."""
    return (settings.algorithm, settings.drafter) if settings.speculative else None


@dataclass(frozen=True)
class Candidates:
    """Distinct settings, the plain servers among them included, and what the models read of them."""

    settings: Sequence[Settings]

    def __len__(self) -> int:
        return len(self.settings)

    @cached_property
    def place(self) -> dict[str, int]:
        """Settings key → place."""
        return {settings.key: place for place, settings in enumerate(self.settings)}

    @cached_property
    def shapes(self) -> list[Shape]:
        return [shape_of(settings) for settings in self.settings]

    @cached_property
    def steps(self) -> Floats:
        return np.array([shape[0] for shape in self.shapes], float)

    @cached_property
    def topk(self) -> Floats:
        return np.array([shape[1] for shape in self.shapes], float)

    @cached_property
    def tokens(self) -> Floats:
        return np.array([shape[2] for shape in self.shapes], float)

    @cached_property
    def speculative(self) -> Bools:
        return np.array([settings.speculative for settings in self.settings])

    @cached_property
    def tree(self) -> Bools:
        return self.topk > 1

    @cached_property
    def proposers(self) -> list[tuple[str, str | None]]:
        """Every distinct one, in the order of their first settings."""
        found = (proposer_of(settings) for settings in self.settings)
        return list(dict.fromkeys(proposer for proposer in found if proposer is not None))

    @cached_property
    def proposer(self) -> Whole:
        """Place in `proposers`; -1 for a plain server."""
        numbers = {proposer: number for number, proposer in enumerate(self.proposers)}
        found = [proposer_of(settings) for settings in self.settings]
        return np.array([-1 if p is None else numbers[p] for p in found])

    @cached_property
    def variants(self) -> dict[str, Whole]:
        """Name of a knob or argument that changes the server, with more than one value → place of its value.

        The attention backend is one; steps, topk, tokens, algorithm and drafter are not.
        """
        names = [knob.name for knob in knobs().values() if knob.name not in _OF_THE_SHAPE]
        names += sorted({ARGS + name for settings in self.settings for name, _ in settings.server_args})
        found = {name: _places([_value(settings, name) for settings in self.settings]) for name in names}
        return {name: places for name, places in found.items() if places.max(initial=0) > 0}

    @cached_property
    def variant(self) -> Whole:
        """Number of the combination of all `variants`: equal where nothing but speculation differs."""
        rows = list(zip(*self.variants.values(), strict=True)) if self.variants else [()] * len(self)
        return _places(rows)


_OF_THE_SHAPE = ("algorithm", "drafter", "num_steps", "eagle_topk", "num_draft_tokens")


def _value(settings: Settings, name: str) -> object:
    if name.startswith(ARGS):
        return dict(settings.server_args).get(name.removeprefix(ARGS))
    return getattr(settings, name)


def _places(values: Iterable[object]) -> Whole:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(repr(value), len(numbers)) for value in values], dtype=np.int64)
