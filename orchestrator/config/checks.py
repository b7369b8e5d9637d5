"""Checks of one value: is it of the type its key declares, within its bounds, and what would be the right spelling.

Each `read_*` returns the value as the Plan holds it, or raises Wrong.  Not here: which keys there are (sections.py), what
must hold between keys (agreement.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from orchestrator.config.yaml_text import Key, number
from orchestrator.nearest import nearest
from sweeps.settings import Knob, worded
from sweeps.space import Choice, Domain, Held, Range

BOOLEAN = "is a boolean (YAML reads no, off, yes and on so): quote it"
SECRET = "looks like a secret, and a config is stored with its run. Set it in the shell that starts the sweep instead."  # noqa: S105
EMPTY = "is empty: give a value, or leave the key out"
_CLOCK = re.compile(r"^(\d+):(\d\d?):(\d\d?)$")


class Wrong(Exception):  # noqa: N818  # a person's mistake on its way into a ConfError
    """What is wrong with a value: (where inside it, in words), one or more."""

    def __init__(self, text: str, *at: str | int) -> None:
        super().__init__(text)
        self.found: list[tuple[Key, str]] = [(at, text)]


def read_value(kind: Any, value: object, name: str, bounds: Mapping[str, Any]) -> Any:
    """A value of a Plan's field of this type.

    Raises:
        Wrong: it is of another type or out of bounds.
    """
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return _one_of(options, value)
    if get_origin(kind) is not None and any(get_origin(option) is Literal for option in options):
        words = get_args(options[1])
        return value if value in words else read_value(options[0], value, name, bounds)
    if NoneType in options:
        return None if value is None else read_value(options[0], value, name, bounds)
    if value is None:
        raise Wrong(EMPTY)
    return _READERS[kind](value, name, bounds)


def read_number(value: object, name: str, bounds: Mapping[str, Any]) -> float:
    found = _number(value, name)
    if not math.isfinite(found):
        raise Wrong(f"{value} is no finite number")
    return float(_bounded(found, bounds))


def read_whole(value: object, name: str, bounds: Mapping[str, Any]) -> int:
    found = _number(value, name)
    if isinstance(found, float):
        hint = f": write {found:.0f}" if found.is_integer() else ""
        raise Wrong(f"{value} is not a whole number{hint}")
    return int(_bounded(found, bounds))


def read_text(value: object, *_: Any) -> str:
    if isinstance(value, bool):
        raise Wrong(f"{value} {BOOLEAN}")
    if value is None:
        raise Wrong(EMPTY)
    if not isinstance(value, str):
        raise Wrong(f"{value!r} is not text: quote it" if isinstance(value, int | float) else f"{value!r} is not text")
    if "\0" in value:
        raise Wrong(f"{value!r} holds a NUL character, which no program can be given")
    return value


def read_texts(value: object) -> dict[str, str]:
    """Name → text; whole numbers are taken as they are written."""
    if not isinstance(value, dict):
        raise Wrong(f"{value!r} holds no names: write {{NAME: value}}")
    return dict(zip(value, _all(value.items(), _text_or_whole), strict=True))


def read_domain(value: object, each: Callable[[object], Any], numeric: bool) -> Domain:
    """What a knob may take: a scalar is held, a list chooses, {low, high} ranges; `each` reads one value."""
    if isinstance(value, dict):
        return _range(value, each, numeric)
    if not isinstance(value, list):
        return Held(each(value))
    if not value:
        raise Wrong("an empty list leaves nothing to choose: give values, or leave the key out")
    return Choice(tuple(distinct(_all(enumerate(value), each))))


def read_knob(knob: Knob, value: object) -> Any:
    """One value of a knob."""
    if value is None:
        raise Wrong("null is no value: write none, or leave it out" if knob.name == "algorithm" else _NULL)
    if knob.type in (int, float) and isinstance(value, str):
        value = _number(value, knob.name)
    if isinstance(value, str) and knob.choices and value not in knob.choices:
        raise Wrong(f"{knob.mistake(value)}.{nearest(value, map(str, knob.choices), ())}")
    if mistake := knob.mistake(value):
        raise Wrong(mistake)
    return float(value) if knob.type is float and isinstance(value, int) else value


def read_server_arg(value: object) -> Any:
    """One value of an argument that is passed through; a list, as which it stands in a list of values, is several words."""
    if value is None:
        raise Wrong(_NULL)
    if isinstance(value, list):
        return _words(value)
    if not isinstance(value, str | int | float):
        raise Wrong(f"{value!r} is neither text, a number nor a boolean")
    return value


def _words(values: list[object]) -> Any:
    """Of one word: that word, which is the same on a command line."""
    if not values:
        raise Wrong("an empty list is no value: give its words, or leave it out")
    words = tuple(_all(enumerate(values), _word))
    return words if len(words) > 1 else words[0]


def _word(value: object) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Wrong(f"{value!r} is neither text nor a number")
    return value


def distinct(values: list[Any]) -> list[Any]:
    for i, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:i]):
            raise Wrong(f"{worded(value)} is given twice", i)
    return values


_NO_RANGE = "a range needs numbers: list the values instead"
_NULL = "null is no value: leave it out (a key that is not given is left to the server)"


def _range(value: dict[str, Any], each: Callable[[object], Any], numeric: bool) -> Range:
    if not numeric:
        raise Wrong(_NO_RANGE)
    for name in value:
        if name not in ("low", "high"):
            raise Wrong(f"no such key.{nearest(name, ('low', 'high'))}", name)
    for name in ("low", "high"):
        if name not in value:
            raise Wrong(f"a range has low and high; {name} is missing")
    low, high = _all(((name, value[name]) for name in ("low", "high")), each)
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise Wrong(_NO_RANGE)
    if low > high:
        raise Wrong(f"low {low} is above high {high}")
    return Range(low, high, whole=isinstance(low, int) and isinstance(high, int))


def _all(parts: Iterable[tuple[str | int, Any]], read: Callable[..., Any], *more: Any) -> list[Any]:
    """Read every part; all that is wrong is raised together, with where it is."""
    good, wrong = [], list[tuple[Key, str]]()
    for at, part in parts:
        try:
            good.append(read(part, *more))
        except Wrong as error:
            wrong += [((at, *inside), text) for inside, text in error.found]
    if wrong:
        several = Wrong(wrong[0][1])
        several.found = wrong
        raise several
    return good


def _wholes(value: object, name: str, bounds: Mapping[str, Any]) -> list[int]:
    if not isinstance(value, list):
        raise Wrong(f"{value!r} is no list: write [{value}]")
    if not value:
        raise Wrong("an empty list: give one value at least")
    return distinct(_all(enumerate(value), read_whole, name, bounds))


def _word_or_texts(value: object, *_: Any) -> str | list[str]:
    if not isinstance(value, list):
        return _text_or_whole(value)
    return distinct(_all(enumerate(value), _text_or_whole))


def _one_of(options: tuple[Any, ...], value: object) -> Any:
    if value in options and not isinstance(value, bool):
        return value
    text = read_text(value)
    raise Wrong(f"{text!r} is not one of {', '.join(options)}.{nearest(text, options, ())}")


def _boolean(value: object, *_: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{value!r} is not a boolean: write true or false")
    return value


def _text_or_whole(value: object, *_: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else read_text(value)


def _number(value: object, name: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Wrong(f"{value} is a boolean: write a number" if isinstance(value, bool) else f"{value!r} is no number")
    if not isinstance(value, str):
        return value
    found = number(value)
    if found is None:
        raise Wrong(f"{value!r} is not a number{_spelling(value, name)}")
    return found


def _spelling(text: str, name: str) -> str:
    """How a number that a person wrote in another way is spelt."""
    if clock := _CLOCK.match(text):
        seconds = sum(int(part) * unit for part, unit in zip(clock.groups(), (3600, 60, 1), strict=True))
        return f": write {seconds / 3600:g}" if "hours" in name else f": write {seconds}" if name.endswith("_s") else ""
    plain = text.replace("_", "").replace(",", "").strip().lstrip("0")
    return f": write {plain}" if plain and number(plain) is not None else ""


def _bounded(value: float, bounds: Mapping[str, Any]) -> float:
    low, high, above = bounds.get("low"), bounds.get("high"), bounds.get("above")
    if above is not None and value <= above:
        raise Wrong(f"{value:g} is not above {above:g}: give more, or leave the key out")
    if low is not None and value < low:
        raise Wrong(f"{value} is below {low:g}")
    if high is not None and value > high:
        raise Wrong(f"{value} is above {high:g}")
    return value


_READERS: dict[Any, Callable[..., Any]] = {
    int: read_whole,
    float: read_number,
    str: read_text,
    bool: _boolean,
    list[int]: _wholes,
    str | list[str]: _word_or_texts,
    dict[str, str]: lambda value, *_: read_texts(value),
}
