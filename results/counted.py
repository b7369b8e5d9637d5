"""counted: how many there are of something, for a person: `1 launch`, `2,160 points`."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    plural = f"{noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"
    return f"{count:,} {noun if count == 1 else plural}"
