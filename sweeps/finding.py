"""Finding: one thing that is wrong, doubtful or worth knowing about a checkpoint, and what to do about it.

Not here: what is looked for (drafter.py and its neighbours), what a sweep does about it (orchestrator/inspection.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

MOST_SHOWN = 120


@dataclass(frozen=True)
class Finding:
    severity: Severity
    """error: a launch would fail, or run and guess nothing.  warning: it may be slower than it could be."""
    check: str
    """Which check found it, one word for a program."""
    what: str
    """What was found, with the values."""
    why: str
    """Why it matters."""
    remedy: str = ""
    """What to do."""

    def __str__(self) -> str:
        return " ".join(_sentence(part) for part in (self.what, self.why, self.remedy) if part)


def error(check: str, what: str, why: str, remedy: str = "") -> Finding:
    return Finding("error", check, what, why, remedy)


def warning(check: str, what: str, why: str, remedy: str = "") -> Finding:
    return Finding("warning", check, what, why, remedy)


def note(check: str, what: str, why: str, remedy: str = "") -> Finding:
    return Finding("note", check, what, why, remedy)


def shown(value: Any) -> str:
    """A value out of a file, on one short line that any terminal and any file can take."""
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    try:
        text = (value if plain else repr(value)).encode("utf-8", "backslashreplace").decode()
    except RecursionError:
        return "…"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


def listed(names: list[str], most: int = 5) -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def _sentence(text: str) -> str:
    capital = text[0].upper() + text[1:] if text.split()[0].isalpha() else text
    return capital if capital.endswith((".", "?", "!", "…")) else f"{capital}."
