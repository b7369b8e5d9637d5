"""A streamed reply is counted exactly, however it is cut up on its way; the figures follow from hand-made requests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measuring.reply import Finished, Reply, flags_of, percentile, summarise
from results.measurement import Flag, Measurement

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
    assert (one.tokens, one.prompt_tokens, one.first_tokens) == (48, 34, 1)
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
    """A model that writes "completion_tokens": 999 does not change the count."""
    body = {
        "text": '{"completion_tokens":999}',
        "meta_info": {"completion_tokens": 3, "finish_reason": {"type": "stop"}},
    }

    assert fed(b"data: " + json.dumps(body).encode() + b"\n\n").tokens == 3


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


# Many


def request(sent_s: float, chunks_s: tuple[float, ...], tokens: int, first: int = 1, **more: Any) -> Finished:
    return Finished(sent_s, chunks_s[-1], chunks_s, first_tokens=first, tokens=tokens, prompt_tokens=10, **more)


def test_figures_of_hand_made_requests() -> None:
    """Two requests on one stream, by hand: rates, times and means are exact."""
    measured = summarise(
        [request(10.0, (10.5, 11.0, 12.5), tokens=5), request(12.5, (12.6, 13.6), tokens=6, first=2)], measure_s=9.0
    )

    assert measured.output_tok_s == pytest.approx(11 / 3.6)
    assert measured.ttft_mean_ms == pytest.approx(300)
    assert measured.ttft_p50_ms == pytest.approx(300)
    assert measured.tpot_mean_ms == pytest.approx((2000 / 4 + 1000 / 4) / 2)
    assert measured.itl_p50_ms == pytest.approx(1000)
    assert measured.itl_mean_ms == pytest.approx(1000)
    assert measured.user_tok_s == pytest.approx((2 + 4) / 2)
    assert measured.achieved_concurrency == pytest.approx(1)
    assert (measured.requests, measured.input_tokens, measured.output_tokens) == (2, 20, 11)
    assert (measured.success_rate, measured.measure_s) == (1, 9.0)
    assert (measured.acceptance_length, measured.acceptance_histogram) == (None, None)


def test_percentiles() -> None:
    """p50, p90 and p99 are those of the requests, linear between neighbours."""
    measured = summarise([request(0.0, (n / 1000, 2.0), tokens=2) for n in range(1, 101)])

    assert measured.ttft_p50_ms == pytest.approx(50.5)
    assert measured.ttft_p90_ms == pytest.approx(90.1)
    assert measured.ttft_p99_ms == pytest.approx(99.01)
    assert percentile([], 50) is None


def test_acceptance_is_weighted_by_steps() -> None:
    """Requests of 400 tokens in 100 steps and 100 in 50 make 3.33 together, not the 3.0 of a mean of ratios."""
    long = request(0.0, (1.0, 2.0), tokens=400, verify_steps=100, correct_drafts=300, histogram=(10, 20, 30, 40))
    short = request(0.0, (1.0, 2.0), tokens=100, verify_steps=50, correct_drafts=50, histogram=(20, 30))
    measured = summarise([long, short])

    assert measured.acceptance_length == pytest.approx(500 / 150)
    assert measured.acceptance_histogram == [30, 50, 30, 40]


def test_failed_requests_are_no_fast_ones() -> None:
    """A request that failed after a millisecond counts in the success rate and the wall time, nowhere else."""
    good = [request(0.0, (1.0, 2.0), tokens=4), request(2.0, (3.0, 4.0), tokens=4)]
    failed = Finished(4.0, 5.0, (4.001,), first_tokens=1, tokens=1, error="HTTP 500")
    measured = summarise([*good, failed])

    assert measured.success_rate == pytest.approx(2 / 3)
    assert (measured.output_tokens, measured.requests) == (8, 3)
    assert measured.output_tok_s == pytest.approx(8 / 5)
    assert measured.ttft_p50_ms == pytest.approx(1000)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100), st.lists(st.floats(0.001, 5), min_size=1, max_size=8), st.integers(1, 9), st.booleans()
        ),
        min_size=1,
        max_size=12,
    )
)
def test_sums_hold_for_any_requests(made: list[tuple[float, list[float], int, bool]]) -> None:
    """Whatever the requests: throughput times wall time is the tokens of the good ones, and percentiles are ordered."""
    finished = []
    for sent_s, gaps_s, per_chunk, fails in made:
        chunks_s = tuple(sent_s + sum(gaps_s[: n + 1]) for n in range(len(gaps_s)))
        error = "broken" if fails else None
        finished.append(request(sent_s, chunks_s, tokens=per_chunk * len(gaps_s), first=per_chunk, error=error))
    measured = summarise(finished)
    wall_s = max(f.ended_s for f in finished) - min(f.sent_s for f in finished)

    assert measured.output_tok_s is not None
    assert measured.output_tok_s * wall_s == pytest.approx(sum(f.tokens for f in finished if not f.error))
    if measured.itl_p50_ms is not None:
        assert measured.itl_p90_ms is not None
        assert measured.itl_p99_ms is not None
        assert measured.itl_p50_ms <= measured.itl_p90_ms <= measured.itl_p99_ms


# Flags


def good(**figures: Any) -> Measurement:
    return Measurement(**{"success_rate": 1.0, "requests": 48, "itl_p50_ms": 20.0, "client_lag_p99_ms": 1.0, **figures})


@pytest.mark.parametrize(
    ("figures", "flags"),
    [
        ({}, ()),
        ({"acceptance_length": 1.06}, ()),
        ({"acceptance_length": 1.03}, (Flag.DRAFTER_INEFFECTIVE,)),
        ({"success_rate": 0.95}, (Flag.REQUESTS_FAILED,)),
        ({"requests": 15}, (Flag.LOW_SAMPLES,)),
        ({"client_lag_p99_ms": 4.1}, (Flag.CLIENT_BOUND,)),
        ({"client_lag_p99_ms": 19.0, "itl_p50_ms": 200.0}, ()),
        ({"client_lag_p99_ms": 21.0, "itl_p50_ms": 200.0}, (Flag.CLIENT_BOUND,)),
        ({"client_lag_p99_ms": 1.2, "itl_p50_ms": 4.0}, ()),
        ({"client_lag_p99_ms": 21.0, "itl_p50_ms": None}, (Flag.CLIENT_BOUND,)),
    ],
)
def test_flags(figures: dict[str, Any], flags: tuple[Flag, ...]) -> None:
    """A flag stands exactly when its figure crosses its bound; a loop's timers are not sharp enough to judge by 1 ms."""
    assert flags_of(good(**figures), concurrency=8) == flags


def test_few_requests_on_one_stream() -> None:
    """Six requests are the least, even of a single stream."""
    assert flags_of(good(requests=5), concurrency=1) == (Flag.LOW_SAMPLES,)
    assert flags_of(good(requests=6), concurrency=1) == ()
