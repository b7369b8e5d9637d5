"""Sampler: every proposal is legal, settled and new; crashes teach, infrastructure does not."""

import pytest

from sweeps.observation import Goal, Observation
from sweeps.rules import problems, settle
from sweeps.sampler import Sampler
from sweeps.settings import Settings
from sweeps.space import Choice, Held, Range, SearchSpace

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
    sampler = Sampler(SPACE, Goal(), name, seed=3)
    drawn: list[Settings] = []
    while (proposal := sampler.propose()) is not None:
        assert settle(proposal.settings).settings == proposal.settings
        assert problems(proposal.settings) == []
        drawn.append(proposal.settings)
        sampler.learn(measured(len(drawn), proposal.settings, 100.0))
        sampler.finish(len(drawn))
    expected = {s.key for s in (settle(g).settings for g in SPACE.grid()) if s.speculative and not problems(s)}
    assert len(drawn) == len(expected)
    assert {s.key for s in drawn} == expected


def test_two_distinct_settings_and_a_large_budget_give_two_launches() -> None:
    """steps 2 and 3 are all there is: the third proposal is None."""
    sampler = Sampler(SMALL, Goal(), seed=1)
    assert {sampler.propose().settings.num_steps for _ in range(2)} == {2, 3}  # type: ignore[union-attr]
    assert sampler.propose() is None


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
    told = sum(crashes_after("infeasible", seed) for seed in range(4))
    untold = sum(crashes_after("fault", seed) for seed in range(4))
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
