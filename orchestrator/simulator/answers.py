"""The bytes of an answer in the three forms SGLang speaks: /generate, /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.simulator.scheduler import Request
from orchestrator.simulator.speech import Speech
from orchestrator.simulator.wire import Exchange

DONE = b"data: [DONE]\n\n"


@dataclass(eq=False)
class Generation:
    """A request together with its client and what it says."""

    request: Request
    exchange: Exchange
    speech: Speech
    rid: str
    form: Form
    stream: bool
    natural_end: bool
    """Whether the answer ends by itself rather than at max_new_tokens."""
    num_draft_tokens: int
    received: float = field(default_factory=time.time)
    first_token: float = 0.0
    sent_tokens: int = 0
    aborted: bool = False

    @property
    def finish_reason(self) -> dict[str, Any]:
        if self.aborted:
            return {"type": "abort", "message": "Abort in the queue or while running"}
        if self.natural_end:
            return {"type": "stop", "matched": 2}
        return {"type": "length", "length": self.request.completion_tokens}

    def text(self, begin: int = 0) -> bytes:
        ends = self.speech.text_ends
        return self.speech.text[ends[begin] : ends[self.request.completion_tokens]]

    def ids(self, begin: int = 0) -> bytes:
        ends = self.speech.id_ends
        piece = self.speech.ids[ends[begin] : ends[self.request.completion_tokens]]
        return piece.lstrip(b",")

    def final_meta(self) -> dict[str, Any]:
        """What only the last chunk's meta_info carries."""
        request, now = self.request, time.time()
        meta: dict[str, Any] = {"e2e_latency": now - self.received}
        if request.verify_steps:
            proposed = request.verify_steps * (self.num_draft_tokens - 1)
            meta |= {
                "spec_accept_rate": request.correct_drafts / proposed,
                "spec_accept_length": request.completion_tokens / request.verify_steps,
                "spec_num_correct_drafts": request.correct_drafts,
                "spec_num_proposed_drafts": proposed,
                "spec_verify_ct": request.verify_steps,
                "spec_accepted_drafts": request.correct_drafts,
                "spec_proposed_drafts": proposed,
                "spec_correct_drafts_histogram": request.histogram,
                "spec_accept_histogram": request.histogram,
            }
        decode_s = max(now - self.first_token, 1e-9)
        return meta | {
            "request_received_ts": self.received,
            "response_sent_to_client_ts": now,
            "request_finished_ts": now,
            "decode_throughput": max(0, request.completion_tokens - 1) / decode_s,
        }


class Form(Protocol):
    """How one endpoint words its answers."""

    def chunk(self, generation: Generation, finished: bool) -> bytes:
        """The event for the tokens since the last one; the closing events too when finished."""

    def whole(self, generation: Generation) -> bytes:
        """The answer without streaming, JSON."""


@dataclass(frozen=True)
class Native:
    """POST /generate."""

    incremental: bool

    def chunk(self, generation: Generation, finished: bool) -> bytes:
        begin = generation.sent_tokens if self.incremental else 0
        event = b"data: " + self._object(generation, begin, finished) + b"\n\n"
        return event + DONE if finished else event

    def whole(self, generation: Generation) -> bytes:
        return self._object(generation, 0, True)

    def _object(self, generation: Generation, begin: int, finished: bool) -> bytes:
        request = generation.request
        reason = json.dumps(generation.finish_reason, separators=(",", ":")) if finished else "null"
        cached = request.cached_tokens
        meta = (
            f'"meta_info":{{"id":"{generation.rid}","finish_reason":{reason},"prompt_tokens":{request.prompt_tokens},'
            f'"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":{request.completion_tokens},'
            f'"cached_tokens":{cached},"cached_tokens_details":{{"device":{cached},"host":0}},"dp_rank":null'
        )
        if finished:
            meta += "," + json.dumps(generation.final_meta(), separators=(",", ":"))[1:-1]
        return b'{"text":"%b","output_ids":[%b],%b}}' % (generation.text(begin), generation.ids(begin), meta.encode())


def _usage(generation: Generation) -> dict[str, int]:
    request = generation.request
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + request.completion_tokens,
        "completion_tokens": request.completion_tokens,
        "reasoning_tokens": 0,
    }


@dataclass(frozen=True)
class OpenAI:
    """POST /v1/completions and /v1/chat/completions."""

    model: str
    chat: bool
    include_usage: bool
    return_meta_info: bool

    def chunk(self, generation: Generation, finished: bool) -> bytes:
        text = generation.text(generation.sent_tokens).decode()
        reason = generation.finish_reason["type"] if finished else None
        events = self._chat(generation, text, reason) if self.chat else self._choice(generation, {"text": text}, reason)
        if finished and self.include_usage:
            events += self._event(generation, {"choices": [], "usage": _usage(generation)})
        return events + DONE if finished else events

    def _chat(self, generation: Generation, text: str, reason: str | None) -> bytes:
        """The role goes before the first words and the reason after the last, in events of their own."""
        events = b""
        if generation.sent_tokens == 0:
            events += self._choice(
                generation, {"delta": {"reasoning_content": None, "role": "assistant", "content": ""}}
            )
        events += self._choice(generation, {"delta": {"reasoning_content": None, "content": text}})
        if reason:
            events += self._choice(generation, {"delta": {"reasoning_content": None}}, reason)
        return events

    def _choice(self, generation: Generation, said: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        return self._event(generation, {"choices": [choice]})

    def whole(self, generation: Generation) -> bytes:
        text, reason = generation.text().decode(), generation.finish_reason["type"]
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        else:
            choice["text"] = text
        if self.return_meta_info:
            choice["meta_info"] = json.loads(Native(incremental=False).whole(generation))["meta_info"]
        head = self._head(generation, "chat.completion" if self.chat else "text_completion")
        answer = {**head, "choices": [choice], "usage": _usage(generation), "metadata": {"weight_version": "default"}}
        return json.dumps(answer, separators=(",", ":")).encode()

    def _head(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {"id": generation.rid, "object": kind, "created": int(generation.received), "model": self.model}

    def _event(self, generation: Generation, body: dict[str, Any]) -> bytes:
        head = self._head(generation, "chat.completion.chunk" if self.chat else "text_completion")
        usage = {} if self.chat or "usage" in body else {"usage": None}
        return b"data: " + json.dumps({**head, **body, **usage}, separators=(",", ":")).encode() + b"\n\n"
