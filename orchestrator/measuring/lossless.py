"""OutputCheck: finalists' greedy answers, kept in memory until a plain server re-scores them.

The prompts are the workload's own and stay in this process; what leaves it is counts (results/lossless.py, which also says
why texts are not simply compared).  Token ids come from servers alone: nothing is tokenized here.
Not here: what the scores mean (results/lossless.py), when a plain server comes next (schedule.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import aiohttp

from results.lossless import MOST_NATS, Answer, Lossless, lossless

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
    """Of one worker, for as long as it lives: what it took from finalists waits for its next plain server."""

    def __init__(self, request_s: float) -> None:
        self._request_s = request_s
        self._waiting: dict[int, list[Tokens]] = {}

    @property
    def waits(self) -> bool:
        """Whether answers of a finalist wait to be scored."""
        return bool(self._waiting)

    def take(self, trial: int, url: str, texts: Sequence[str]) -> None:
        """Ask a finalist's server for its greedy answers.

        Raises:
            CheckFailed: it did not answer all of them.
        """
        self._waiting[trial] = answers(url, texts, self._request_s)

    def score(self, url: str, texts: Sequence[str]) -> dict[int, Lossless]:
        """Trial → what a plain server says of its answers; they wait no longer, whatever comes of it.

        Raises:
            CheckFailed: the plain server did not score all of them.
        """
        waiting, self._waiting = self._waiting, {}
        prompts = prompt_tokens(url, texts, self._request_s)
        control = scored(url, prompts, answers(url, texts, self._request_s), self._request_s)
        found = {
            trial: lossless(scored(url, prompts, said, self._request_s), control) for trial, said in waiting.items()
        }
        return {trial: result for trial, result in found.items() if result is not None}


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
