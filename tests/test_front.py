"""The front: what no other setting beats in both, speed for one user and throughput per GPU; and what a token costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from results.front import Offer, cost_per_million_tokens, unbeaten
from results.front import offers as offers_of
from results.measurement import Flag
from results.record import Record
from results.sample import counted_rows
from sweeps.observation import Goal
from sweeps.settings import Settings
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failure, measured


def offers(records: list[Record], goal: Goal) -> list[Offer]:
    return offers_of(counted_rows(records), goal)


def seen(settings: Settings, concurrency: int, total: float, user: float, **more: object) -> Record:
    return measured(settings, total, trial=concurrency, concurrency=concurrency, user_tok_s=user, **more)  # type: ignore[arg-type]


def test_the_front_goes_from_the_fastest_user_to_the_most_throughput() -> None:
    """A tree alone, a chain at eight streams, the plain server at 32; the plain server alone is beaten in both."""
    records = [
        seen(PLAIN, 1, 100, 100), seen(WIDE, 1, 220, 220), seen(EAGLE3, 8, 900, 130), seen(PLAIN, 8, 700, 95),
        seen(PLAIN, 32, 2500, 80), seen(EAGLE3, 32, 2100, 70),
    ]  # fmt: skip
    assert [(one.settings, one.concurrency) for one in unbeaten(offers(records, Goal()))] == [
        (WIDE, 1),
        (EAGLE3, 8),
        (PLAIN, 32),
    ]


def test_throughput_is_counted_per_gpu() -> None:
    """Two GPUs that give half as much again are no gain per GPU."""
    two = PLAIN.replace(tp_size=2)
    found = offers([seen(PLAIN, 8, 700, 95), seen(two, 8, 1050, 94, gpus=("0", "1"))], Goal())
    assert [(one.gpus, one.output_tok_s_per_gpu) for one in found] == [(1, 700), (2, 525)]
    assert unbeaten(found) == found[:1]


def test_what_was_relaunched_is_offered_as_its_relaunches_showed_it() -> None:
    """The launch that picked it from several was the luckiest; the plain server's launches all count."""
    records = [
        *(measured(PLAIN, tok_s, trial=n, launch=n, user_tok_s=90) for n, tok_s in enumerate((100.0, 110.0))),
        *(measured(EAGLE3, tok_s, trial=5 + n, launch=n, user_tok_s=120) for n, tok_s in enumerate((300.0, 200.0, 180.0))),
        measured(WIDE, 150.0, trial=9, user_tok_s=95),
    ]  # fmt: skip
    found = {one.settings: one.output_tok_s_per_gpu for one in offers(records, Goal())}
    assert found == pytest.approx({PLAIN: math.sqrt(100 * 110), EAGLE3: math.sqrt(200 * 180), WIDE: 150.0})


def test_a_million_tokens_cost_the_gpu_time_they_take() -> None:
    """At 3.60 an hour and 1,000 tokens a second, a million tokens are 1,000 seconds: 1.00."""
    assert cost_per_million_tokens(1000, 3.6) == pytest.approx(1.0)
    (one,) = offers([seen(PLAIN, 8, 1000, 95)], Goal(price_per_gpu_hour=3.6))
    assert one.cost_per_million_tokens == pytest.approx(1.0)
    assert offers([seen(PLAIN, 8, 1000, 95)], Goal())[0].cost_per_million_tokens is None


def test_what_may_not_win_is_not_offered() -> None:
    """Rows that a flag bars, settings that break a limit, failures, and rows without a user's speed."""
    records = [
        seen(PLAIN, 8, 700, 95, ttft_p99_ms=100.0), seen(WIDE, 8, 9000, 900, flags=(Flag.OUTPUT_CHANGED,)),
        seen(EAGLE3, 8, 900, 130, ttft_p99_ms=900.0), failure(EAGLE3, trial=9), measured(EAGLE3, 1e4, trial=8),
    ]  # fmt: skip
    assert [one.settings for one in offers(records, Goal(limits={"ttft_p99_ms": 500.0}))] == [PLAIN]
    assert unbeaten(offers([], Goal())) == []


def test_a_setting_whose_output_changed_in_one_launch_is_not_offered() -> None:
    """The race's launch alone was checked and carries the flag; the first launch, which no flag bars, is no offer either."""
    records = [
        seen(PLAIN, 8, 100, 12), seen(WIDE, 8, 150, 18), seen(EAGLE3, 8, 200, 25),
        seen(EAGLE3, 8, 205, 25, launch=1, flags=(Flag.OUTPUT_CHANGED,)),
    ]  # fmt: skip
    assert [one.settings for one in offers(records, Goal())] == [WIDE, PLAIN]


@examples(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=12))
def test_every_offer_is_efficient_or_beaten(points: list[tuple[float, float]]) -> None:
    """Nothing on the front is beaten by anything, and all that is not on it is matched or beaten by something on it."""
    records = [
        measured(EAGLE3.replace(num_steps=n + 1, num_draft_tokens=n + 2), total, trial=n, user_tok_s=user)
        for n, (total, user) in enumerate(points)
    ]
    every = offers(records, Goal())
    best = unbeaten(every)
    for one in every:
        beaten = [o for o in best if o is not one and o.user_tok_s >= one.user_tok_s and o.output_tok_s_per_gpu >= one.output_tok_s_per_gpu]  # fmt: skip
        assert bool(beaten) != (one in best)
