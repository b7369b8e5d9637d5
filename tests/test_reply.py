"""A streamed reply is counted exactly, however it is cut up on its way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measuring.reply import Finished, Reply, repetition

FIXTURES = Path(__file__).parent / "fixtures"


def event(tokens: int, reason: Any = None, **meta: Any) -> bytes:
    body = {
        "text": "x",
        "meta_info": {"finish_reason": reason, "completion_tokens": tokens, "prompt_tokens": 5, **meta},
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def fed(*pieces: bytes) -> Finished:
    """A request sent at 0 s whose pieces came at 1 s, 2 s, … and that ended half a second after the last."""
    reply = Reply(sent_s=0.0)
    for number, piece in enumerate(pieces, start=1):
        reply.feed(piece, float(number))
    return reply.finished(len(pieces) + 0.5)


def recorded(name: str) -> bytes:
    """The body of a stream that a real SGLang 0.5.17 sent."""
    return (FIXTURES / f"generate_stream-{name}.txt").read_bytes().split(b"\n\n", 1)[1]


# One reply


@given(st.lists(st.integers(0, 12_000), max_size=30))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    """A recorded stream of EAGLE3 gives the same counts in whatever pieces it arrives."""
    body = recorded("e3-full-3.4.8-fa3")
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    one = fed(*(body[start:end] for start, end in itertools.pairwise(edges)))

    assert one.error is None
    assert (one.tokens, one.prompt_tokens, one.chunk_tokens[0], sum(one.chunk_tokens)) == (48, 34, 1, 48)
    assert (one.verify_steps, one.correct_drafts, one.histogram) == (19, 28, (2, 8, 7, 2))


@pytest.mark.parametrize(("name", "chunks"), [("base-fa3", 48), ("e3-full-3.4.8-fa3", 20)])
def test_chunks_of_recorded_streams(name: str, chunks: int) -> None:
    """A plain server sends a token a chunk; with speculation a chunk is one verify step (and the prefill's token)."""
    assert len(fed(recorded(name)).chunks_s) == chunks


def test_times_of_a_reply() -> None:
    """TTFT is the first chunk with a token; TPOT spreads the rest of the time over the tokens after that chunk."""
    one = fed(event(0), event(2), event(2), event(5), event(8, {"type": "length"}), b"data: [DONE]\n\n")

    assert one.chunks_s == (2.0, 4.0, 5.0)
    assert (one.ttft_s, one.gaps_s, one.tpot_s) == (2.0, [2.0, 1.0], 3.0 / 6)
    assert one.ended_s == 6.5


def test_all_tokens_in_one_chunk_have_no_tpot() -> None:
    """What came at once says nothing of the time per token."""
    one = fed(event(8, {"type": "stop"}))

    assert (one.tpot_s, one.gaps_s, one.tokens) == (None, [], 8)


def test_a_text_that_looks_like_a_count() -> None:
    """Case B10: the server's count stands, whatever a client would count; the text's own "completion_tokens": 999 is text."""
    body = {
        "text": '{"completion_tokens":999}',
        "meta_info": {"completion_tokens": 3, "finish_reason": {"type": "stop"}},
    }

    assert fed(b"data: " + json.dumps(body).encode() + b"\n\n").tokens == 3


def test_repetition_of_a_text() -> None:
    """Text that says the same again and again is told from prose; of a few words nothing is said."""
    prose = "the quick brown fox jumps over the lazy dog while a cat looks on from under an old wooden table nearby"

    assert repetition(prose) == 0
    assert (repetition("Done. Done. Done. " * 10) or 0) > 0.9
    assert repetition("Done. " * 8) is None


def test_older_names_of_the_speculation_counts() -> None:
    """Releases that say spec_accepted_drafts and spec_accept_histogram are understood."""
    one = fed(event(4, {"type": "stop"}, spec_verify_ct=2, spec_accepted_drafts=1, spec_accept_histogram=[1, 1]))

    assert (one.verify_steps, one.correct_drafts, one.histogram) == (2, 1, (1, 1))


@pytest.mark.parametrize(
    ("pieces", "error", "lost"),
    [
        ([event(3)], "ended before the answer", True),
        ([], "ended before the answer", True),
        ([event(3, {"type": "stop"})[:-30]], "ended before the answer", True),
        ([event(3), event(3, {"type": "abort", "message": "KV cache is full"})], "KV cache is full", False),
        ([event(0, {"type": "stop"})], "no tokens", False),
        ([b'data: {"error": {"message": "input too long"}}\n\n', b"data: [DONE]\n\n"], "input too long", False),
        ([b'data: {"error": "plain words"}\n\n'], "plain words", False),
    ],
)
def test_a_reply_that_failed(pieces: list[bytes], error: str, lost: bool) -> None:
    """A cut stream, an abort, an empty answer and an error inside the stream are failures, HTTP 200 or not."""
    one = fed(*pieces)

    assert one.error is not None
    assert error in one.error
    assert one.lost == lost


def test_a_refused_request_says_why() -> None:
    """An HTTP error is quoted with its status, without the JSON around it."""
    reply = Reply(0.0)
    reply.refused(503, b'{"error": {"message": ')
    reply.refused(503, b'"draining"}}')

    assert reply.finished(1.0).error == "HTTP 503: draining"


def test_errors_do_not_quote_prompts() -> None:
    """A server that quotes the prompt in its error does not carry it into a row or a log."""
    one = Finished(0.0, 1.0, error="too long: my secret diary" + "x" * 1000).without("my secret diary")

    assert one.error is not None
    assert one.error.startswith("too long: <prompt>")
    assert len(one.error) <= 300
