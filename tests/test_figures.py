"""The figures of a load point follow from hand-made requests, and the flags from the figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measuring.figures import flags_of, flags_of_requests, percentile, summarise
from orchestrator.measuring.reply import Finished
from results.measurement import Flag, Measurement


def request(sent_s: float, chunks_s: tuple[float, ...], tokens: int, first: int = 1, **more: Any) -> Finished:
    """A request whose later tokens came with its last chunk."""
    later = (0,) * (len(chunks_s) - 2) + (tokens - first,) if len(chunks_s) > 1 else ()
    return Finished(sent_s, chunks_s[-1], chunks_s, (first, *later), tokens=tokens, prompt_tokens=10, **more)


def test_figures_of_hand_made_requests() -> None:
    """Two requests on one stream, by hand: rates, times and means are exact."""
    measured = summarise(
        [request(10.0, (10.5, 11.0, 12.5), tokens=5), request(12.5, (12.6, 13.6), tokens=6, first=2)], 1, measure_s=9.0
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
    measured = summarise([request(0.0, (n / 1000, 2.0), tokens=2) for n in range(1, 101)], 100)

    assert measured.ttft_p50_ms == pytest.approx(50.5)
    assert measured.ttft_p90_ms == pytest.approx(90.1)
    assert measured.ttft_p99_ms == pytest.approx(99.01)
    assert percentile([], 50) is None


def test_acceptance_is_weighted_by_steps() -> None:
    """Case B03: requests of 400 tokens in 100 steps and 100 in 50 make 3.33 together, not the 3.0 of a mean of ratios."""
    long = request(0.0, (1.0, 2.0), tokens=400, verify_steps=100, correct_drafts=300, histogram=(10, 20, 30, 40))
    short = request(0.0, (1.0, 2.0), tokens=100, verify_steps=50, correct_drafts=50, histogram=(20, 30))
    measured = summarise([long, short], 2)

    assert measured.acceptance_length == pytest.approx(500 / 150)
    assert measured.acceptance_histogram == [30, 50, 30, 40]


def test_failed_requests_are_no_fast_ones() -> None:
    """A request that failed after a millisecond counts in the success rate and the wall time, nowhere else."""
    good = [request(0.0, (1.0, 2.0), tokens=4), request(2.0, (3.0, 4.0), tokens=4)]
    failed = Finished(4.0, 5.0, (4.001,), (1,), tokens=1, error="HTTP 500")
    measured = summarise([*good, failed], 1)

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
    measured = summarise(finished, 1)
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
        ({"client_lag_p99_ms": 0.9, "itl_p50_ms": 4.0}, ()),
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


@pytest.mark.parametrize(
    ("figures", "flag"),
    [
        ({"client_lag_mean_ms": 1.1}, Flag.CLIENT_BOUND),
        ({"achieved_concurrency": 7.5, "steady_s": 3.0}, Flag.CLIENT_BOUND),
        ({"slow_share": 0.2}, Flag.STALLED),
        ({"itl_drift": -0.11}, Flag.DRIFT),
        ({"itl_drift": 0.11}, Flag.DRIFT),
    ],
)
def test_flags_of_the_steady_time(figures: dict[str, Any], flag: Flag) -> None:
    """Streams that wait for the client, a machine that slowed down, and a pace that went up or down are each said."""
    assert flags_of(good(**figures), concurrency=8) == (flag,)


def test_a_late_client_accuses_no_server() -> None:
    """Gaps that a late client saw are its own: neither drift nor stall is laid at the server's door."""
    assert flags_of(good(client_lag_p99_ms=30.0, slow_share=0.9, itl_drift=1.0), 8) == (Flag.CLIENT_BOUND,)


# The steady time


def streamed(sent_s: float, gaps_s: list[float], **more: Any) -> Finished:
    """A chunk of two tokens after each gap."""
    chunks_s = tuple(sent_s + sum(gaps_s[: n + 1]) for n in range(len(gaps_s)))
    counts = (2,) * len(gaps_s)
    return Finished(sent_s, chunks_s[-1], chunks_s, counts, tokens=sum(counts), prompt_tokens=10, **more)


def in_turn(streams: int, each: list[list[float]], **more: Any) -> list[Finished]:
    """Each stream sends the requests one after the other."""
    made = []
    for _ in range(streams):
        at_s = 0.0
        for gaps_s in each:
            made.append(streamed(at_s, gaps_s, **more))
            at_s = made[-1].ended_s
    return made


def test_ramp_up_and_drain_are_told_apart() -> None:
    """Two streams: one waits 2 s for its first token, one ends 3 s after the other has nothing more to send."""
    early = [streamed(0.0, [1.0] * 5), streamed(5.0, [1.0] * 5)]
    late = [streamed(0.0, [2.0, 1.0, 1.0, 1.0, 1.0]), streamed(6.0, [1.0] * 7)]
    measured = summarise([*early, *late], 2)

    assert (measured.ramp_up_s, measured.steady_s, measured.drain_s) == (2, 8, 3)
    assert measured.steady_output_tok_s == 2 * (3 + 5 + 4 + 4) / 8
    assert measured.output_tok_s == pytest.approx(2 * 22 / 13)
    assert measured.achieved_concurrency == 2


def test_no_steady_time_where_streams_are_never_all_busy() -> None:
    """One request a stream, all sent at once, the first ended before the last has begun: nothing is steady."""
    measured = summarise([streamed(0.0, [0.1] * 5), streamed(0.0, [5.0, 0.1, 0.1])], 2)

    assert (measured.steady_output_tok_s, measured.steady_s, measured.drain_s) == (None, None, None)


def test_an_even_pace_neither_drifts_nor_stalls() -> None:
    """Gaps with a noise of 3 % around one value (case S11: a flat series is not flagged)."""
    measured = summarise(in_turn(4, [[0.05 * (1 + 0.03 * (-1) ** n) for n in range(40)]] * 6), 4)

    assert abs(measured.itl_drift or 0) < 0.05
    assert measured.slow_share == 0
    assert flags_of(measured, 4) == ()


def test_a_pace_that_wears_off() -> None:
    """Steps that take a tenth longer with each request: case S11, as throughput."""
    measured = summarise(in_turn(2, [[0.05 * 1.1**n] * 40 for n in range(6)]), 2)

    assert measured.itl_drift == pytest.approx(1.1**4 - 1, abs=0.15)
    assert Flag.DRIFT in flags_of(measured, 2)


@pytest.mark.parametrize("slow", [[[0.1] * 40], [[0.05] * 20 + [3.0] + [0.05] * 19]])
def test_a_machine_that_was_slow_for_a_while(slow: list[list[float]]) -> None:
    """Half speed for a third of the time, or one stall of seconds; seen on real GPUs, and in launches that came first."""
    measured = summarise(in_turn(4, [[0.05] * 40, *slow, [0.05] * 40]), 4)

    assert (measured.slow_share or 0) > 0.2
    assert Flag.STALLED in flags_of(measured, 4)


def test_a_prefill_now_and_then_is_no_stall() -> None:
    """Streams whose chunks wait for each other's prompts are as usual: the median gap does not move."""
    measured = summarise(in_turn(8, [[0.3] + ([0.05] * 12 + [0.25]) * 3] * 4), 8)

    assert Flag.STALLED not in flags_of(measured, 8)


def accepting(lengths: list[float]) -> list[Finished]:
    """Requests of ten verify steps, one after the other, with these acceptance lengths."""
    made = []
    for number, length in enumerate(lengths):
        tokens = round(10 * length)
        one = streamed(float(number), [0.1] * 5, verify_steps=10, correct_drafts=tokens - 10)
        made.append(dataclasses.replace(one, tokens=1 + tokens))
    return made


def test_acceptance_that_wears_off_is_drift() -> None:
    """Case S11: windows of 3.2, 3.1, 2.8, 2.4, 2.0, 1.7, two requests each; a flat series with noise is none."""
    falling = accepting([3.2, 3.2, 3.1, 3.1, 2.8, 2.8, 2.4, 2.4, 2.0, 2.0, 1.7, 1.7])
    flat = accepting([3.0, 3.1, 2.9] * 4)

    assert Flag.DRIFT in flags_of_requests(falling, 1, ignore_eos=False, flushed=True)
    assert summarise(falling, 1).acceptance_drift == pytest.approx((1.7 + 2.0) / (3.2 + 3.1) - 1, abs=0.01)
    assert flags_of_requests(flat, 1, ignore_eos=False, flushed=True) == ()


def test_what_differs_between_prompts_is_no_drift() -> None:
    """Twelve prompts of very different acceptance in any order: thirds differ, but not for sure."""
    different = accepting([1.5, 4.0, 2.0, 4.5, 2.0, 3.0, 4.0, 2.0, 4.4, 3.0, 4.5, 2.0])

    assert flags_of_requests(different, 1, ignore_eos=False, flushed=True) == ()


@pytest.mark.parametrize(
    ("finished", "more", "flag"),
    [
        ([streamed(float(n), [1.5, 0.1] if n == 0 else [0.058, 0.1]) for n in range(50)], {}, Flag.WARM_UP_UNSETTLED),
        ([streamed(0.0, [0.1], cached_tokens=6)], {}, Flag.CACHE_NOT_FLUSHED),
        ([streamed(0.0, [0.1])], {"ignore_eos": True}, Flag.IGNORE_EOS),
        ([streamed(0.0, [0.1], repetition=0.8)], {}, Flag.REPETITIVE),
        ([streamed(0.0, [0.1] * 4, verify_steps=2, correct_drafts=7)], {}, Flag.ACCEPTANCE_OVERCOUNTED),
    ],
)
def test_flags_of_requests(finished: list[Finished], more: dict[str, bool], flag: Flag) -> None:
    """A first request that compiled (case B05), prompts still cached (B02), looping past the end and tokens never sent (B11)."""
    assert flags_of_requests(finished, 1, **{"ignore_eos": False, "flushed": True, **more}) == (flag,)
