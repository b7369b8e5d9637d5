"""Why a setting is as fast as it is: tokens a step yields, what the step costs, and where that stops paying."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.answer import Answer, Why
from results.record import Record
from results.verdict import Verdict, judge
from results.why import crossover
from sweeps.observation import Goal
from tests.fakes.records import EAGLE3, PLAIN, measured


def verdict(*points: tuple[int, float, float, float], **more: float) -> Verdict:
    """Of load points (concurrency, speed over the plain server, acceptance length, step time over the plain one's)."""
    records: list[Record] = []
    for concurrency, speed, length, ratio in points:
        records += [
            measured(PLAIN, 100.0, trial=0, launch=n, concurrency=concurrency, itl_p50_ms=4.0) for n in range(3)
        ]
        records += [
            measured(
                EAGLE3, 100.0 * speed, trial=10 + n, launch=n, concurrency=concurrency, itl_p50_ms=4.0 * ratio,
                acceptance_length=length, **more,
            )
            for n in range(3)
        ]  # fmt: skip
    return judge(records, Goal())


def why(found: Verdict) -> Why:
    (answer,) = found.answers
    assert answer.why is not None
    return answer.why


def test_a_speedup_is_acceptance_over_step_time() -> None:
    """2.4 tokens a step that takes 1.5 times as long: 1.6 times as fast, and nothing is left to explain."""
    seen = why(verdict((8, 1.6, 2.4, 1.5)))
    assert (seen.acceptance_length, seen.step_ms, seen.plain_step_ms) == (2.4, 6.0, 4.0)
    assert seen.step_ratio == pytest.approx(1.5)
    assert seen.remainder == pytest.approx(1.0)


def test_what_decoding_does_not_explain_is_the_remainder() -> None:
    """Short answers to long prompts: decoding is 1.6 times as fast, the whole 1.2 times."""
    assert why(verdict((8, 1.2, 2.4, 1.5))).remainder == pytest.approx(0.75)


@given(st.floats(0.3, 3), st.floats(1.01, 6), st.floats(0.5, 8))
def test_the_parts_multiply_to_the_speedup(speed: float, length: float, ratio: float) -> None:
    """Whatever the figures are, nothing is lost between them."""
    found = verdict((8, speed, length, ratio))
    seen = why(found)
    assert seen.acceptance_length / seen.step_ratio * seen.remainder == pytest.approx(found.answers[0].speedup)


def test_the_share_of_drafting_is_read_from_other_settings() -> None:
    """Step times of 4 + 0.5 · steps + 0.1 · tokens: five steps of 8 tokens are drafted in 2.5 of 7.3 ms."""
    shapes = [(1, 2, 4), (3, 2, 8), (5, 2, 8), (5, 4, 16), (7, 4, 32)]
    records = [measured(PLAIN, 100.0, trial=0, itl_p50_ms=4.0)]
    for trial, (steps, topk, tokens) in enumerate(shapes, start=1):
        settings = EAGLE3.replace(num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens)
        speed = 300.0 if (steps, tokens) == (5, 8) else 120.0
        records.append(measured(settings, speed, trial=trial, itl_p50_ms=4 + 0.5 * steps + 0.1 * tokens))
    seen = why(judge(records, Goal()))
    assert seen.drafting_share == pytest.approx(2.5 / 7.3)


def test_chains_alone_do_not_tell_drafting_from_verifying() -> None:
    """A chain of n steps always verifies n + 1 tokens: the share is left open rather than made up."""
    records = [measured(PLAIN, 100.0, trial=0, itl_p50_ms=4.0)]
    for steps in range(1, 7):
        chain = EAGLE3.replace(num_steps=steps, num_draft_tokens=steps + 1)
        records.append(measured(chain, 100.0 + steps, trial=steps, itl_p50_ms=4.0 + steps))
    assert why(judge(records, Goal())).drafting_share is None


def test_rows_without_gaps_or_acceptance_have_no_why() -> None:
    """Older rows, or an engine that does not count: no decomposition, and all else as ever."""
    records = [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 150.0, trial=1)]
    assert judge(records, Goal()).answers[0].why is None


def test_speculation_stops_paying_between_two_load_points() -> None:
    """1.5× at 8 and 0.75× at 32 (S12): the curve, read on logs, crosses in between, with bounds around it."""
    crossing = verdict((1, 2.0, 2.5, 1.2), (8, 1.5, 2.5, 1.6), (32, 0.75, 2.5, 3.2)).crossover
    assert crossing is not None
    share = math.log(1.5) / (math.log(1.5) - math.log(0.75))
    assert crossing.concurrency == pytest.approx(8 ** (1 - share) * 32**share)
    assert crossing.low is not None
    assert crossing.high is not None
    assert crossing.low < crossing.concurrency < crossing.high


def test_where_it_always_or_never_pays_there_is_no_crossover() -> None:
    """At every load point above 1, or below from the first on."""
    assert verdict((1, 2.0, 2.5, 1.2), (8, 1.5, 2.5, 1.6)).crossover is None
    assert verdict((1, 0.9, 1.5, 1.6), (8, 0.8, 1.5, 1.9)).crossover is None


def test_bounds_that_lie_beyond_the_load_points_are_open() -> None:
    """Wide intervals: the lower end is below 1 from the start, the upper one above it to the end."""
    answers = [
        Answer(1, "cannot tell", None, speedup=1.1, speedup_low=0.8, speedup_high=1.5),
        Answer(8, "cannot tell", None, speedup=0.95, speedup_low=0.7, speedup_high=1.3),
    ]
    crossing = crossover(answers)
    assert crossing is not None
    assert (crossing.low, crossing.high) == (None, None)
    assert 1 < crossing.concurrency < 8
