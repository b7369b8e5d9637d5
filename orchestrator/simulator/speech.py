"""What a simulated model says: the same words for the same prompt, whatever the server's settings.

Speculation that is lossless changes no output, so text, length and ease of guessing come from the prompt's hash alone.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.simulator.model import Performance
from orchestrator.simulator.profile import Profile
from orchestrator.simulator.scheduler import Request

CHARACTERS_PER_TOKEN = 4
BLOCK_TOKENS = 16
"""Prompts share cached tokens by whole blocks."""

_WORDS = (
    " the", " a", " of", " and", " to", " in", " is", " that", " it", " for", " on", " with", " as", " are", " this",
    " by", " an", " be", " from", " or", " which", " one", " you", " can", " not", " but", " have", " more", " when",
    " they", " what", " some", " other", " time", " there", " into", " most", " way", " also", " many", " then", " these",
    " so", " people", " first", " only", " over", " new", " water", " light", " small", " large", " part", " between",
    " example", " number", " world", " because", " each", " how", " like", " different", " same", " place", " work",
    " year", " day", " group", " system", " side", " often", " under", " long", " study", " name", " form", " three",
    " area", " line", " point", " high", " course", " idea", " model", " step", " change", " answer", " reason", ",",
    ".", ";", " -", " (", ")", ":", " 1", " 2", " 3",
)  # fmt: skip


@dataclass(frozen=True)
class Speech:
    """An answer: text and token ids as JSON-safe ASCII bytes, with the place where each token ends."""

    text: bytes
    text_ends: tuple[int, ...]
    """Entry n: bytes of `text` that n tokens make."""
    ids: bytes
    """Token ids, comma separated."""
    id_ends: tuple[int, ...]
    tokens: tuple[int, ...]
    """The same ids as numbers."""


@dataclass(frozen=True)
class Slips:
    """Shares of tokens that a server says other than the target would; which ones follows from the prompt."""

    corrupt: float = 0.0
    near_ties: float = 0.0


FIRST_TOKEN = 100
"""Token id of the first word."""
BEST_NATS = 0.5
"""Minus the log-probability of the target's own choice."""
NEAR_TIE_NATS = 0.1
"""How much less probable the target's second choice is."""
CORRUPT_NATS = 8.0
"""How much less probable any other word is."""
_SECOND, _WRONG = 1, 37
"""How many words after the target's choice its second choice, and what a corrupting server says, stand in the list."""


def prompt_hash(prompt: str) -> int:
    return int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "big")


def prompt_tokens(prompt: str) -> int:
    """About four characters a token."""
    return max(1, len(prompt) // CHARACTERS_PER_TOKEN)


def block_hashes(prompt: str) -> list[bytes]:
    """One hash a whole block of the prompt, each over all that comes before too."""
    running = hashlib.blake2b(digest_size=8)
    size = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
    hashes = []
    for start in range(0, len(prompt) - size + 1, size):
        running.update(prompt[start : start + size].encode())
        hashes.append(running.digest())
    return hashes


def natural_tokens(seed: int, profile: Profile) -> int:
    """How long the answer is when the model ends it itself."""
    draw = random.Random(seed ^ 0x5EED)  # noqa: S311 - repeatable on purpose
    return max(1, round(profile.output.median_tokens * math.exp(profile.output.spread * draw.gauss(0.0, 1.0))))


def ease(seed: int, prompt: str, prompt_spread: float, profile: Profile) -> float:
    """How much easier (log-odds) this prompt's answer is to guess: its category's shift and a draw of its own."""
    draw = random.Random(seed ^ 0xEA5E)  # noqa: S311 - repeatable on purpose
    lowered = prompt.lower()
    category = next((shift for word, shift in profile.category_logit.items() if word in lowered), 0.0)
    return category + prompt_spread * max(-2.5, min(2.5, draw.gauss(0.0, 1.0)))


def request_for(seed: int, prompt: str, tokens: int, limit: int, natural: int, performance: Performance) -> Request:
    """The scheduler's view of a prompt of `tokens` tokens: `natural` or `limit` tokens will be said, whichever is less."""
    acceptance = performance.acceptance
    return Request(
        seed=seed,
        prompt_tokens=tokens,
        output_tokens=min(limit, natural),
        level=ease(seed, prompt, acceptance.prompt_spread, performance.profile) if acceptance else 0.0,
    )


def speak(seed: int, tokens: int, slips: Slips | None = None) -> Speech:
    """The first `tokens` tokens of the answer; a longer answer to the same prompt begins with the shorter one."""
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    chosen = draw.choices(range(len(_WORDS)), k=tokens)
    if slips is not None:
        chosen = _slipped(chosen, seed, slips)
    words = [_WORDS[index] for index in chosen]
    numbers = tuple(FIRST_TOKEN + index for index in chosen)
    ids = list(map(str, numbers))
    return Speech(
        text="".join(words).encode(),
        text_ends=(0, *accumulate(map(len, words))),
        ids=",".join(ids).encode(),
        id_ends=(0, *(end - 1 for end in accumulate(len(text) + 1 for text in ids))),
        tokens=numbers,
    )


def _slipped(chosen: list[int], seed: int, slips: Slips) -> list[int]:
    draw = random.Random(seed ^ 0x511B)  # noqa: S311 - repeatable on purpose
    offsets = draw.choices(
        (_WRONG, _SECOND, 0), (slips.corrupt, slips.near_ties, 1 - slips.corrupt - slips.near_ties), k=len(chosen)
    )
    return [(index + offset) % len(_WORDS) for index, offset in zip(chosen, offsets, strict=True)]


def gap_nats(said: int, target: int) -> float:
    """How much less probable a token is than the one the target would say there."""
    away = (said - target) % len(_WORDS)
    return 0.0 if away == 0 else NEAR_TIE_NATS if away == _SECOND else CORRUPT_NATS


_HASH_BITS = 64
_HASH_TOKENS = 4


def prompt_ids(prompt: str, tokens: int) -> list[int]:
    """Token ids that stand for a prompt: `seed_of` finds in them what follows from its text."""
    carriers = min(_HASH_TOKENS, tokens)
    bits, seed = -(-_HASH_BITS // carriers), prompt_hash(prompt)
    return [seed >> (bits * place) & ((1 << bits) - 1) for place in range(carriers)] + [0] * (tokens - carriers)


def seed_of(ids: Sequence[int]) -> int:
    """The hash of the prompt that these ids, from `prompt_ids`, stand for."""
    carriers = min(_HASH_TOKENS, len(ids))
    bits = -(-_HASH_BITS // carriers)
    return sum(int(number) << (bits * place) for place, number in enumerate(ids[:carriers]))
