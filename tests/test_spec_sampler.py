"""SpecSampler: an Optuna sampler that any study can use, whose every proposal is made from the study's trials."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase

from benchmarks.landscapes import Landscape, draw
from sweeps.coordinates import Coordinates
from sweeps.facts import NOTHING_KNOWN
from sweeps.legal import legal
from sweeps.observation import Goal, Observation
from sweeps.sampler import LEAST_MEASURED, Sampler
from sweeps.sampler.spec import SpecSampler, concurrencies_of, note, read, told, written
from sweeps.settings import Settings
from sweeps.space import Choice, Held, SearchSpace
from sweeps.surrogate import Surrogate
from sweeps.surrogate.gain import Pending, next_launch
from sweeps.surrogate.known import Known
from sweeps.surrogate.odds import break_even

SPACE = SearchSpace({
    "algorithm": Choice(("none", "EAGLE3")), "drafter": Choice(("d0", "d1")), "num_steps": Choice((1, 2, 3, 5, 7)),
    "eagle_topk": Choice((1, 4)), "num_draft_tokens": Choice((8, 16)), "attention_backend": Held("triton"),
})  # fmt: skip
PLAIN = Settings(attention_backend="triton")
CHAIN = Settings("EAGLE3", "d0", 3, 1, 4, attention_backend="triton")


class TestSpecSampler(BasicSamplerTestCase):
    """Optuna's own tests of what every sampler must do, with parameters that are none of ours."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: SpecSampler(Coordinates(SPACE, NOTHING_KNOWN), seed=1)


def answer(trial: int, settings: Settings, concurrencies: tuple[int, ...] = (1, 8)) -> list[Observation]:
    """A machine on which a token more in a step costs 5 %, a step of drafting 6 %, and drafter d1 is the better one."""
    right = {"d0": 0.6, "d1": 0.75}.get(settings.drafter or "", 0.0)
    depth = settings.num_steps or 0
    survival = np.cumprod([right] * depth) if depth else np.zeros(0)
    length = 1 + float(survival.sum())
    histogram = np.rint(-np.diff([1.0, *survival, 0.0]) * 2000).astype(int) if depth else None
    found = []
    for concurrency in concurrencies:
        tokens = settings.num_draft_tokens or 1
        step_ms = 10 * (1 + 0.06 * depth + 0.05 * (tokens - 1) * concurrency**0.3)
        found.append(Observation(
            trial, settings, "measured", concurrency=concurrency, value=1000 * concurrency * length / step_ms,
            acceptance_length=length if depth else None, launch_s=60.0, measure_s=20.0,
            acceptance_histogram=tuple(histogram.tolist()) if histogram is not None else None,
        ))  # fmt: skip
    return found


def study_of(sampler: SpecSampler) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trial(told(answer(-1, PLAIN)))
    return study


def test_a_study_finds_the_best_setting_in_a_few_launches() -> None:
    """Of 50 settings, six launches reach one within 2 % of the best at each concurrency's mean."""
    sampler = SpecSampler(Coordinates(SPACE, NOTHING_KNOWN), Goal(), seed=1)
    study = study_of(sampler)
    for number in range(6):
        trial = study.ask(sampler.distributions)
        settings = sampler.settings(trial)
        assert settings is not None
        seen = answer(number, settings, concurrencies_of(trial) or (1, 8))
        note(trial, seen)
        study.tell(trial, float(np.mean([np.log(o.value or 1) for o in seen])))
    known = legal(SPACE, NOTHING_KNOWN)
    for level in (0, 1):
        speeds = {s.key: answer(0, s)[level].value or 0.0 for s in known.settings}
        concurrency = (1, 8)[level]
        tried = [
            o
            for t in study.trials
            for o in map(read, t.user_attrs["spec:observations"])
            if o.concurrency == concurrency
        ]
        assert max(speeds[o.settings.key] for o in tried if o.settings.speculative) > 0.98 * max(speeds.values())


def test_another_process_takes_up_a_stored_study(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The sampler keeps nothing: a fresh one with the same trials proposes the same, and knows what runs."""
    first, second = (SpecSampler(Coordinates(SPACE, NOTHING_KNOWN), Goal(), seed=seed) for seed in (1, 2))
    study = study_of(first)
    trial = study.ask(first.distributions)
    note(trial, answer(0, first.settings(trial) or CHAIN))
    study.tell(trial, 1.0)
    running = study.ask(first.distributions)
    fresh = optuna.create_study(direction="maximize", sampler=second)
    fresh.add_trials(study.trials)
    one, other = study.ask(first.distributions), fresh.ask(second.distributions)
    assert first.settings(one) == second.settings(other)
    assert first.settings(one) != first.settings(running)


def test_many_workers_get_distinct_settings_before_anything_is_measured() -> None:
    """Eight at once: a deep chain for each drafter first, no setting twice."""
    sampler = SpecSampler(Coordinates(SPACE, NOTHING_KNOWN), Goal(), seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    drawn = [sampler.settings(study.ask(sampler.distributions)) for _ in range(8)]
    assert len({s.key for s in drawn if s}) == 8
    assert {(s.drafter, s.num_steps, s.eagle_topk) for s in drawn[:2] if s} == {("d0", 7, 1), ("d1", 7, 1)}


def test_observations_survive_a_storage_of_text() -> None:
    """What is kept with a trial is plain JSON and comes back equal."""
    for seen in (*answer(3, CHAIN), Observation(4, CHAIN, "infeasible", cause="oom_graph_capture")):
        assert read(written(seen)) == seen


def test_without_acceptance_the_search_falls_back_and_says_so_once() -> None:
    """An engine that reports no acceptance is searched by TPE; the reason is told."""
    sampler = Sampler(SPACE, Goal(), "spec", seed=1)
    sampler.learn(Observation(0, PLAIN, "measured", concurrency=1, value=100.0))
    sampler.finish(0)
    first = sampler.propose()
    assert first is not None
    assert sampler.new_fall_back() is None
    sampler.learn(Observation(1, first.settings, "measured", concurrency=1, value=120.0))
    sampler.finish(1)
    assert sampler.propose() is not None
    assert "without acceptance length" in (sampler.new_fall_back() or "")
    assert sampler.new_fall_back() is None


def test_a_latency_that_follows_from_acceptance_and_step_time_is_searched_by_the_model() -> None:
    """TPOT at concurrency 8 alone, lower is better: six launches hold a setting within 2 % of the lowest."""
    goal = Goal(minimize="tpot_p50_ms", at=(8,))
    sampler = Sampler(SPACE, goal, "spec", seed=1)

    def tpot_ms(settings: Settings) -> float:
        return 8000 / (answer(0, settings)[1].value or 1.0)

    lowest, settings = np.inf, PLAIN
    for number in range(7):
        seen = [dataclasses.replace(o, value=goal.merit(8000 / (o.value or 1.0))) for o in answer(number, settings)]
        lowest = min(lowest, tpot_ms(settings))
        for observation in seen:
            sampler.learn(observation)
        sampler.finish(number)
        if (proposal := sampler.propose()) is None:
            break
        settings = proposal.settings
    assert sampler.new_fall_back() is None
    assert lowest < 1.02 * min(tpot_ms(s) for s in [*legal(SPACE, NOTHING_KNOWN).settings, PLAIN])


def test_the_time_to_the_first_token_is_searched_without_the_model_and_this_is_said() -> None:
    """It does not follow from what a step gains; the journal gets nothing that the model would have to know."""
    sampler = Sampler(SPACE, Goal(minimize="ttft_p99_ms"), "spec", seed=1)
    sampler.learn(Observation(0, PLAIN, "measured", concurrency=1, value=1 / 40.0))
    sampler.finish(0)
    assert sampler.propose() is not None
    assert sampler.new_fall_back() == "ttft_p99_ms does not follow from acceptance and step time"
    assert sampler.expects() == {}


def test_the_model_says_which_of_the_measured_settings_are_likely_the_best() -> None:
    """The chances of all measured settings sum to 1 at each concurrency; the fastest of them has the largest."""
    sampler = Sampler(SPACE, Goal(), "spec", seed=1)
    seen = searched(sampler, 9)
    chance = sampler.chances_of_best()
    for concurrency in (1, 8):
        here = [o for o in seen if o.concurrency == concurrency]
        chances = {o.settings.key: chance(o.settings, concurrency) for o in here}
        assert sum(chances.values()) == pytest.approx(1)
        fastest = max(here, key=lambda o: o.value or 0.0).settings
        assert chances[fastest.key] == max(chances.values())
        assert chances[PLAIN.key] < 0.05
    assert Sampler(SPACE, Goal(), "tpe").chances_of_best()(PLAIN, 1) == 1


def known_of(land: Landscape, failures: list[Observation], planned: dict[int, tuple[int, ...]]) -> Known:
    surrogate = Surrogate(land.settings, (1, 16, 64))
    chance = np.random.default_rng(1)
    plain = land.launch(0, land.settings[0], (1, 16, 64), 120.0, chance).observations
    return Known.of(surrogate, [*plain, *failures], planned)


def test_a_tree_too_wide_for_many_streams_may_still_win_at_few() -> None:
    """Out of memory at 64 streams × 32 tokens: no product as large is tried again, smaller ones and one stream are."""
    land = draw(12)
    wide = next(s for s in land.settings if s.eagle_topk == 8 and s.num_draft_tokens == 32)
    known = known_of(land, [Observation(5, wide, "infeasible", cause="oom_graph_capture")], {5: (64,)})
    candidates = known.surrogate.candidates
    for place, settings in enumerate(land.settings):
        tokens = settings.num_draft_tokens or 1
        assert (known.runs[2][place] == 0) == (64 * tokens >= 64 * 32), settings
        assert known.runs[0][place] > 0
    assert candidates.place[wide.key] is not None


def test_where_a_server_holds_a_fixed_number_of_requests_memory_is_short_at_every_load() -> None:
    """A tree that had no room for 64 requests has none when one stream is measured; chains and smaller trees have."""
    every = [PLAIN, *(s for s in legal(SPACE, NOTHING_KNOWN).settings if s.speculative)]
    held = [settings.replace(max_running_requests=64) for settings in every]
    wide = next(s for s in held if (s.eagle_topk, s.num_draft_tokens) == (4, 8))
    plain = [Observation(0, held[0], "measured", concurrency=c, value=100.0) for c in (1, 64)]
    failed = Observation(1, wide, "infeasible", cause="oom_graph_capture")
    known = Known.of(Surrogate(held, (1, 64)), [*plain, failed], {1: (1,)})
    for place, settings in enumerate(held):
        hopeless = settings.speculative and (settings.num_draft_tokens or 0) >= 8
        assert ((known.runs[:, place] == 0) == hopeless).all(), settings


def test_a_sweeps_sampler_measures_every_load_on_each_launch() -> None:
    """So a launch carries no choice of loads, and what is pending is pending at all of them."""
    sampler = SpecSampler(Coordinates(SPACE, NOTHING_KNOWN), Goal(), seed=1, every_load=True)
    study = study_of(sampler)
    trial = study.ask(sampler.distributions)
    assert concurrencies_of(trial) is None
    _, pending, _ = sampler.known(study)
    assert [item.concurrencies for item in pending] == [(1, 8)]


def test_one_refused_kernel_rules_out_its_like_and_nothing_else() -> None:
    """A backend without trees keeps its chains; a machine's fault rules out nothing."""
    land = draw(12)
    tree = next(s for s in land.settings if s.eagle_topk == 4)
    refused = known_of(land, [Observation(5, tree, "infeasible", cause="backend_unsupported")], {})
    like = [s.attention_backend == tree.attention_backend and (s.eagle_topk or 1) > 1 for s in land.settings]
    assert ((refused.runs == 0).all(0) == like).all()
    fault = known_of(land, [Observation(5, tree, "fault", cause="hang_serving")], {})
    assert (fault.runs > 0).all()


def test_pending_launches_are_not_proposed_again_and_spread_the_search() -> None:
    """With two at work the third is another setting."""
    land = draw(12)
    known = known_of(land, [], {})
    first = next_launch(known)
    assert first is not None
    pending = [Pending(land.settings[first.place].key, (1, 16, 64))]
    second = next_launch(known, pending)
    assert second is not None
    assert second.place != first.place


def test_the_grid_comes_in_the_order_it_is_written() -> None:
    """`grid` is the space as a person reads it, each legal setting once."""
    sampler = Sampler(SPACE, Goal(), "grid")
    drawn = []
    while (proposal := sampler.propose()) is not None:
        drawn.append(proposal.settings)
    known = legal(SPACE, NOTHING_KNOWN)
    assert drawn == [settings for settings in known.settings if settings.speculative]


def searched(sampler: Sampler, most: int) -> list[Observation]:
    """Everything observed by a sweep with one GPU set that ends when the sampler has nothing more."""
    seen: list[Observation] = []
    for number in range(most):
        proposal = None if number else PLAIN
        settings = proposal or getattr(sampler.propose(), "settings", None)
        if settings is None:
            break
        new = answer(number, settings)
        seen += new
        for observation in new:
            sampler.learn(observation)
        sampler.finish(number)
    return seen


def test_the_search_ends_once_nothing_is_likely_to_be_worth_a_launch_and_says_how_sure_it_is() -> None:
    """Well before all 50 settings were launched, with one of the best in hand and a stated probability."""
    sampler = Sampler(SPACE, Goal(), "spec", seed=1)
    seen = searched(sampler, 50)
    known = legal(SPACE, NOTHING_KNOWN)
    assert len({o.trial for o in seen}) < 25
    assert sampler.enough is not None
    assert "with probability 0." in sampler.why_nothing or "with probability 1." in sampler.why_nothing
    for level, concurrency in enumerate((1, 8)):
        best = max(answer(0, s)[level].value or 0.0 for s in [*known.settings, PLAIN])
        assert max(o.value or 0.0 for o in seen if o.concurrency == concurrency) > 0.98 * best


def test_with_several_gpu_sets_the_search_waits_for_what_is_measured_before_it_ends() -> None:
    """Three launches run at all times; each that ends is asked for the next, and the last to end may still change the answer."""
    sampler, running, launched = Sampler(SPACE, Goal(), "spec", seed=1), [(0, PLAIN)], 1
    waited = False
    while True:
        while len(running) < 3 and (proposal := sampler.propose()) is not None:
            running.append((launched, proposal.settings))
            launched += 1
        if not running:
            break
        waited |= len(running) < 3 and sampler.waits
        number, settings = running.pop(0)
        for observation in answer(number, settings):
            sampler.learn(observation)
        sampler.finish(number)
    assert waited
    assert launched < 25
    assert sampler.enough is not None
    assert not sampler.waits


def test_a_search_that_may_not_end_launches_everything() -> None:
    """`sampler.ends: false` leaves the end to the budget and the space."""
    small = SearchSpace(SPACE.domains | {"num_steps": Choice((1, 3)), "eagle_topk": Held(1)})
    sampler = Sampler(small, Goal(), "spec", seed=1, ends=False)
    seen = searched(sampler, 50)
    assert len({o.settings.key for o in seen}) == 1 + 4
    assert "every legal setting" in sampler.why_nothing


def test_where_speculation_cannot_pay_the_break_even_says_by_how_much() -> None:
    """A step that takes four times as long needs more than four tokens; the drafter gives two."""
    surrogate = Surrogate([PLAIN, *[CHAIN.replace(num_steps=s, num_draft_tokens=s + 1) for s in range(1, 8)]], (8,))
    slow = Observation(1, surrogate.candidates.settings[5], "measured", concurrency=8, value=400.0, acceptance_length=2.0, acceptance_histogram=(400, 300, 200, 60, 30, 10))  # fmt: skip
    plain = Observation(0, PLAIN, "measured", concurrency=8, value=800.0)
    slow = dataclasses.replace(slow, acceptance_length=1 + (300 + 400 + 180 + 120 + 50) / 1000)
    known = Known.of(surrogate, [plain, slow])
    found = break_even(known, surrogate.fit(known.points), 0)
    assert found is not None
    assert found.step_time_ratio > 1.3 * found.acceptance_length
    assert found.chance < 0.05


def test_what_the_model_expects_goes_to_the_journal_as_plain_values() -> None:
    """A concurrency each: the acceptance length that is needed, the one expected, and the chance that speculation pays."""
    sampler = Sampler(SPACE, Goal(), "spec", seed=1)
    searched(sampler, 8)
    expected = sampler.expects()
    assert json.loads(json.dumps(expected)) == expected
    assert [item["concurrency"] for item in expected["break_even"]] == [1, 8]
    assert expected["break_even"][0]["acceptance_length"] > expected["break_even"][0]["step_time_ratio"]
    assert expected["break_even"][0]["chance"] > 0.95
    assert Sampler(SPACE, Goal(), "tpe", seed=1).expects() == {}


def test_an_earlier_sweep_of_the_same_kind_is_data_and_another_is_a_hint() -> None:
    """With the same target and GPUs the search begins at its best; from elsewhere it only knows where to look."""
    earlier = [
        dataclasses.replace(o, trial=o.trial - 1_000_000) for o in searched(Sampler(SPACE, Goal(), "spec", seed=1), 12)
    ]
    surrogate = Surrogate(legal(SPACE, NOTHING_KNOWN).settings, (1, 8))
    own = answer(99, PLAIN)
    alike = Known.of(surrogate, [*own, *earlier])
    hints = Known.of(
        surrogate, [*own, *[dataclasses.replace(o, elsewhere="other", value=3 * (o.value or 1)) for o in earlier]]
    )
    assert alike.launches.sum() == hints.launches.sum() == len(own)
    found = [next_launch(known) for known in (alike, hints, Known.of(surrogate, own))]
    first, hinted, fresh = [
        answer(0, surrogate.candidates.settings[one.place])[0].value or 0.0 for one in found if one is not None
    ]
    assert first == max(o.value or 0.0 for o in earlier if o.concurrency == 1)
    assert hinted > 1.1 * fresh


def test_an_earlier_sweep_that_saw_enough_leaves_only_its_best_to_be_launched() -> None:
    """Its rows are no launches of this sweep: a winner is measured here, beside the plain server of this day."""
    before = Sampler(SPACE, Goal(), "spec", seed=1)
    earlier = searched(before, 50)
    assert before.enough is not None
    sampler = Sampler(SPACE, Goal(), "spec", seed=2)
    for trial in sorted({o.trial for o in earlier}):
        for o in earlier:
            if o.trial == trial:
                sampler.learn(dataclasses.replace(o, trial=trial - 1_000_000))
        sampler.finish(trial - 1_000_000, here=False)
    seen = searched(sampler, 50)
    best = max((o for o in earlier if o.concurrency == 8), key=lambda o: o.value or 0.0)
    assert best.settings.key in {o.settings.key for o in seen}
    assert len({o.settings.key for o in seen}) == 1 + LEAST_MEASURED
    assert sampler.enough is not None


def test_a_concurrency_that_counts_more_is_searched_for_more() -> None:
    """Weights of the goal scale what each concurrency's gain is worth."""
    seen = searched(Sampler(SPACE, Goal(), "spec", seed=1), 4)
    surrogate = Surrogate(legal(SPACE, NOTHING_KNOWN).settings, (1, 8))
    only = next_launch(Known.of(surrogate, seen, weights=(1.0, 0.0)))
    assert only is not None
    assert only.concurrencies == (1,)
