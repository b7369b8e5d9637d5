"""The search on made-up landscapes: the short form of benchmarks/search.py, on fixed seeds, for quality and not for time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.landscapes import ARCHETYPES, CONCURRENCIES, draw
from benchmarks.search import reached, run


@pytest.fixture(scope="module")
def searches() -> list[dict]:
    """Twenty seeds of the tuning range, ten launches each."""
    return [run("spec", draw(seed), (CONCURRENCIES[seed % 4],), seed + 1000, budget=10) for seed in range(1000, 1020)]


def test_ten_launches_reach_within_five_per_cent_of_the_best(searches: list[dict]) -> None:
    """In 17 of 20 landscapes at least: the gate that a change of the search must pass."""
    assert np.mean([search["rows"][9][0] <= 0.05 for search in searches]) >= 0.85


def test_the_short_form_sees_every_kind_of_landscape(searches: list[dict]) -> None:
    """Dense, experts, weak drafters and cliffs are among the twenty."""
    assert {search["archetype"] for search in searches} == set(ARCHETYPES)


def test_cost_is_counted_for_every_launch_and_grows(searches: list[dict]) -> None:
    """GPU-minutes include failed launches."""
    for search in searches:
        minutes = [row[2] for row in search["rows"]]
        assert minutes == sorted(minutes)
        assert minutes[0] > 0


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([0.5, 0.01, 0.01], 2), ([0.01, 0.3, 0.01], 3), ([0.0], 1), ([0.01, 0.3], None), ([], None)],
)
def test_reached_is_the_first_launch_from_which_the_loss_stays_small(losses: list[float], expected: int | None) -> None:
    """A lucky guess that is lost again does not count."""
    assert reached([[loss, loss, 1.0] for loss in losses], 0.02) == expected


def test_landscapes_are_the_same_for_the_same_seed_and_hide_nothing_in_their_settings() -> None:
    """Truth is drawn from the seed alone; the plain servers come first."""
    one, other = draw(7), draw(7)
    assert np.array_equal(one.speeds(4), other.speeds(4))
    assert not one.settings[0].speculative
    assert one.regret(one.settings[int(one.speeds(4).argmax())], 4) == 0.0
