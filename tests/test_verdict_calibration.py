"""The verdict's intervals, on simulated sweeps whose truth is known: the short form of benchmarks/verdict.py, seeds fixed."""

from __future__ import annotations

import pytest

from benchmarks.verdict import QUIET, STALLS, WIDE, Noise, Scenario, sweep, tally_of

SWEEPS = 40


@pytest.mark.parametrize("noise", [WIDE, STALLS], ids=lambda noise: noise.name)
def test_nothing_that_gains_nothing_is_called_better(noise: Noise) -> None:
    """The best of sixteen settings is exactly as fast as the plain server: `better` in one sweep of twenty at most, and
    the truth is in nine of ten intervals at least (forty sweeps tell no better; the long form does)."""
    tally = tally_of(Scenario("null", noise, best=0.0), range(SWEEPS))
    assert tally.sweeps_with_false_better <= 0.05 * SWEEPS
    assert tally.covered >= 0.9 * tally.answers


@pytest.mark.parametrize("noise", [QUIET, WIDE], ids=lambda noise: noise.name)
def test_gains_are_found_and_little_is_lost(noise: Noise) -> None:
    """Doubt is no excuse: six in seven real gains are called better at least, and what is advised is near the best there was."""
    tally = tally_of(Scenario("gains", noise), range(SWEEPS // 2))
    assert tally.found >= 0.85 * tally.gains
    assert sum(tally.regrets) / len(tally.regrets) <= 0.06
    assert tally.covered >= 0.9 * tally.answers


def test_more_relaunches_narrow_the_intervals() -> None:
    """The same ten sweeps with two and with ten launches kept back for the race."""
    few = tally_of(Scenario("few", WIDE, kept_back=2), range(10))
    many = tally_of(Scenario("many", WIDE, kept_back=10), range(10))
    assert sum(many.halves) < 0.8 * sum(few.halves)


def test_a_race_stays_within_what_was_kept_back() -> None:
    """Whatever is open, no more launches are drawn than there is room for."""
    for seed in range(5):
        machine = sweep(Scenario("null", WIDE, best=0.0, kept_back=3), seed)
        assert sum(machine.launched.values()) - len(machine.launched) <= 3
