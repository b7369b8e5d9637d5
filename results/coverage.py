"""Coverage: of each drafter of the space, how many settings were measured, or why none was.

A verdict is about what was measured; this says what that was, and what it was not.
Not here: how the measured ones compare (verdict.py), why a drafter was refused before any launch (orchestrator/drafters.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.acceptance import Pair
from results.failure import FailureKind
from results.record import Record
from results.sample import Sample
from sweeps.settings import Settings


@dataclass(frozen=True)
class Coverage:
    """What was tried of one algorithm and drafter, as asked."""

    pair: Pair
    num_settings: int = 0
    """Settings measured at a load point that counts, without a flag that bars them from winning."""
    bars: tuple[str, ...] = ()
    """The flags of the settings that are barred."""
    failures: tuple[FailureKind, ...] = ()
    """The kinds seen, each once."""
    launched: bool = False
    """Whether a launch was begun, whatever came of it."""

    @property
    def name(self) -> str:
        return named(self.pair)

    @property
    def gap(self) -> str | None:
        """What came of it instead of a measurement, to stand after its name; None when there is one that may win."""
        if self.num_settings:
            return None
        if self.bars:
            return f"was measured, but no row of it may win ({', '.join(self.bars)})"
        if self.failures:
            return f"failed at every launch ({', '.join(self.failures)})"
        return "was launched, but nothing that counts was measured" if self.launched else "was never launched"


def named(pair: Pair) -> str:
    return " ".join(filter(None, pair))


def pair_of(settings: Settings) -> Pair:
    """Of settings as asked."""
    return _pair(settings.algorithm, settings.drafter)


def pairs_of(conf: Mapping[str, Any]) -> tuple[Pair, ...]:
    """Every algorithm with every drafter that the space of a resolved config holds, the plain server left out."""
    space = conf.get("space") or {}
    drafters = _values(space.get("drafter"))
    found = (
        _pair(str(algorithm), drafter) for algorithm in _values(space.get("algorithm", "none")) for drafter in drafters
    )
    return tuple(dict.fromkeys(pair for pair in found if pair[0] != "none"))


def coverage(
    records: Sequence[Record],
    found: Mapping[int, Sequence[Sample]],
    pairs: Iterable[Pair] = (),
    begun: Iterable[Settings] = (),
) -> tuple[Coverage, ...]:
    """One for each of `pairs`, and for whatever else was launched, in that order.

    `found`: the samples of `records` by concurrency; `begun` are settings as asked.
    """
    measured: dict[Pair, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for here in found.values():
        for sample in here:
            measured[pair_of(sample.asked)][sample.key].append(sample)
    failures: dict[Pair, list[FailureKind]] = defaultdict(list)
    for record in records:
        if record.failure is not None:
            failures[pair_of(record.asked)].append(record.failure.kind)
    launched = dict.fromkeys(pair_of(one) for one in (*begun, *(record.asked for record in records)) if one.speculative)
    return tuple(
        _coverage(pair, measured[pair], failures[pair], pair in launched) for pair in dict.fromkeys((*pairs, *launched))
    )


def _coverage(
    pair: Pair, by_settings: Mapping[str, Sequence[Sample]], failures: Sequence[FailureKind], launched: bool
) -> Coverage:
    sound = [key for key, found in by_settings.items() if any(sample.trusted for sample in found)]
    barred = [sample for found in by_settings.values() for sample in found if not sample.trusted]
    return Coverage(
        pair=pair,
        num_settings=len(sound),
        bars=tuple(sorted({sample.cannot_win for sample in barred if sample.cannot_win})),
        failures=tuple(dict.fromkeys(failures)),
        launched=launched,
    )


def _pair(algorithm: str, drafter: str | None) -> Pair:
    """As it is launched: NEXTN is another name of EAGLE, and NGRAM has no drafter (sweeps/rewrites.py)."""
    return ("EAGLE" if algorithm == "NEXTN" else algorithm, None if algorithm == "NGRAM" else drafter)


def _values(domain: Any) -> list[Any]:
    return domain if isinstance(domain, list) else [domain]
