"""nearest: the names a misspelt one may have meant, in words for a person."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """` Did you mean 'x'?`; where nothing is near, a list of what there is (`listed`, or all names).

    Near is: at most a third of the letters differ (one at least), or one name is part of the other.  The nearest win.
    """
    names = list(names)
    meant = near(word, names)
    if meant:
        return f" Did you mean {' or '.join(repr(name) for name in meant)}?"
    there = list(names if listed is None else listed)
    return f" There is: {', '.join(there)}." if there else ""


def near(word: str, names: Iterable[str]) -> list[str]:
    """The nearest names, three at most; empty when none is near."""
    away = {name: distance(word.lower(), name.lower()) for name in names if isinstance(name, str)}
    least = min(away.values(), default=0)
    if away and least <= max(1, len(word) // 3):
        return sorted(name for name, far in away.items() if far == least)[:3]
    parts = [name for name in away if len(word) > 3 and (word in name or (len(name) > 3 and name in word))]
    return sorted(parts, key=lambda name: (away[name], name))[:3]


def distance(one: str, other: str) -> int:
    """Letters to add, drop, change or swap with the next (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
