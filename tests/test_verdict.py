"""Verdict: what the rows allow to say, and what they do not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from results.coverage import pairs_of
from results.failure import FailureKind
from results.front import offers
from results.measurement import Flag
from results.page.seen import seen
from results.record import Record
from results.sample import counted_rows
from results.verdict import Answer, dominant_cause, finalists, judge
from sweeps.observation import Goal
from sweeps.settings import Settings
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, WIDE, failure, measured

GOAL = Goal()
FLASHINFER = PLAIN.replace(attention_backend="flashinfer")


def launches(settings: Settings, *tok_s: float, first: int, concurrency: int = 8, **more: object) -> list[Record]:
    """One row a launch, in trials numbered from `first`."""
    return [
        measured(settings, value, trial=first + n, launch=n, concurrency=concurrency, **more)  # type: ignore[arg-type]
        for n, value in enumerate(tok_s)
    ]


def only(records: Sequence[Record], goal: Goal = GOAL) -> Answer:
    (answer,) = judge(records, goal).answers
    return answer


def test_a_clear_gain_is_better() -> None:
    """Three launches each, small spread, the interval above one: speculate, with this, by so much."""
    answer = only([*launches(PLAIN, 100, 101, 100, first=0), *launches(EAGLE3, 140, 142, 141, 141, first=10)])
    assert answer.answer == "better"
    assert answer.settings == answer.best_speculative == EAGLE3
    assert answer.best_plain == PLAIN
    assert answer.speedup == pytest.approx((140 * 142 * 141 * 141) ** (1 / 4) / (100 * 101 * 100) ** (1 / 3))
    assert answer.speedup_low is not None
    assert answer.speedup_high is not None
    assert 1 < answer.speedup_low < answer.speedup < answer.speedup_high
    assert answer.basis == "measured"
    assert (answer.launches, answer.plain_launches) == (4, 3)
    assert answer.acceptance_length == 2.5


def test_a_clear_loss_is_worse_and_the_plain_server_runs() -> None:
    """The interval below one: the plain server wins; the speedup tells how far the best speculative one came."""
    verdict = judge([*launches(PLAIN, 100, 101, first=0), *launches(EAGLE3, 62, 64, first=10)], GOAL)
    (answer,) = verdict.answers
    assert (answer.answer, answer.settings, answer.best_speculative) == ("worse", None, EAGLE3)
    assert verdict.sentence == (
        "Do not speculate: at every load point the plain server beat the one setting of EAGLE3 own that was measured "
        "(best 0.63×)."
    )
    assert verdict.reached


def test_a_difference_within_the_noise_cannot_be_told() -> None:
    """Launches that differ by more than the gain: no claim, and the plain server stays."""
    answer = only([*launches(PLAIN, 100, 104, first=0), *launches(EAGLE3, 90, 120, first=10)])
    assert (answer.answer, answer.settings, answer.best_speculative) == ("cannot tell", None, EAGLE3)


def test_repeats_on_one_server_are_not_replications() -> None:
    """Twenty repeats of one launch share its luck: the interval is as wide as with one."""
    one = only([*launches(PLAIN, 100, first=0), *launches(EAGLE3, 120, first=10)])
    repeats = [measured(EAGLE3, 120.0, trial=10, repeat=n) for n in range(20)]
    many = only([*launches(PLAIN, 100, first=0), *repeats])
    assert many.launches == 1
    assert (many.speedup_low, many.speedup_high) == (one.speedup_low, one.speedup_high)


def test_single_launches_are_judged_by_prior_knowledge() -> None:
    """Without any relaunch the spread is assumed, and said to be: 1.15× cannot be told, 1.6× can."""
    small = only([*launches(PLAIN, 100, first=0), *launches(EAGLE3, 115, first=10)])
    large = only([*launches(PLAIN, 100, first=0), *launches(EAGLE3, 160, first=10)])
    assert (small.answer, small.basis) == ("cannot tell", "assumed")
    assert (large.answer, large.basis) == ("better", "assumed")


def test_relaunches_of_the_plain_server_say_nothing_about_speculative_ones() -> None:
    """A plain server that repeats to a tenth of a percent does not make a single speculative launch certain."""
    answer = only([*launches(PLAIN, 100, 100.1, 99.9, first=0), *launches(EAGLE3, 115, first=10)])
    assert (answer.answer, answer.basis) == ("cannot tell", "assumed for the speculative server")
    assert answer.speedup_low is not None
    assert answer.speedup_high is not None
    assert math.log(answer.speedup_high / answer.speedup_low) / 2 >= 3 * 0.08


def test_a_spread_seen_of_speculative_servers_alone_leaves_the_plain_one_assumed() -> None:
    """A setting launched once borrows what its kind showed; only the plain server's share is assumed, and that is said."""
    records = [*launches(PLAIN, 100, first=0), *launches(PUBLIC, 110, 111, 110, 111, first=10)]
    answer = only([*records, *launches(EAGLE3, 160, first=20)])
    assert (answer.launches, answer.basis) == (1, "assumed for the plain server")
    assert answer.speedup_low is not None
    assert answer.speedup_low > 1.2


def test_two_relaunches_that_agree_are_believed_half() -> None:
    """One repetition of each is too little to take its spread for the truth: experience weighs in, and that is said."""
    agreeing = only([*launches(PLAIN, 100, 100.1, first=0), *launches(EAGLE3, 112, 112.1, first=10)])
    assert (agreeing.answer, agreeing.basis) == ("cannot tell", "measured on few relaunches")
    many = [*launches(PLAIN, *[100, 100.1] * 4, first=0), *launches(EAGLE3, *[112, 112.1] * 4, first=10)]
    assert (only(many).answer, only(many).basis) == ("better", "measured")


def test_relaunches_that_differ_wildly_widen_the_interval() -> None:
    """What was seen counts for more the more of it there is: a setting that jumps has a wide interval."""
    calm = only([*launches(PLAIN, 100, 101, first=0), *launches(EAGLE3, 170, 171, 170, 172, first=10)])
    wild = only([*launches(PLAIN, 100, 101, first=0), *launches(EAGLE3, 220, 130, 160, 175, first=10)])
    assert calm.speedup_high is not None
    assert wild.speedup_high is not None
    assert wild.speedup_high > 1.1 * calm.speedup_high


def test_the_spread_is_pooled_over_relaunched_settings() -> None:
    """A single launch borrows the spread that others of its kind showed at this load point."""
    records = [*launches(PLAIN, 100, 101, 100, first=0), *launches(PUBLIC, 110, 111, 110, 111, first=10)]
    answer = only([*records, *launches(EAGLE3, 180, first=20)])
    assert answer.best_speculative == EAGLE3
    assert (answer.launches, answer.basis, answer.answer) == (1, "measured", "better")


def test_the_spread_comes_from_other_load_points_where_there_is_none_here() -> None:
    """Relaunches at concurrency 1 tell how launches spread at 8, where nothing was launched twice."""
    at_1 = [
        *launches(PLAIN, 50, 51, 50, first=0, concurrency=1),
        *launches(EAGLE3, 70, 71, 70, 71, first=10, concurrency=1),
    ]
    at_8 = [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 125.0, trial=10)]
    first, second = judge([*at_1, *at_8], GOAL).answers
    assert (first.basis, second.basis) == ("measured", "measured at other load points")
    assert second.answer == "better"


def test_speedup_is_over_the_best_plain_server() -> None:
    """A backend that is slow without speculation gives no false gain: `speedup_same` shows it, `speedup` does not."""
    records = [*launches(PLAIN, 100, first=0), *launches(FLASHINFER, 60, first=1)]
    speculative = EAGLE3.replace(attention_backend="flashinfer")
    answer = only([*records, *launches(speculative, 90, first=10)])
    assert answer.best_plain == PLAIN
    assert answer.speedup == pytest.approx(0.9)
    assert answer.speedup_same == pytest.approx(1.5)


def test_the_same_plain_server_is_found_as_asked_when_the_server_filled_in_values() -> None:
    """A value the server chose for itself (page size) may differ between both; the question was the same."""
    plain = launches(PLAIN.replace(page_size=1), 100, first=0, asked=PLAIN)
    answer = only([*plain, *launches(EAGLE3.replace(page_size=64), 150, first=1, asked=EAGLE3)])
    assert answer.speedup_same == pytest.approx(1.5)


def test_a_winner_is_judged_by_its_relaunches_alone() -> None:
    """Winner's curse: the launch that picked it from several is the lucky one, so it does not count once there are others."""
    rivals = [*launches(WIDE, 120, first=20), *launches(PUBLIC, 118, first=30)]
    answer = only([*launches(PLAIN, 100, 100, first=0), *launches(EAGLE3, 150, 125, 125, first=10), *rivals])
    assert answer.speedup == pytest.approx(1.25)
    assert (answer.launches, answer.confirmations, answer.among) == (3, 2, 1)


def test_all_figures_of_an_answer_are_of_the_launches_that_its_speed_is_of() -> None:
    """The first launch, which picked it, is in none of them: not in the time to first token, not in a limit."""
    first = measured(EAGLE3, 150.0, trial=5, ttft_p50_ms=90.0, acceptance_length=4.0, itl_p50_ms=50.0)
    again = [measured(EAGLE3, tok_s, trial=5 + n, launch=n, ttft_p50_ms=ttft, acceptance_length=2.5, itl_p50_ms=20.0)
             for n, tok_s, ttft in ((1, 160.0, 20.0), (2, 160.0, 45.0))]  # fmt: skip
    plain = [measured(PLAIN, 100.0, trial=n, launch=n, itl_p50_ms=10.0) for n in range(2)]
    answer = only([*plain, measured(WIDE, 120.0, trial=4), first, *again], Goal(limits={"ttft_p50_ms": 40.0}))
    assert (answer.best_speculative, answer.may_win, answer.confirmations) == (EAGLE3, True, 2)
    assert (answer.ttft_p50_ms, answer.acceptance_length) == pytest.approx((30.0, 2.5))
    assert answer.why is not None
    assert answer.why.step_ms == pytest.approx(20.0)


def test_a_page_knows_one_kind_of_mean_of_launches() -> None:
    """The geometric one, each launch's repeats averaged first: in the verdict, on the front, in the charts."""
    plain = [measured(PLAIN, 100.0, trial=0, repeat=n, user_tok_s=50.0, ttft_p50_ms=10.0) for n in range(3)]
    plain += [measured(PLAIN, 400.0, trial=1, launch=1, user_tok_s=50.0, ttft_p50_ms=1000.0)]
    records = [*plain, measured(EAGLE3, 90.0, trial=2)]
    answer, counted = only(records), counted_rows(records)
    assert (answer.plain_tok_s, answer.plain_ttft_p50_ms) == pytest.approx((200.0, 100.0))
    assert [one.output_tok_s_per_gpu for one in offers(counted, GOAL)] == pytest.approx([200.0])
    assert [one.output_tok_s for one in seen(counted)] == pytest.approx([200.0, 90.0])


def test_a_setting_that_was_picked_from_nothing_is_judged_by_all_its_launches() -> None:
    """With one speculative setting there was no choice, so its first launch is as good as the others."""
    answer = only([*launches(PLAIN, 100, 100, first=0), *launches(EAGLE3, 150, 125, first=10)])
    assert answer.speedup == pytest.approx(math.sqrt(1.5 * 1.25))
    assert answer.confirmations == 2


def test_the_best_of_many_single_launches_needs_more_than_the_best_of_one() -> None:
    """Twenty settings launched once: the luckiest looks fast, so its interval allows for all of them."""
    alone = only([*launches(PLAIN, 100, first=0), *launches(EAGLE3, 140, first=10)])
    many = [
        measured(EAGLE3.replace(num_steps=n, num_draft_tokens=n + 1), 141.0 - 2 * n, trial=10 + n) for n in range(1, 21)
    ]
    of_many = only([*launches(PLAIN, 100, first=0), *many])
    assert (alone.answer, alone.among) == ("better", 1)
    assert (of_many.answer, of_many.among, of_many.confirmations) == ("cannot tell", 20, 0)


def test_ties_go_to_the_simpler_setting() -> None:
    """A chain of four tokens that looks one percent slower than a tree of 32, well within the noise: the chain is run."""
    records = [*launches(PLAIN, 100, 100.5, first=0), *launches(WIDE, 150, 152, 151, first=10)]
    answer = only([*records, *launches(EAGLE3, 150, 150, 150, first=20)])
    assert (answer.settings, answer.ties) == (EAGLE3, (WIDE,))


def test_simplicity_is_not_bought_with_speed() -> None:
    """Where the simpler one looks slower by more than three percent, the faster is run, tie or not."""
    records = [*launches(PLAIN, 100, 100.5, first=0), *launches(WIDE, 150, 160, 158, first=10)]
    answer = only([*records, *launches(EAGLE3, 150, 150, 150, first=20)])
    assert (answer.settings, answer.ties) == (WIDE, (EAGLE3,))


def test_a_lone_lucky_shot_does_not_beat_a_proven_setting() -> None:
    """Winner's curse: the fastest was launched once, a finalist within its interval twice, so the finalist wins."""
    records = [
        *launches(PLAIN, 100, 100.5, first=0),
        *launches(EAGLE3, 150, 151, first=10),
        *launches(WIDE, 153, first=20),
    ]
    answer = only(records)
    assert answer.settings == EAGLE3
    assert WIDE in answer.ties


def test_a_lone_shot_that_is_clearly_faster_wins() -> None:
    """Outside every interval, one launch is enough to be the best."""
    records = [
        *launches(PLAIN, 100, 100.5, first=0),
        *launches(EAGLE3, 120, 121, first=10),
        *launches(WIDE, 300, first=20),
    ]
    assert only(records).settings == WIDE


def test_a_lone_shot_above_the_plain_server_is_not_hidden_by_a_proven_loser() -> None:
    """Where only the single shot looks faster than the plain server, the answer is about it, and stays open."""
    records = [
        *launches(PLAIN, 100, 100.2, first=0),
        *launches(EAGLE3, 90, 97, first=10),
        *launches(WIDE, 104, first=20),
    ]
    answer = only(records)
    assert (answer.best_speculative, answer.answer) == (WIDE, "cannot tell")


def test_settings_that_cannot_be_told_apart_are_ties() -> None:
    """The winner is named with everything that may be just as good (B13): inside the noise nothing is claimed of either."""
    records = [
        *launches(PLAIN, 100, 101, first=0),
        *launches(EAGLE3, 150, 154, first=10),
        *launches(WIDE, 151, 152, first=20),
    ]
    answer = only([*records, *launches(PUBLIC, 110, 111, first=30)])
    assert {answer.settings, *answer.ties} == {EAGLE3, WIDE}


@pytest.mark.parametrize(
    "flag", [Flag.DRAFTER_INEFFECTIVE, Flag.REQUESTS_FAILED, Flag.CAPACITY_CLAMPED, Flag.GRAPH_FALLBACK]
)
def test_a_flagged_row_never_wins(flag: Flag) -> None:
    """However fast it looks, a row that a flag bars is not what to run (S01, S04, S06, B07); the contenders show why."""
    records = [
        *launches(PLAIN, 100, first=0),
        *launches(WIDE, 500, first=10, flags=(flag,)),
        *launches(EAGLE3, 180, first=20),
    ]
    verdict = judge(records, GOAL)
    assert verdict.answers[0].settings == EAGLE3
    barred = next(c for c in verdict.contenders[8] if c.settings == WIDE)
    assert barred.cannot_win == str(flag)


def test_a_note_does_not_bar_a_row() -> None:
    """Flags of the effect `note` are shown and decide nothing."""
    records = [*launches(PLAIN, 100, first=0), *launches(EAGLE3, 180, first=10, flags=(Flag.LOW_SAMPLES,))]
    verdict = judge(records, GOAL)
    assert verdict.answers[0].settings == EAGLE3
    assert verdict.contenders[8][0].flags == ("low_samples",)


def test_a_flagged_plain_server_is_no_reference() -> None:
    """A speedup over a plain server that could not keep up would be a lie: there is none then."""
    records = [*launches(PLAIN, 20, first=0, flags=(Flag.REQUESTS_FAILED,)), *launches(EAGLE3, 90, first=10)]
    answer = only(records)
    assert (answer.answer, answer.speedup, answer.best_plain) == ("cannot tell", None, None)
    assert (answer.settings, answer.best_speculative) == (None, EAGLE3)
    assert "plain server has no sound measurement" in answer.note


def test_a_flagged_plain_server_is_relaunched_before_anything_else() -> None:
    """Without it nothing can be compared; one that comes out flagged time and again is left."""
    fast = launches(EAGLE3, 90, first=10)
    flagged = [launches(PLAIN, *[20] * count, first=0, flags=(Flag.STALLED,)) for count in (1, 2, 3)]
    assert [finalists([*plain, *fast], GOAL, 4) for plain in flagged] == [[PLAIN], [PLAIN], []]
    sound = launches(PLAIN, 20, 60, first=0)
    again = [dataclasses.replace(sound[0], flags=(Flag.STALLED,)), sound[1]]
    assert finalists([*again, *fast], GOAL, 4)[0] == EAGLE3


def test_load_points_are_not_spoken_of_together_where_they_lose_for_different_reasons() -> None:
    """A broken limit at one, a loss at the other: neither reason is said of both."""
    goal = Goal(limits={"ttft_p99_ms": 500.0})
    plain = [*launches(PLAIN, 100, first=0, concurrency=1), *launches(PLAIN, 600, first=0, concurrency=8)]
    slow = launches(EAGLE3, 40, first=1, concurrency=1, ttft_p99_ms=10.0)
    barred = launches(EAGLE3, 900, first=1, concurrency=8, ttft_p99_ms=900.0)
    verdict = judge([*plain, *slow, *barred], goal)
    assert verdict.sentence == (
        "Do not speculate: at concurrency 1 use the plain server (the one speculative setting measured came to 0.40×); "
        "at concurrency 8 use the plain server (No speculative setting may win here; the fastest is EAGLE3 own 3.1.4 "
        "fa3, but: ttft_p99_ms 900 is above its limit 500)."
    )
    both = judge([*plain, *launches(EAGLE3, 140, first=1, concurrency=1, ttft_p99_ms=800.0), *barred], goal)
    assert both.sentence.startswith("Do not speculate: no speculative setting may win at any load point (e.g. at concurrency 1: ")  # fmt: skip
    late = [
        *launches(PLAIN, 100, first=0, concurrency=1, ttft_p99_ms=900.0), *launches(PLAIN, 600, first=0, concurrency=8),
        *launches(EAGLE3, 150, first=1, concurrency=1), *launches(EAGLE3, 1200, first=1, concurrency=8),
    ]  # fmt: skip
    assert "at concurrency 1 (1.50× [1.17, 1.92]; launched once, interval assumed): The plain server may not win here: ttft_p99_ms 900" in judge(late, goal).sentence  # fmt: skip
    assert judge(late, goal).sentence.endswith(
        "at concurrency 8 (2.00× [1.56, 2.56]; launched once, interval assumed)."
    )


def test_a_trial_that_was_taken_up_again_is_judged_over_all_load_points_as_if_it_had_not_been() -> None:
    """One attempt measured the first load point, the next the others: with and without weights."""
    whole = [
        row
        for concurrency, plain, fast in ((1, 100, 60), (8, 600, 300), (32, 1500, 500))
        for row in (*launches(PLAIN, plain, first=0, concurrency=concurrency), *launches(EAGLE3, fast, first=1, concurrency=concurrency))
    ]  # fmt: skip
    parted = [dataclasses.replace(row, attempt=2) if row.trial == 0 and row.point and row.point.concurrency > 1 else row for row in whole]  # fmt: skip
    for goal in (GOAL, Goal(weights={1: 1.0, 8: 1.0, 32: 1.0})):
        assert judge(parted, goal) == judge(whole, goal)
        assert judge(parted, goal).overall is not None


def test_a_broken_limit_bars_the_faster_setting() -> None:
    """The goal's limits come first: what breaks one cannot win, and the verdict says so."""
    goal = Goal(limits={"ttft_p99_ms": 500.0})
    plain = launches(PLAIN, 100, first=0, ttft_p99_ms=100.0)
    fast = launches(WIDE, 200, first=10, ttft_p99_ms=900.0)
    answer = only([*plain, *fast, *launches(EAGLE3, 170, first=20, ttft_p99_ms=300.0)], goal)
    assert answer.settings == EAGLE3
    verdict = judge([*plain, *fast], goal)
    assert (verdict.answers[0].answer, verdict.answers[0].settings) == ("worse", None)
    assert "ttft_p99_ms 900 is above its limit 500" in verdict.sentence


def test_a_plain_server_that_breaks_a_limit_loses_to_a_setting_that_keeps_it() -> None:
    """Then the speculative setting is what to run, whatever the throughput says."""
    goal = Goal(limits={"ttft_p99_ms": 500.0})
    records = [*launches(PLAIN, 100, first=0, ttft_p99_ms=800.0), *launches(EAGLE3, 101, first=10, ttft_p99_ms=300.0)]
    answer = only(records, goal)
    assert answer.settings == EAGLE3
    assert "The plain server may not win here: ttft_p99_ms 800" in answer.note
    slower = [*records[:1], *launches(EAGLE3, 50, first=10, ttft_p99_ms=300.0)]
    assert judge(slower, goal).sentence.startswith(f"Speculate with {EAGLE3} at concurrency 8 (0.50× [")


def test_only_the_load_points_of_the_goal_count() -> None:
    """objective.at narrows what is answered."""
    records = [
        measured(s, v, trial=n, concurrency=c) for c in (1, 8) for n, s, v in ((0, PLAIN, 10.0), (1, EAGLE3, 20.0))
    ]
    assert [answer.concurrency for answer in judge(records, Goal(at=(8,))).answers] == [8]


def test_the_goal_may_be_another_metric() -> None:
    """maximize: user_tok_s compares what one user sees."""
    records = [*launches(PLAIN, 100, first=0, user_tok_s=10.0), *launches(EAGLE3, 90, first=1, user_tok_s=20.0)]
    goal = Goal(maximize="user_tok_s")
    assert only(records, goal).speedup == pytest.approx(2.0)
    assert "2.00× higher user_tok_s [" in judge(records, goal).sentence


def test_the_goal_may_be_a_metric_to_lower() -> None:
    """minimize: tpot_p50_ms: the lower one wins, values keep their unit, and the speedup says how many times lower."""
    goal = Goal(minimize="tpot_p50_ms")
    records = [
        *launches(PLAIN, 100, 100, first=0, tpot_p50_ms=20.0),
        *launches(WIDE, 300, 300, first=10, tpot_p50_ms=25.0),
    ]
    verdict = judge([*records, *launches(EAGLE3, 90, 90, first=20, tpot_p50_ms=8.0)], goal)
    (answer,) = verdict.answers
    assert (answer.answer, answer.settings) == ("better", EAGLE3)
    assert answer.speedup == pytest.approx(2.5)
    assert (answer.plain_tok_s, answer.best_tok_s) == (pytest.approx(20.0), pytest.approx(8.0))
    assert [one.settings for one in verdict.contenders[8]] == [EAGLE3, PLAIN, WIDE]
    assert "(2.50× lower tpot_p50_ms [" in verdict.sentence
    assert "(best 0.80× by tpot_p50_ms)" in judge(records, goal).sentence


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -5.0, None])
def test_an_impossible_number_is_no_measurement(value: float | None) -> None:
    """Not a number, infinite, zero, negative or missing (W08): such a row neither wins nor loses."""
    records = [*launches(PLAIN, 100, first=0), measured(WIDE, value, trial=5), *launches(EAGLE3, 160, first=10)]
    assert only(records).settings == EAGLE3


def test_without_speculative_rows_there_is_no_verdict() -> None:
    """Only the plain server was measured: that is said, with how many trials failed."""
    verdict = judge([*launches(PLAIN, 100, first=0), failure(EAGLE3, trial=1)], GOAL)
    assert not verdict.reached
    assert verdict.answers[0].note == "No speculative setting was measured."
    assert verdict.sentence == "No verdict: no speculative setting was measured, only the plain server; 1 trial failed."


def test_without_any_measurement_there_is_no_verdict() -> None:
    """All failed, or nothing ran at all (W09): no answers, no exception."""
    assert judge([failure(EAGLE3, trial=0)], Goal(at=(1, 8))).sentence == "No verdict: every launch failed."
    assert judge([], GOAL).sentence == "No verdict: nothing was measured."
    assert judge([], GOAL).answers == ()
    assert finalists([], GOAL, 3) == []


def test_simulated_rows_make_a_verdict_that_says_so() -> None:
    """One simulated row is enough for the sentence to begin with it."""
    verdict = judge([*launches(PLAIN, 100, first=0, simulated=True), *launches(EAGLE3, 200, first=1)], GOAL)
    assert verdict.simulated
    assert verdict.sentence.startswith("Simulated, not measured: ")


def test_a_wide_tree_wins_alone_and_loses_under_load() -> None:
    """S12: steps 6, topk 10, 32 tokens, as in the paper: best for one stream, far behind the plain server at sixteen."""
    paper = WIDE.replace(num_steps=6, eagle_topk=10)
    records = [
        *launches(PLAIN, 100, 101, first=0, concurrency=1), *launches(paper, 190, 191, first=10, concurrency=1),
        *launches(PLAIN, 900, 905, first=0, concurrency=16), *launches(paper, 410, 412, first=10, concurrency=16),
    ]  # fmt: skip
    verdict = judge(records, GOAL)
    assert [(one.concurrency, one.settings, one.answer) for one in verdict.answers] == [
        (1, paper, "better"),
        (16, None, "worse"),
    ]
    assert "at concurrency 16 use the plain server" in verdict.sentence
    assert verdict.crossover is not None
    assert 1 < verdict.crossover.concurrency < 16


def test_the_sentence_gives_advice_by_load() -> None:
    """Neighbouring load points with the same advice are told together."""
    records = []
    for concurrency, plain, eagle in ((1, 100, 150), (8, 400, 560), (32, 1000, 700)):
        records += launches(PLAIN, plain, plain * 1.005, first=0, concurrency=concurrency)
        records += launches(EAGLE3, eagle, eagle * 1.005, first=10, concurrency=concurrency)
    sentence = judge(records, GOAL).sentence
    assert sentence == (
        "Speculate with EAGLE3 own 3.1.4 fa3 up to concurrency 8 (1.50× [1.31, 1.72] at 1, 1.40× [1.22, 1.60] at 8); "
        "at concurrency 32 use the plain server (the one speculative setting measured came to 0.70×)."
    )


def test_the_sentence_says_where_an_interval_rests_on_little() -> None:
    """A winner that was launched once is not yet one, and an interval may be assumed: once for all load points where it is
    the same at all, not at all where there were relaunches."""
    once = [*launches(PLAIN, 100, first=0, concurrency=1), *launches(EAGLE3, 150, first=10, concurrency=1)]
    assert judge(once, GOAL).sentence == (
        "Speculate with EAGLE3 own 3.1.4 fa3 at concurrency 1 (1.50× [1.17, 1.92]; launched once, interval assumed)."
    )
    both = [*once, *launches(PLAIN, 100, first=0), *launches(EAGLE3, 150, first=10)]
    assert judge(both, GOAL).sentence.endswith("at 1, 1.50× [1.17, 1.92] at 8; launched once, interval assumed).")
    unlike = [*once, *launches(PLAIN, 100, 101, first=0), *launches(EAGLE3, 150, 151, first=10)]
    unlike_words = judge(unlike, GOAL).sentence
    assert "(launched once) at 1, 1.50× [" in unlike_words
    assert unlike_words.endswith("] at 8).")


def test_the_sentence_says_once_what_its_figures_are_of() -> None:
    """The best of three settings at each of two load points, or one of which nothing can be told: named once, then the
    figures by load point."""
    found = [measured(PLAIN, 100.0, trial=0, concurrency=load) for load in (1, 8, 32)]
    for trial, (settings, tok_s) in enumerate(((EAGLE3, 40.0), (WIDE, 30.0), (PUBLIC, 35.0)), start=1):
        found += [measured(settings, tok_s + load, trial=trial, concurrency=load) for load in (1, 8)]
        found += [measured(settings, tok_s * 5, trial=trial, concurrency=32)]
    assert "up to concurrency 8 use the plain server (the best of 3 speculative settings came to 0.41× at 1, 0.48× at 8)" in judge(found, GOAL).sentence.lower()  # fmt: skip
    alike = [
        measured(one, 100.0, trial=n, concurrency=load) for load in (1, 8) for n, one in enumerate((PLAIN, EAGLE3))
    ]
    each = "EAGLE3 own 3.1.4 fa3 1.00× [0.78, 1.28] at 1, 1.00× [0.78, 1.28] at 8; launched once, interval assumed"
    assert f"At every load point we cannot tell ({each})" in judge(alike, GOAL).sentence


def test_the_sentence_names_what_was_not_tried() -> None:
    """A verdict over some settings of one drafter is none over the other: it says how many, and what never ran."""
    pairs = [("EAGLE3", "own"), ("EAGLE3", "public")]
    records = [*launches(PLAIN, 100, first=0), *launches(EAGLE3, 63, first=10), *launches(WIDE, 55, first=20)]
    records += launches(EAGLE3.replace(num_steps=2), 50, first=30)
    assert judge(records, GOAL, pairs).sentence == (
        "Do not speculate: at every load point the plain server beat the 3 settings of EAGLE3 own that were measured "
        "(best 0.63×); EAGLE3 public was never launched."
    )
    begun = judge(records, GOAL, pairs, begun=[PUBLIC]).sentence
    assert begun.endswith("; EAGLE3 public was launched, but nothing that counts was measured.")
    failed = judge([*records, failure(PUBLIC, trial=40)], GOAL, pairs).sentence
    assert failed.endswith("; EAGLE3 public failed at every launch (oom_graph_capture).")
    barred = judge([*records, *launches(PUBLIC, 30, first=40, flags=(Flag.DRAFTER_INEFFECTIVE,))], GOAL, pairs).sentence
    assert barred.endswith("; EAGLE3 public was measured, but no row of it may win (drafter_ineffective).")
    both = judge([*records, *launches(PUBLIC, 30, first=40)], GOAL, pairs).sentence
    assert "beat the 3 settings of EAGLE3 own and the one setting of EAGLE3 public that were measured" in both


def test_a_gain_names_what_was_not_tried_too() -> None:
    """The best of one drafter may not be the best there is."""
    records = [*launches(PLAIN, 100, 101, first=0), *launches(EAGLE3, 140, 142, first=10)]
    verdict = judge(records, GOAL, [("EAGLE3", "own"), ("NGRAM", None)])
    assert verdict.sentence.endswith("); NGRAM was never launched.")
    assert [(one.name, one.num_settings) for one in verdict.coverage] == [("EAGLE3 own", 1), ("NGRAM", 0)]


def test_the_space_holds_every_algorithm_with_every_drafter() -> None:
    """As it is launched: NEXTN is another name of EAGLE, NGRAM has no drafter, none is the plain server."""
    space = {"algorithm": ["none", "EAGLE3", "NEXTN", "NGRAM"], "drafter": ["own", "public"]}
    assert pairs_of({"space": space}) == (
        ("EAGLE3", "own"), ("EAGLE3", "public"), ("EAGLE", "own"), ("EAGLE", "public"), ("NGRAM", None),
    )  # fmt: skip
    assert pairs_of({"space": {"algorithm": "EAGLE3", "drafter": "own"}}) == (("EAGLE3", "own"),)
    assert pairs_of({"space": {"algorithm": "EAGLE"}}) == (("EAGLE", None),)
    assert pairs_of({"space": {"algorithm": "none"}}) == pairs_of({"space": {}}) == ()


def test_the_dominant_cause_is_one_line_with_a_remedy() -> None:
    """What failed most, in the words of its first failure; a broken environment before all else, for it ends a sweep."""
    remedy = FailureKind.OOM_WEIGHTS.remedy
    ooms = [failure(EAGLE3, FailureKind.OOM_WEIGHTS, trial=n, message=f"no\nroom\nLog: /l\n{remedy}") for n in (0, 1)]
    crash = failure(EAGLE3, FailureKind.CRASH_START, trial=2)
    broken = failure(PLAIN, FailureKind.ENVIRONMENT_BROKEN, trial=3)
    line = f"oom_weights (stage graph_capture): no room. What to do: {remedy}"
    assert dominant_cause([crash, *ooms]) == judge([crash, *ooms], GOAL).cause == f"2 of 3 failures: {line}"
    assert dominant_cause(ooms) == f"All 2 failures: {line}"
    assert dominant_cause(ooms[:1]) == f"The one failure: {line}"
    assert str(dominant_cause([*ooms, crash, broken])).startswith("1 of 4 failures: environment_broken")
    assert dominant_cause(launches(PLAIN, 100, first=0)) is None


def test_hosts_are_compared_by_their_own_plain_server() -> None:
    """A setting that was only measured on the faster of two machines gains nothing from that."""
    records = [*launches(PLAIN, 100, 100, first=0, host="slow"), *launches(PLAIN, 130, 130, first=5, host="fast")]
    answer = only([*records, *launches(EAGLE3, 130, 130, first=10, host="fast")])
    assert answer.speedup == pytest.approx(1.0)


def test_a_server_begun_again_is_another_launch() -> None:
    """A trial that was interrupted and resumed ran on two servers: two launches, with their own luck."""
    first = measured(EAGLE3, 120.0, trial=10)
    second = Record(**{**vars(measured(EAGLE3, 130.0, trial=10, repeat=1)), "attempt": 2})
    assert only([*launches(PLAIN, 100, first=0), first, second]).launches == 2


def test_finalists_are_the_plain_server_and_the_leaders() -> None:
    """With one launch each, the race relaunches what is open: the leaders of the load points and the plain server."""
    records = []
    for concurrency, eagle, wide in ((1, 150, 130), (8, 110, 150)):
        records += launches(PLAIN, 100, first=0, concurrency=concurrency)
        records += launches(EAGLE3, eagle, first=1, concurrency=concurrency)
        records += launches(WIDE, wide, first=2, concurrency=concurrency)
        records += launches(PUBLIC, 40, first=3, concurrency=concurrency)
    assert set(finalists(records, GOAL, 3)) == {PLAIN, EAGLE3, WIDE}
    assert len(finalists(records, GOAL, 1)) == 1
    assert finalists(records, GOAL, 0) == []
    assert PUBLIC not in finalists(records, GOAL, 9)


def test_the_top_few_are_relaunched_before_one_is_named() -> None:
    """S11: one short measurement hides how a setting varies, so a winner of single launches goes back to the machine."""
    chains = [EAGLE3.replace(num_steps=n, num_draft_tokens=n + 1) for n in (2, 3, 4)]
    records = launches(PLAIN, 100, first=0)
    records += [
        measured(one, speed, trial=n, launch=0)
        for n, (one, speed) in enumerate(zip(chains, (148, 150, 149), strict=True), 10)
    ]
    assert set(finalists(records, GOAL, 4)) == {PLAIN, *chains}
    again = [
        measured(one, 149.0, trial=20 + n, launch=1)
        for n, one in enumerate((PLAIN.replace(), *chains))
        if one.speculative
    ]
    assert judge([*records, *again], GOAL).answers[0].confirmations == 1


def test_a_rival_that_the_model_thinks_little_of_is_relaunched_after_the_others() -> None:
    """Of two rivals with the same figures, the one with the better chance to be the best; with room it goes too."""
    chains = [EAGLE3.replace(num_steps=n, num_draft_tokens=n + 1) for n in (2, 3, 4)]
    records = launches(PLAIN, 100, first=0)
    records += [measured(one, speed, trial=n) for n, (one, speed) in enumerate(zip(chains, (149, 150, 149), strict=True), 10)]  # fmt: skip
    for favoured, other in ((chains[0], chains[2]), (chains[2], chains[0])):
        chosen = finalists(records, GOAL, 3, lambda settings, _, best=favoured: 0.5 if settings == best else 0.01)
        assert chosen == [chains[1], favoured, PLAIN]
        assert other in finalists(records, GOAL, 4, lambda *_: 0.0)


def test_what_decides_most_is_relaunched_first() -> None:
    """A toss-up with the plain server is worth more than a gain that is settled."""
    records = [*launches(PLAIN, 100, 101, first=0, concurrency=1), *launches(PLAIN, 100, 101, first=0)]
    records += launches(EAGLE3, 300, 301, first=10, concurrency=1)
    records += launches(EAGLE3, 60, 61, first=10)
    records += [measured(WIDE, 101.0, trial=20), measured(WIDE, 60.0, trial=20, concurrency=1)]
    assert finalists(records, GOAL, 1) == [WIDE]


def test_finalists_are_named_as_they_were_asked() -> None:
    """A relaunch asks the same question again, whatever the server filled in."""
    records = [*launches(PLAIN, 100, first=0), *launches(EAGLE3.replace(page_size=64), 150, first=1, asked=EAGLE3)]
    assert EAGLE3 in finalists(records, GOAL, 3)


rates = st.floats(1.0, 1e5)


@examples(deadline=None, max_examples=60)
@given(
    st.lists(rates, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([EAGLE3, WIDE, PUBLIC]), rates), max_size=9),
)
def test_a_verdict_never_contradicts_itself(plain: list[float], rest: list[tuple[Settings, float]]) -> None:
    """Whatever the numbers: the speedup lies in its interval, the answer follows from it, and only `better` speculates."""
    records = launches(PLAIN, *plain, first=0)
    records += [measured(settings, value, trial=50 + n, launch=n) for n, (settings, value) in enumerate(rest)]
    answer = only(records)
    if answer.speedup is None or answer.speedup_low is None or answer.speedup_high is None:
        assert not rest
        return
    assert answer.speedup_low <= answer.speedup * (1 + 1e-9)
    assert answer.speedup <= answer.speedup_high * (1 + 1e-9)
    assert (answer.answer == "better") == (answer.speedup_low > 1)
    assert (answer.answer == "worse") == (answer.speedup_high < 1)
    assert (answer.settings is not None) == (answer.answer == "better")
    assert len(finalists(records, GOAL, 3)) <= 3


@pytest.mark.parametrize("sd", [0.01, 0.05, 0.12])
@pytest.mark.parametrize(("plain_count", "count"), [(1, 1), (2, 2), (4, 4), (1, 2), (1, 3), (3, 1)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(sd: float, plain_count: int, count: int) -> None:
    """Over 400 sweeps with a known speedup, the 95 % interval contains it in at least nine of ten, whoever was relaunched."""
    random = np.random.default_rng(count)
    covered = 0
    for _ in range(400):
        plain = 100 * np.exp(random.normal(0, 0.015, plain_count))
        eagle = 130 * np.exp(random.normal(0, sd, count))
        answer = only([*launches(PLAIN, *plain, first=0), *launches(EAGLE3, *eagle, first=10)])
        assert answer.speedup_low is not None
        assert answer.speedup_high is not None
        covered += answer.speedup_low <= 1.3 <= answer.speedup_high
    assert covered >= 0.9 * 400


def loads(settings: Settings, speeds: Sequence[tuple[float, float]], first: int, **more: object) -> list[Record]:
    """A launch each, with its speeds at concurrency 1 and 32."""
    return [
        measured(settings, speed, trial=first + n, launch=n, concurrency=concurrency, **more)  # type: ignore[arg-type]
        for n, pair in enumerate(speeds)
        for concurrency, speed in zip((1, 32), pair, strict=True)
    ]


TWO_LOADS = [
    *loads(PLAIN, [(100, 1000), (101, 1005), (100, 1000)], first=0),
    *loads(WIDE, [(300, 700), (302, 702), (301, 700)], first=10),
    *loads(EAGLE3, [(140, 1300), (141, 1310), (140, 1305)], first=20),
]


def test_the_best_of_a_drafter_is_the_one_that_the_answer_names() -> None:
    """Not the luckier one that was launched once; of another drafter its fastest that may win, barred ones only where none is."""
    lucky, barred = EAGLE3.replace(num_steps=2, num_draft_tokens=3), PUBLIC.replace(num_steps=5, num_draft_tokens=6)
    records = [
        measured(PLAIN, 100.0, trial=0), measured(PLAIN, 101.0, trial=1, launch=1), measured(EAGLE3, 150.0, trial=2),
        measured(EAGLE3, 148.0, trial=3, launch=1), measured(lucky, 155.0, trial=4), measured(PUBLIC, 120.0, trial=5),
        measured(barred, 200.0, trial=6, flags=(Flag.STALLED,)),
    ]  # fmt: skip
    verdict = judge(records, Goal())
    assert verdict.answers[0].best_speculative == EAGLE3
    best = {pair: points[8].settings for pair, points in verdict.best_by_pair().items()}
    assert best == {("EAGLE3", "own"): EAGLE3, ("EAGLE3", "public"): PUBLIC}
    alone = judge([records[0], records[-1]], Goal()).best_by_pair()
    assert alone["EAGLE3", "public"][8].cannot_win == "stalled"


@pytest.mark.parametrize(("weights", "best", "speedup"), [((9, 1), WIDE, 2.6), ((1, 9), EAGLE3, 1.31)])
def test_one_setting_for_all_load_points_depends_on_what_each_counts(
    weights: tuple[float, float], best: Settings, speedup: float
) -> None:
    """A tree is best for one stream and a chain for 32: which of them to run for both is the weights' answer."""
    verdict = judge(TWO_LOADS, Goal(weights=dict(zip((1, 32), weights, strict=True))))
    assert verdict.overall is not None
    assert (verdict.overall.answer, verdict.overall.settings) == ("better", best)
    assert verdict.overall.speedup == pytest.approx(speedup, rel=0.02)
    assert [answer.settings for answer in verdict.answers] == [WIDE, EAGLE3]
    assert f"speculate with {best} with one setting for all load points" in verdict.sentence


def test_luck_that_a_launch_s_load_points_share_is_counted_once() -> None:
    """A launch that is fast is fast at both loads: the interval of their mean is as wide as that of one of them."""
    lucky = loads(EAGLE3, [(120, 1200), (160, 1600), (140, 1400), (150, 1500)], first=20)
    verdict = judge([*loads(PLAIN, [(100, 1000)] * 4, first=0), *lucky], Goal())
    assert verdict.overall is not None
    assert verdict.overall.speedup_high == pytest.approx(verdict.answers[0].speedup_high)


def test_a_setting_that_is_barred_at_one_load_point_is_none_for_all() -> None:
    """What breaks a limit under load cannot be the one setting, and it says where."""
    records = [*TWO_LOADS[:6], *loads(EAGLE3, [(140, 1300)] * 3, first=20)]
    slow = [
        Record(**{**vars(r), "measurement": dataclasses.replace(r.measurement, ttft_p99_ms=900.0)})
        if r.measurement and r.point and r.point.concurrency == 32 and r.settings.speculative else r
        for r in records
    ]  # fmt: skip
    overall = judge(slow, Goal(limits={"ttft_p99_ms": 500.0})).overall
    assert overall is not None
    assert overall.settings is None
    assert "ttft_p99_ms 900 is above its limit 500 (at 32)" in overall.note


def test_with_one_load_point_there_is_nothing_to_put_together() -> None:
    """The answer of the load point is all there is."""
    assert judge(launches(PLAIN, 100, 101, first=0), GOAL).overall is None


def test_the_sentence_says_that_the_best_was_launched_again() -> None:
    """Another that was launched once may stand higher in the tables: the sentence is about those launched again."""
    records = [
        *launches(PLAIN, 100, 101, first=0),
        *launches(EAGLE3, 70, 69, first=10),
        *launches(PUBLIC, 75, first=20),
        *launches(WIDE, 60, first=30),
    ]
    assert judge(records, GOAL).sentence.endswith("(best launched again 0.69×).")
    gain = [*launches(PLAIN, 100, first=40, concurrency=1), *launches(WIDE, 300, first=50, concurrency=1)]
    assert (
        "(of 3 speculative settings the best that was launched again came to 0.69×)"
        in judge([*records, *gain], GOAL).sentence
    )


def test_a_setting_launched_once_is_not_said_to_be_relaunched() -> None:
    """Its interval rests on the few relaunches of others, and says so."""
    records = [*launches(PLAIN, 100, 101, first=0), *launches(PUBLIC, 110, 111, first=10)]
    answer = only([*records, *launches(EAGLE3, 180, first=20)])
    assert (answer.best_speculative, answer.launches) == (EAGLE3, 1)
    assert answer.basis == "measured on few relaunches of other settings"
