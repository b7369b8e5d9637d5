"""Sampler: every proposal is legal, settled and new; crashes teach, infrastructure does not."""

import pytest

from sweeps.coordinates import Coordinates
from sweeps.facts import Facts
from sweeps.legal import legal
from sweeps.observation import Goal, Observation
from sweeps.rules import problems, settle
from sweeps.sampler import Sampler
from sweeps.settings import Settings
from sweeps.space import Choice, Domain, Held, Range, SearchSpace
from tests.fakes.plans import CHAIN

SPACE = SearchSpace(
    {
        "algorithm": Choice(("none", "EAGLE3")),
        "drafter": Choice(("own", "public")),
        "num_steps": Range(1, 3),
        "eagle_topk": Choice((1, 2, 4)),
        "num_draft_tokens": Range(2, 8),
        "max_running_requests": Held(32),
    }
)
SMALL = SearchSpace({"algorithm": Held("EAGLE3"), "drafter": Held("own"), "num_steps": Choice((2, 3)), "eagle_topk": Held(1), "num_draft_tokens": Held(4)})  # fmt: skip


def measured(trial: int, settings: Settings, value: float) -> Observation:
    return Observation(trial, settings, "measured", concurrency=1, value=value)


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_every_proposal_is_legal_settled_and_new_until_the_space_is_exhausted(name: str) -> None:
    """A grid with many twins yields each distinct legal launch once, then nothing."""
    space = SearchSpace(SPACE.domains | {"num_draft_tokens": Range(3, 6)})
    sampler = Sampler(space, Goal(), name, seed=3)
    drawn: list[Settings] = []
    while (proposal := sampler.propose()) is not None:
        assert settle(proposal.settings).settings == proposal.settings
        assert problems(proposal.settings) == []
        drawn.append(proposal.settings)
        sampler.learn(measured(len(drawn), proposal.settings, 100.0))
        sampler.finish(len(drawn))
    expected = {s.key for s in (settle(g).settings for g in space.grid()) if s.speculative and not problems(s)}
    assert len(drawn) == len(expected)
    assert {s.key for s in drawn} == expected


def test_two_distinct_settings_and_a_large_budget_give_two_launches() -> None:
    """steps 2 and 3 are all there is: the third proposal is None."""
    sampler = Sampler(SMALL, Goal(), seed=1)
    assert {sampler.propose().settings.num_steps for _ in range(2)} == {2, 3}  # type: ignore[union-attr]
    assert sampler.propose() is None


@pytest.mark.parametrize("name", ["spec", "tpe", "grid"])
def test_values_of_several_words_are_proposed_one_after_the_other(name: str) -> None:
    """As any other choice, and read back from what an earlier run held."""
    space = SearchSpace(SMALL.domains | {"num_steps": Held(3), "server_args.cuda_graph_bs_decode": Choice(((1, 2), (1, 2, 4)))})  # fmt: skip
    sampler = Sampler(space, Goal(), name, seed=1)
    sampler.learn(measured(-1, CHAIN.replace(server_args=(("cuda_graph_bs_decode", (1, 2)),)), 100.0))
    sampler.finish(-1, here=False)
    sampler.learn(measured(-2, CHAIN.replace(server_args=(("cuda_graph_bs_decode", 8),)), 100.0))
    sampler.finish(-2, here=False)
    found = [dict(sampler.propose().settings.server_args)["cuda_graph_bs_decode"] for _ in range(2)]  # type: ignore[union-attr]
    assert set(found) == {(1, 2), (1, 2, 4)}
    assert sampler.propose() is None


def test_what_an_earlier_run_passed_through_has_no_coordinates_in_a_range() -> None:
    """Text and several words are nowhere between two numbers, and no number either."""
    coordinates = Coordinates(SearchSpace(SMALL.domains | {"server_args.x": Range(1, 9)}), Facts())
    for value in ("auto", (1, 2), 10):
        assert coordinates.encode(SMALL.settings({}).replace(server_args=(("x", value),))) is None


def test_what_was_begun_before_a_resume_is_not_proposed_again() -> None:
    """seen() settings never come back."""
    sampler = Sampler(SMALL, Goal(), seed=1)
    sampler.seen(settle(SMALL.settings({"num_steps": 2})).settings)
    proposal = sampler.propose()
    assert proposal is not None
    assert proposal.settings.num_steps == 3


def crashes_after(outcome: str, seed: int) -> int:
    """How many of 20 proposals fall on topk 4 after four of it ended with `outcome`."""
    space = SearchSpace(SPACE.domains | {"eagle_topk": Choice((1, 4)), "num_steps": Range(1, 8), "num_draft_tokens": Range(2, 64)})  # fmt: skip
    sampler = Sampler(space, Goal(), seed=seed)
    crashed = 0
    for number in range(40):
        proposal = sampler.propose()
        assert proposal is not None
        bad = proposal.settings.eagle_topk == 4
        crashed += bad and number >= 20
        if bad:
            sampler.learn(Observation(number, proposal.settings, outcome))  # type: ignore[arg-type]
        else:
            sampler.learn(measured(number, proposal.settings, 100.0 + (proposal.settings.num_steps or 0)))
        sampler.finish(number)
    return crashed


def test_settings_that_cannot_run_steer_the_sampler_away() -> None:
    """A region that always crashes is proposed less than by chance once told infeasible."""
    told = sum(crashes_after("infeasible", seed) for seed in range(2))
    untold = sum(crashes_after("fault", seed) for seed in range(2))
    assert told < untold


def test_a_resumed_sampler_takes_up_what_was_measured() -> None:
    """Rebuilt from observations alone, it proposes nothing twice and prefers what was good."""
    first = Sampler(SPACE, Goal(), seed=1)
    history = []
    for number in range(12):
        proposal = first.propose()
        assert proposal is not None
        history.append(measured(number, proposal.settings, 50.0 * (proposal.settings.num_steps or 1)))
    second = Sampler(SPACE, Goal(), seed=2)
    for seen in history:
        second.learn(seen)
        second.finish(seen.trial)
    keys = {seen.settings.key for seen in history}
    following = [second.propose() for _ in range(10)]
    assert not keys & {p.settings.key for p in following if p}


def test_results_of_another_run_teach_but_may_be_measured_here() -> None:
    """A warm start does not keep its settings from being launched in this run."""
    sampler = Sampler(SMALL, Goal(), seed=1)
    known = settle(SMALL.settings({"num_steps": 3})).settings
    sampler.learn(measured(-1, known, 100.0))
    sampler.finish(-1, here=False)
    assert {sampler.propose().settings.num_steps for _ in range(2)} == {2, 3}  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -3.0, None])
def test_a_value_that_is_no_speed_is_never_told(value: float | None) -> None:
    """NaN, infinity, zero and nothing do not become the best trial."""
    sampler = Sampler(SMALL, Goal(), seed=1)
    proposal = sampler.propose()
    assert proposal is not None
    sampler.learn(Observation(0, proposal.settings, "measured", concurrency=1, value=value))
    sampler.finish(0)
    assert sampler.propose() is not None


COMMON_GRID = SearchSpace(
    SMALL.domains
    | {
        "num_steps": Range(1, 8),
        "eagle_topk": Choice((1, 2, 4, 8)),
        "num_draft_tokens": Choice((2, 4, 8, 16, 32, 64)),
    }
)


def every_proposal(sampler: Sampler) -> list[Settings]:
    drawn = []
    while (proposal := sampler.propose()) is not None:
        drawn.append(proposal.settings)
    return drawn


def test_a_budget_that_reaches_for_everything_legal_gets_everything_legal() -> None:
    """79 launches for the common grid of 192 points: each legal setting once, in an order of the seed's."""
    orders = [every_proposal(Sampler(COMMON_GRID, Goal(), seed=seed, launches=79)) for seed in (1, 1, 2)]
    assert [len({settings.key for settings in drawn}) for drawn in orders] == [79] * 3
    assert orders[0] == orders[1] != orders[2]
    assert not any(problems(settings) for settings in orders[0])


def test_what_is_known_of_the_machine_keeps_its_illegal_settings_from_being_proposed() -> None:
    """flashinfer drafts no trees for an MLA target: only its chains are proposed."""
    space = SearchSpace(SPACE.domains | {"attention_backend": Choice(("triton", "flashinfer"))})
    drawn = every_proposal(Sampler(space, Goal(), seed=1, facts=Facts(attention="mla")))
    assert {s.eagle_topk for s in drawn if s.attention_backend == "triton"} == {1, 2, 4}
    assert {s.eagle_topk for s in drawn if s.attention_backend == "flashinfer"} == {1}


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": Choice(("NEXTN", "EAGLE3"))},
        {"attention_backend": Choice(("trtllm_mha", "fa3")), "page_size": Choice((1, 16))},
        {"algorithm": Choice(("EAGLE3", "NGRAM", "DFLASH"))},
        {"server_args.enable_mixed_chunk": Choice((True, False))},
        {"server_args.cuda_graph_max_bs": Choice((16, 32))},
        {"num_draft_tokens": Choice((7, 8)), "num_steps": Range(1, 2)},
    ],
)
def test_settings_that_are_settled_away_from_the_space_are_proposed_and_learned_from(more: dict[str, Domain]) -> None:
    """A value that the server changes is none of the space's own; its coordinates are those that were asked for."""
    space = SearchSpace(SPACE.domains | {"num_steps": Range(2, 3), "eagle_topk": Choice((1, 2))} | more)
    sampler, again = (Sampler(space, Goal(), seed=seed) for seed in (1, 2))
    drawn = every_proposal(sampler)
    assert {s.key for s in drawn} == {s.key for s in legal(space).settings if s.speculative}
    for number, settings in enumerate(drawn):
        again.learn(measured(number, settings, 100.0))
        again.finish(number)
    assert len(again._study.trials) == len(drawn)
    assert again.propose() is None


def test_a_space_too_large_to_count_is_drawn_from_at_random() -> None:
    """Legal and settled all the same."""
    space = SearchSpace(SPACE.domains | {"num_steps": Range(1, 64), "eagle_topk": Range(1, 64), "num_draft_tokens": Range(2, 512)})  # fmt: skip
    sampler = Sampler(space, Goal(), "random", seed=1, launches=10)
    for _ in range(10):
        proposal = sampler.propose()
        assert proposal is not None
        assert problems(proposal.settings) == []


def test_one_failure_speaks_for_all_settings_with_the_same_kernels() -> None:
    """A backend that says it drafts no trees is asked for no further tree; its chains and the other backend go on."""
    space = SearchSpace(
        SPACE.domains | {"drafter": Held("own"), "num_draft_tokens": Range(3, 5), "attention_backend": Choice(("triton", "flashinfer"))}
    )  # fmt: skip
    sampler, trees, others = Sampler(space, Goal(), seed=1), 0, set()
    for number in range(200):
        proposal = sampler.propose()
        if proposal is None:
            break
        settings = proposal.settings
        tree = (settings.eagle_topk or 1) > 1 and settings.attention_backend == "flashinfer"
        trees += tree
        others |= set() if tree else {(settings.attention_backend, settings.eagle_topk)}
        outcome = Observation(number, settings, "infeasible", cause="backend_unsupported") if tree else measured(number, settings, 100.0)  # fmt: skip
        sampler.learn(outcome)
        sampler.finish(number)
    assert trees == 1
    assert others == {("flashinfer", 1), ("triton", 1), ("triton", 2), ("triton", 4)}


def test_a_backend_that_cannot_run_the_plain_server_is_asked_for_nothing_more() -> None:
    """What plain decoding cannot do, no speculation can."""
    space = SearchSpace(SPACE.domains | {"attention_backend": Choice(("triton", "fa3"))})
    sampler = Sampler(space, Goal(), seed=1)
    plain = settle(space.settings({"algorithm": "none", "attention_backend": "fa3"})).settings
    sampler.learn(Observation(0, plain, "infeasible", cause="backend_unsupported"))
    sampler.finish(0)
    assert {settings.attention_backend for settings in every_proposal(sampler)} == {"triton"}
