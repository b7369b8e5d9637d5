"""OutputCheck: finalists' greedy answers, kept in the run directory until a plain server re-scores them.

The prompts are the workload's own and stay in this process; the answers' token ids wait in files that only their owner can
read, so that a worker that dies takes nothing along; what stays in the end is counts (results/lossless.py, which also says
why texts are not simply compared).  Token ids come from servers alone: nothing is tokenized here.
Not here: what the scores mean (results/lossless.py), when a plain server comes next (schedule.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from results.files import RunDirProblem, write_whole
from results.lossless import MOST_NATS, Answer, Lossless, lossless
from results.rundir import PRIVATE

PROMPTS = 24
TOKENS = 64
"""Most tokens of an answer."""
AT_ONCE = 8
"""Requests at once, so that answers are made in batches, as they are in use."""

Tokens = tuple[int, ...]
T = TypeVar("T")


class CheckFailed(Exception):  # noqa: N818 - what happened, as a noun
    """A server could not answer or score; nothing is known of its outputs, and nothing else is lost."""


class OutputCheck:
    """What finalists said, in a folder of the run: whichever worker took it, the next plain server scores it.

    Two workers that score at once do so twice, with the same result.
    """

    def __init__(self, folder: Path, request_s: float) -> None:
        self._folder = folder
        self._request_s = request_s

    @property
    def waits(self) -> bool:
        """Whether answers of a finalist wait to be scored."""
        return any(self._files())

    def take(self, trial: int, url: str, texts: Sequence[str]) -> None:
        """Ask a finalist's server for its greedy answers, and keep them.

        Raises:
            CheckFailed: it did not answer all of them, or they cannot be kept.
        """
        said = {"trial": trial, "asked": _fingerprint(texts), "said": answers(url, texts, self._request_s)}
        try:
            self._folder.mkdir(mode=PRIVATE, exist_ok=True)
            write_whole(self._folder / f"{trial:06d}.json", json.dumps(said).encode(), mode=0o600)
        except (OSError, RunDirProblem) as error:
            raise CheckFailed(f"the answers cannot be kept: {error}") from error

    def score(self, url: str, texts: Sequence[str]) -> Iterator[tuple[int, Lossless]]:
        """Each trial that waits, and what a plain server says of its answers.

        An answer waits until the caller has asked for the next one; after a CheckFailed none waits any longer.

        Raises:
            CheckFailed: the plain server did not score all of them.
        """
        waiting = list(self._files())
        try:
            prompts = prompt_tokens(url, texts, self._request_s)
            control = scored(url, prompts, answers(url, texts, self._request_s), self._request_s)
            for path in waiting:
                if (taken := _taken(path, texts)) is not None:
                    seen = lossless(scored(url, prompts, taken.said, self._request_s), control)
                    if seen is not None:
                        yield taken.trial, seen
                path.unlink(missing_ok=True)
        except CheckFailed:
            for path in waiting:
                path.unlink(missing_ok=True)
            raise

    def _files(self) -> Iterator[Path]:
        return iter(sorted(self._folder.glob("[0-9]*.json")))


@dataclass(frozen=True)
class _Taken:
    trial: int
    said: list[Tokens]


def _taken(path: Path, texts: Sequence[str]) -> _Taken | None:
    """None where it is gone, cannot be read, or answers other prompts."""
    try:
        kept = json.loads(path.read_bytes())
        if kept["asked"] != _fingerprint(texts) or len(kept["said"]) != len(texts):
            return None
        return _Taken(int(kept["trial"]), [tuple(map(int, tokens)) for tokens in kept["said"]])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _fingerprint(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def answers(url: str, texts: Sequence[str], request_s: float) -> list[Tokens]:
    """The greedy answers' token ids, one a text.

    Raises:
        CheckFailed: some request failed.
    """
    bodies = [{"text": text, "sampling_params": _greedy(TOKENS)} for text in texts]
    return _all(url, bodies, lambda answer: tuple(map(int, answer["output_ids"])), request_s)


def prompt_tokens(url: str, texts: Sequence[str], request_s: float) -> list[Tokens]:
    """Each text's token ids, as the server makes them.

    Raises:
        CheckFailed: some request failed.
    """
    bodies = [{"text": text, "sampling_params": _greedy(0), "return_logprob": True, "logprob_start_len": 0} for text in texts]  # fmt: skip
    return _all(
        url, bodies, lambda answer: tuple(int(entry[1]) for entry in _input(answer, "token_logprobs")), request_s
    )


def scored(url: str, prompts: Sequence[Tokens], said: Sequence[Tokens], request_s: float) -> list[Answer]:
    """What the server at `url` thinks of answers to prompts, one an answer.

    Raises:
        CheckFailed: some request failed.
    """
    bodies = [
        {
            "input_ids": [*prompt, *answer], "sampling_params": _greedy(0), "return_logprob": True,
            "logprob_start_len": len(prompt) - 1, "top_logprobs_num": 1,
        }
        for prompt, answer in zip(prompts, said, strict=True)
    ]  # fmt: skip
    found = _all(url, bodies, _gaps, request_s)
    return [
        Answer(tokens, gaps[-len(tokens) :] if tokens else ()) for tokens, gaps in zip(said, found, strict=True)
    ]  # fmt: skip


def _gaps(answer: dict[str, Any]) -> tuple[float, ...]:
    """The first entry is the prompt's last token, which has no probability."""
    pairs = zip(_input(answer, "token_logprobs"), _input(answer, "top_logprobs"), strict=True)
    return tuple(_gap(token, best[0]) for token, best in list(pairs)[1:])


def _gap(token: Sequence[Any], best: Sequence[Any]) -> float:
    """0 for the most probable token itself, and for one as probable."""
    if token[1] == best[1]:
        return 0.0
    said, most = (MOST_NATS * -1 if value is None else max(float(value), -MOST_NATS) for value in (token[0], best[0]))
    return max(0.0, most - said)


def _input(answer: dict[str, Any], what: str) -> list[Any]:
    found: list[Any] = answer["meta_info"][f"input_{what}"]
    return found


def _greedy(tokens: int) -> dict[str, Any]:
    """Every parameter is given, so that no default of the checkpoint decides."""
    return {"max_new_tokens": tokens, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


def _all(url: str, bodies: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], T], request_s: float) -> list[T]:
    try:
        return [read(answer) for answer in asyncio.run(_asked(url, bodies, request_s))]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckFailed(f"{url}/generate: an answer has no scores ({type(error).__name__}: {error})") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CheckFailed(f"{url}/generate: {type(error).__name__}: {error}") from error


async def _asked(url: str, bodies: Sequence[dict[str, Any]], request_s: float) -> list[dict[str, Any]]:
    at_once = asyncio.Semaphore(AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=request_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return await asyncio.gather(*(_one(session, f"{url}/generate", body, at_once) for body in bodies))


async def _one(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], at_once: asyncio.Semaphore
) -> dict[str, Any]:
    async with at_once, session.post(url, json=body, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        answer: dict[str, Any] = json.loads(await response.read())
        return answer
