"""Reply: one streamed answer while it arrives; Finished: what is kept of it.

A chunk is not parsed while it arrives: its token count is found in its bytes, and only the last chunk is read as JSON.
Pure: no sockets, no clock of its own.  Not here: sending requests (load.py), what many of them show (figures.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LAG_MS = 20.0
LAG_SHARE_OF_ITL = 0.2
SHARPNESS_MS = 2.0
"""An event loop's timers are only about 1 ms sharp: a lag below this says nothing."""

_COUNT = b'"completion_tokens":'
_DIGITS = re.compile(rb"\s*(\d{1,9})(?!\d)")
MOST_COUNTED = 10**9
"""No count of a request is larger; what is said to be is no count."""
LONGEST_EVENT = 8 * 2**20
LONGEST_REFUSAL = 64 * 1024
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Finished:
    """One request that ended, well or not.  Times are seconds on one monotonic clock; counts are the server's."""

    sent_s: float
    ended_s: float
    chunks_s: tuple[float, ...] = ()
    """Arrival of each chunk that brought tokens."""
    chunk_tokens: tuple[int, ...] = ()
    """Tokens that each of them brought."""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, found in the server's prefix cache."""
    verify_steps: int = 0
    correct_drafts: int = 0
    histogram: tuple[int, ...] = ()
    """Entry j: verify steps in which exactly j drafted tokens were right."""
    repetition: float | None = None
    """Share of four-word sequences of the answer that had stood in it before."""
    category: str | None = None
    """Of its prompt."""
    error: str | None = None
    lost: bool = False
    """The connection failed or broke: perhaps the server is gone."""
    timed_out: bool = False

    @property
    def ttft_s(self) -> float | None:
        return self.chunks_s[0] - self.sent_s if self.chunks_s else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first chunk; None when all came at once."""
        later = sum(self.chunk_tokens[1:])
        return (self.chunks_s[-1] - self.chunks_s[0]) / later if later > 0 else None

    @property
    def gaps_s(self) -> list[float]:
        return [late - early for early, late in itertools.pairwise(self.chunks_s)]

    def without(self, prompt: str) -> Finished:
        """The same with the prompt taken out of its error: prompts may be private."""
        if self.error is None:
            return self
        return dataclasses.replace(self, error=self.error.replace(prompt, "<prompt>")[:_ERROR_CHARACTERS])


class Reply:
    """A server-sent event stream of `/generate`, fed as it arrives, in pieces of any size."""

    __slots__ = ("_chunk_tokens", "_chunks_s", "_error", "_last", "_rest", "_sent_s", "_tokens", "endless")

    def __init__(self, sent_s: float) -> None:
        self._sent_s = sent_s
        self._chunks_s: list[float] = []
        self._chunk_tokens: list[int] = []
        self._tokens = 0
        self._rest = self._last = b""
        self._error: str | None = None
        self.endless = False
        """An event came to no end: reading on is pointless."""

    def feed(self, data: bytes, now_s: float) -> bool:
        """Take what arrived at `now_s`; whether it brought new tokens."""
        before = self._tokens
        *events, self._rest = (self._rest + data if self._rest else data).split(b"\n\n")
        for event in events:
            # The key cannot stand in the answer's text: there its quotes would be escaped.
            at = event.rfind(_COUNT)
            digits = _DIGITS.match(event, at + len(_COUNT)) if at >= 0 else None
            if digits is None:
                self._take_other(event)
                continue
            self._last = event
            tokens = int(digits[1])
            if tokens > self._tokens:
                self._chunk_tokens.append(tokens - self._tokens)
                self._tokens = tokens
                self._chunks_s.append(now_s)
        if len(self._rest) > LONGEST_EVENT:
            self.endless, self._rest = True, b""
            self._error = f"an event of more than {LONGEST_EVENT} bytes"
        return self._tokens > before

    def refused(self, status: int, data: bytes) -> bool:
        """Take a piece of an answer that is no stream but an HTTP error; whether more of it is worth reading."""
        self._rest += data
        self._error = f"HTTP {status}: {_message(self._rest.decode(errors='replace'))}"
        return len(self._rest) < LONGEST_REFUSAL

    def failed(self, now_s: float, error: str, lost: bool = False, timed_out: bool = False) -> Finished:
        """What is kept of a request that did not end well."""
        return Finished(
            self._sent_s, now_s, tuple(self._chunks_s), tuple(self._chunk_tokens), self._tokens,
            error=error, lost=lost, timed_out=timed_out,
        )  # fmt: skip

    def finished(self, now_s: float) -> Finished:
        """What is kept, once the stream has ended."""
        if self._error is not None:
            return self.failed(now_s, self._error)
        text, meta = _last_event(self._last)
        reason = meta.get("finish_reason")
        if reason is None:
            return self.failed(now_s, "the stream ended before the answer did", lost=True)
        if isinstance(reason, dict) and reason.get("type") == "abort":
            return self.failed(now_s, f"aborted by the server: {reason.get('message') or 'no reason given'}")
        if not self._tokens:
            return self.failed(now_s, "the answer has no tokens")
        return Finished(
            sent_s=self._sent_s,
            ended_s=now_s,
            chunks_s=tuple(self._chunks_s),
            chunk_tokens=tuple(self._chunk_tokens),
            tokens=self._tokens,
            prompt_tokens=_count(_first(meta, "prompt_tokens")),
            cached_tokens=_count(_first(meta, "cached_tokens")),
            verify_steps=_count(_first(meta, "spec_verify_ct")),
            correct_drafts=_count(_first(meta, "spec_num_correct_drafts", "spec_accepted_drafts")),
            histogram=_counts(_first(meta, "spec_correct_drafts_histogram", "spec_accept_histogram")),
            repetition=repetition(text),
        )

    def _take_other(self, event: bytes) -> None:
        if b'"error"' in event:
            self._error = f"error in the stream: {_message(event.removeprefix(b'data:').decode(errors='replace'))}"


def repetition(text: str) -> float | None:
    """Share of the text's four-word sequences that had stood in it before; None of a text shorter than twenty words."""
    words = text.split()
    if len(words) < 20:
        return None
    sequences = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(sequences)) / len(sequences)


def _last_event(event: bytes) -> tuple[str, Mapping[str, Any]]:
    """Text and `meta_info` of an event; empty when it is no whole JSON object."""
    try:
        body = json.loads(event.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return "", {}
    text, meta = (body.get("text"), body.get("meta_info")) if isinstance(body, dict) else (None, None)
    return text if isinstance(text, str) else "", meta if isinstance(meta, dict) else {}


def _first(meta: Mapping[str, Any], *names: str) -> Any:
    """The value of the first name there is; later ones are older releases' words."""
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def _count(value: object) -> int:
    """A count as a server gives it; 0 for what can be none."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED
    return value if is_count else 0  # type: ignore[return-value]


def _counts(value: object) -> tuple[int, ...]:
    return tuple(map(_count, value)) if isinstance(value, list) else ()


def _message(text: str) -> str:
    """The words in a server's error, which may be plain, {"error": text} or {"error": {"message": text}}."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() or "no message"
    error = body.get("error", body) if isinstance(body, dict) else body
    said = str(error.get("message", error) if isinstance(error, dict) else error)
    return said.encode(errors="replace").decode()  # JSON can spell what is no text
