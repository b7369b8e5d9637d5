"""PromptBook: which prompts each load point sends, the same in every trial, so that settings are compared pairwise.

A prompt file is JSONL.  A line is `{"prompt": text}` or `{"messages": [{"role", "content"}, …]}`, optionally with
`"category"`; a prompt with `"fill": {"slot": [text, …]}` stands for every combination of its `{slot}`s.  Prompts are a
person's own: they are never written to a row, a log or a message, only the line they stand on.
Not here: sending them (load.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import ConfError
from orchestrator.measuring.chat_template import ChatTemplate, Messages
from orchestrator.nearest import nearest
from orchestrator.plan import RANDOM, Workload
from sweeps.trial import LoadPoint

CHARACTERS_PER_TOKEN = 4
"""About, of English text; rows hold the server's own count."""
RANDOM_TOKENS = 256
"""Of a random prompt whose length is natural."""
WARM_UP_PASSES = 3
"""Most warm-up passes at a point; a pass asks one prompt per stream."""

_YOUNGER = {"request_rate": None, "random_prompts": False, "client": "own"}
"""Keys that came later: at these values a workload is the one it was before there were any."""
_SHIPPED = Path(__file__).resolve().parents[2] / "conf" / "prompts"
_LINE_KEYS = ("prompt", "messages", "category", "fill")
_ROLES = {"system", "user", "assistant"}
_SLOT = re.compile(r"\{([a-z_]+)\}")

T = TypeVar("T")


@dataclass(frozen=True)
class Draw:
    """The texts of one load point, as they are sent."""

    warm_up: tuple[tuple[str, ...], ...] = field(repr=False)
    """One tuple a pass, one text a stream; never a text of `measured`, unless the file has only one prompt."""
    measured: tuple[str, ...] = field(repr=False)
    reused: bool = False
    """Some of `measured` are asked at another point (or twice at this one): the file has too few."""
    categories: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the texts of `measured`."""


@dataclass(frozen=True)
class _Prompt:
    messages: Messages = field(repr=False)
    category: str
    line: int


@dataclass(frozen=True)
class PromptBook:
    """All prompts of a workload in their order: first those of warm-ups, then those that are measured."""

    workload: Workload
    template: ChatTemplate | None = field(repr=False)
    warm_up: tuple[_Prompt, ...] = field(repr=False)
    measured: tuple[_Prompt, ...] = field(repr=False)

    def for_point(self, point: LoadPoint) -> Draw:
        """The prompts of a load point: equal for equal points, different from other points' while there are enough.

        Raises:
            ValueError: the workload has no such concurrency.
            ConfError: the target's chat template refuses a prompt.
        """
        start, count = self._start(point), self.workload.requests_at(point.concurrency)
        have, asked = len(self.measured), self._per_repeat * max(self.workload.repeats, point.repeat + 1)
        prompts = self._cyclic(self.measured, start, count)
        texts = tuple(map(self._text, prompts))
        return Draw(
            warm_up=tuple(self._warm_up_pass(point, number) for number in range(WARM_UP_PASSES)),
            measured=texts,
            categories={text: prompt.category for text, prompt in zip(texts, prompts, strict=True)},
            reused=asked > have and (start + count > have or start < asked - have),
        )

    @property
    def asked(self) -> int:
        """Prompts that a launch measures with, were each asked once."""
        return self._per_repeat * self.workload.repeats

    @property
    def longest_tokens(self) -> int:
        """About; of its messages' contents alone."""
        lengths = (sum(len(m["content"]) for m in prompt.messages) for prompt in (*self.warm_up, *self.measured))
        return max(lengths) // CHARACTERS_PER_TOKEN

    @property
    def _per_repeat(self) -> int:
        return sum(map(self.workload.requests_at, set(self.workload.concurrency)))

    def _start(self, point: LoadPoint) -> int:
        """Where the point's share of the measured prompts begins: a repeat after the other, small loads first."""
        if point.concurrency not in self.workload.concurrency:
            raise ValueError(f"concurrency {point.concurrency} is not one of {self.workload.concurrency}")
        below = sum(self.workload.requests_at(c) for c in set(self.workload.concurrency) if c < point.concurrency)
        return point.repeat * self._per_repeat + below

    def _warm_up_pass(self, point: LoadPoint, number: int) -> tuple[str, ...]:
        return self._texts(self.warm_up, number * point.concurrency, point.concurrency)

    def _texts(self, prompts: Sequence[_Prompt], start: int, count: int) -> tuple[str, ...]:
        return tuple(map(self._text, self._cyclic(prompts, start, count)))

    def _cyclic(self, prompts: Sequence[_Prompt], start: int, count: int) -> list[_Prompt]:
        return [prompts[i % len(prompts)] for i in range(start, start + count)]

    def _text(self, prompt: _Prompt) -> str:
        if self.template is None:
            return "\n\n".join(message["content"] for message in prompt.messages)
        try:
            return self.template.render(prompt.messages)
        except ConfError as error:
            where = prompt_file(self.workload.prompts)
            raise ConfError([f"{where}:{prompt.line}: {mistake}" for mistake in error.mistakes]) from error


def load_prompts(workload: Workload, chat_template: ChatTemplate | None) -> PromptBook:
    """Read the workload's prompt file and put its prompts in order, deterministically from `workload.seed`.

    Without a chat template prompts are sent as they are (the contents of messages, a blank line between them).

    Raises:
        ConfError: no such file, or lines that are no prompts, each with its number; or a template that fails.
    """
    chance = random.Random(workload.seed)  # noqa: S311  # an order, not a secret
    if workload.prompts == RANDOM:
        deck = _random_prompts(workload, chance)
    else:
        deck = _shuffled(_read(prompt_file(workload.prompts)), chance)
    if isinstance(workload.input_tokens, int):
        deck = [_of_length(deck, place, CHARACTERS_PER_TOKEN * workload.input_tokens) for place in range(len(deck))]
    kept_back = _warm_up_share(workload, len(deck))
    book = PromptBook(workload, chat_template, tuple(deck[:kept_back]), tuple(deck[kept_back:] or deck))
    book._text(deck[0])
    return book


def workload_key(workload: Workload) -> str:
    """The workload's name in the rows: the prompt file's, and a hash of all that changes what one point measures.

    Concurrencies and repeats are columns of their own and do not count.

    Raises:
        ConfError: no such prompt file.
    """
    counted = {
        name: value
        for name, value in dataclasses.asdict(workload).items()
        if name not in ("prompts", "concurrency", "repeats") and (name, value) not in _YOUNGER.items()
    }
    if workload.prompts == RANDOM:
        stem, content = RANDOM, ""
    else:
        path = prompt_file(workload.prompts)
        stem, content = path.stem, hashlib.sha256(path.read_bytes()).hexdigest()
    text = json.dumps({**counted, "content": content}, sort_keys=True)
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def prompt_file(prompts: str) -> Path:
    """The file that `workload.prompts` names: a shipped one by its name, any other by its path.

    Raises:
        ConfError: there is none.
    """
    for path in (_SHIPPED / f"{prompts}.jsonl", Path(prompts).expanduser()):
        if path.is_file():
            return path
    shipped = ", ".join(sorted(path.stem for path in _SHIPPED.glob("*.jsonl")))
    raise ConfError([f"workload.prompts: no file {prompts!r}. Give a JSONL file, or one that is shipped: {shipped}."])


def _random_prompts(workload: Workload, chance: random.Random) -> list[_Prompt]:
    """As many as the sweep asks for, of words of no language."""
    repeats = workload.repeats * sum(map(workload.requests_at, set(workload.concurrency)))
    characters = CHARACTERS_PER_TOKEN * RANDOM_TOKENS

    def words() -> str:
        return " ".join("".join(chance.choices(string.ascii_lowercase, k=7)) for _ in range(characters // 8))

    count = 4 * repeats // 3 + WARM_UP_PASSES * max(workload.concurrency)
    return [_Prompt(({"role": "user", "content": words()},), RANDOM, line) for line in range(1, count + 1)]


def _of_length(deck: Sequence[_Prompt], place: int, characters: int) -> _Prompt:
    """The prompt after as much of those that follow it in the deck as makes it so long; one that is longer is cut."""
    *before, last = deck[place].messages
    context: list[str] = []
    missing, ahead = characters - sum(len(message["content"]) for message in deck[place].messages), place
    while missing > 0:
        ahead += 1
        text = "\n\n".join(message["content"] for message in deck[ahead % len(deck)].messages)
        context.append(text[:missing])
        missing -= len(text) + 2
    content = "\n\n".join([*context, last["content"]]) if context else last["content"][: missing or None]
    return dataclasses.replace(deck[place], messages=(*before, {"role": last["role"], "content": content}))


def _warm_up_share(workload: Workload, have: int) -> int:
    """How many prompts are kept back for warm-ups: enough for the largest load, but at most a quarter."""
    return min(WARM_UP_PASSES * max(workload.concurrency), max(have // 4, 1))


def _shuffled(prompts: Iterable[_Prompt], order: random.Random) -> list[_Prompt]:
    """All prompts so that every stretch has the file's mix of categories, and each category its mix of lines."""
    by_category: dict[str, dict[int, list[_Prompt]]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, {}).setdefault(prompt.line, []).append(prompt)
    for lines in by_category.values():
        for variants in lines.values():
            order.shuffle(variants)
    return _spread([_spread(_in_order(lines.values(), order)) for lines in by_category.values()])


def _in_order(groups: Iterable[T], order: random.Random) -> list[T]:
    shuffled = list(groups)
    order.shuffle(shuffled)
    return shuffled


def _spread(groups: Sequence[Sequence[T]]) -> list[T]:
    """Merge the groups so that each is spread evenly: item i of n stands at the share (i + ½) / n of the way."""
    placed = [((i + 0.5) / len(group), g, item) for g, group in enumerate(groups) for i, item in enumerate(group)]
    return [item for _, _, item in sorted(placed, key=lambda place: place[:2])]


def _read(path: Path) -> list[_Prompt]:
    """Every distinct prompt of the file."""
    found: dict[tuple[tuple[str, str], ...], _Prompt] = {}
    mistakes: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            prompts = _expand(json.loads(line), number)
        except json.JSONDecodeError as error:
            mistakes.append(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}")
        except _LineError as error:
            mistakes.append(f"{path}:{number}: {error}")
        else:
            for prompt in prompts:
                found.setdefault(tuple((m["role"], m["content"]) for m in prompt.messages), prompt)
    if not found and not mistakes:
        mistakes.append(f'{path}: no prompts in it; write one {{"prompt": …}} a line')
    if mistakes:
        raise ConfError(mistakes)
    return list(found.values())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfError([f"{path}: not UTF-8 text: {error.reason} at byte {error.start}"]) from error


class _LineError(Exception):
    """What is wrong with a line, without any of its text."""


def _expand(line: Any, number: int) -> list[_Prompt]:
    """All prompts one line stands for."""
    if not isinstance(line, dict):
        raise _LineError('not an object; write {"prompt": …}')
    if unknown := [key for key in line if key not in _LINE_KEYS]:
        hints = [f"no such key {key!r}.{nearest(key, _LINE_KEYS)}" for key in unknown]
        raise _LineError(" ".join(hints))
    if ("prompt" in line) == ("messages" in line):
        raise _LineError("give either prompt or messages")
    category = line.get("category", "uncategorised")
    if not isinstance(category, str):
        raise _LineError("category is not text")
    if "messages" in line:
        return [_Prompt(_messages(line), category, number)]
    return [_Prompt(({"role": "user", "content": text},), category, number) for text in _filled(line)]


def _messages(line: Mapping[str, Any]) -> Messages:
    messages = line["messages"]
    if "fill" in line:
        raise _LineError("fill goes with prompt, not with messages")
    if not isinstance(messages, list) or not messages:
        raise _LineError("messages is not a list of {role, content}")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES or not _is_text(message.get("content")):
            raise _LineError(f"each message needs a role ({', '.join(sorted(_ROLES))}) and a content that is text")
    if messages[-1]["role"] != "user":
        raise _LineError("the last message must be the user's: it is the one to be answered")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _filled(line: Mapping[str, Any]) -> list[str]:
    """The prompt with every combination of its fills."""
    prompt, fill = line["prompt"], line.get("fill")
    if not _is_text(prompt):
        raise _LineError("prompt is empty or not text")
    if fill is None:
        return [prompt]
    if not isinstance(fill, dict) or not all(
        isinstance(v, list) and v and all(map(_is_text, v)) for v in fill.values()
    ):
        raise _LineError("fill is not {slot: [text, …]}")
    if odd := set(fill) ^ set(_SLOT.findall(prompt)):
        raise _LineError(f"slots and fill do not match: {', '.join(sorted(odd))}")
    combinations = itertools.product(*fill.values())
    return [_substituted(prompt, dict(zip(fill, values, strict=True))) for values in combinations]


def _substituted(prompt: str, chosen: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: chosen[slot[1]], prompt)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
