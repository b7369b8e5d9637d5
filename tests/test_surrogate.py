"""Surrogate: what one measured setting says of the others; acceptance by arithmetic, step time by doubt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.landscapes import CONCURRENCIES, SHAPES, Landscape, draw
from sweeps.observation import Observation
from sweeps.settings import Settings
from sweeps.surrogate import Surrogate
from sweeps.surrogate.acceptance import Acceptance, Seen, library_for
from sweeps.surrogate.candidates import Candidates, shape_of
from sweeps.surrogate.points import NoAcceptanceError, Point, noise_of, points_of, thinned

LIBRARY = library_for(SHAPES)
PLAIN = Settings(attention_backend="fa3")
CHAIN = Settings("EAGLE3", "own", 3, 1, 4, attention_backend="fa3")


def length_of(histogram: tuple[int, ...]) -> float:
    return 1 + sum(j * count for j, count in enumerate(histogram)) / sum(histogram)


histograms = st.lists(st.integers(1, 400), min_size=2, max_size=8).map(tuple)


@given(histograms)
@settings(max_examples=12, deadline=None)
def test_a_deeper_chain_is_never_expected_to_accept_less(histogram: tuple[int, ...]) -> None:
    """Whatever was seen, expected lengths of chains grow with their depth by less and less than one token."""
    depth = len(histogram) - 1
    seen = Seen((depth, 1, depth + 1), 0, length_of(histogram), histogram)
    mean = np.exp(Acceptance(LIBRARY, [seen]).mean(0))
    chains = mean[[LIBRARY.place[s, 1, s + 1] for s in range(1, depth + 1)]]
    assert (np.diff(chains) > -0.02).all()
    assert (np.diff(chains) < 1.02).all()
    assert chains[0] >= 1


@given(histograms.filter(lambda h: sum(h) > 100))
@settings(max_examples=12, deadline=None)
def test_a_chains_histogram_measures_every_shorter_chain(histogram: tuple[int, ...]) -> None:
    """The length of a chain of j is 1 + Σ min(accepted, j): within a few per cent, and more surely than before."""
    depth = len(histogram) - 1
    seen = Seen((depth, 1, depth + 1), 0, length_of(histogram), histogram)
    before, after = Acceptance(LIBRARY, []), Acceptance(LIBRARY, [seen])
    for shorter in range(1, depth + 1):
        place = LIBRARY.place[shorter, 1, shorter + 1]
        counted = 1 + sum(min(j, shorter) * count for j, count in enumerate(histogram)) / sum(histogram)
        assert np.exp(after.mean(0)[place]) == pytest.approx(counted, rel=0.08)
        assert after.variance(0)[place] < before.variance(0)[place] / 4


def test_in_the_prior_a_tree_accepts_no_less_than_the_chain_in_it() -> None:
    """Every drawn drafter gains by more branches, by more tokens and by more depth."""
    lengths, place = LIBRARY.log_length, LIBRARY.place
    for steps, topk, tokens in SHAPES:
        if topk > 1:
            chain = lengths[:, place[steps, 1, steps + 1]]
            assert (lengths[:, place[steps, topk, tokens]] >= chain - 0.12).all() or tokens < 2 * steps
        if (steps, topk, 2 * tokens) in place:
            assert (lengths[:, place[steps, topk, 2 * tokens]] >= lengths[:, place[steps, topk, tokens]] - 1e-6).all()
        if topk == 1 and steps > 1:
            assert (lengths[:, place[steps, 1, steps + 1]] >= lengths[:, place[steps - 1, 1, steps]]).all()


def test_acceptance_is_shared_by_concurrencies_and_not_by_drafters() -> None:
    """What concurrency 1 showed holds at 64 with a little more doubt; another drafter is as unknown as before."""
    seen = [Seen((3, 1, 4), 0, 2.5, (20, 25, 30, 60))]
    here, chain = Acceptance(LIBRARY, seen), LIBRARY.place[3, 1, 4]
    assert here.mean(1)[chain] == pytest.approx(here.mean(0)[chain], abs=0.02)
    assert here.variance(0)[chain] < here.variance(1)[chain] < Acceptance(LIBRARY, []).variance(1)[chain] / 50


def test_what_is_being_measured_narrows_the_doubt_and_leaves_the_mean() -> None:
    """A pending launch is as good as measured for where to look next, and says nothing of what it will show."""
    shape = (5, 4, 16)
    without, waiting = Acceptance(LIBRARY, []), Acceptance(LIBRARY, [], [(shape, 0)])
    assert np.allclose(without.mean(0), waiting.mean(0))
    assert waiting.variance(0)[LIBRARY.place[shape]] < without.variance(0)[LIBRARY.place[shape]] / 10


def observed(land: Landscape, places: list[int], concurrencies: tuple[int, ...] = CONCURRENCIES) -> list[Observation]:
    chance = np.random.default_rng(3)
    launches = [land.launch(n, land.settings[place], concurrencies, 120.0, chance) for n, place in enumerate(places)]
    return [o for launch in launches for o in launch.observations]


def test_a_few_launches_tell_the_speed_of_hundreds_of_settings() -> None:
    """Twelve of 813 settings: half of all predictions are within 8 %, and the stated doubt is near the error."""
    land = draw(12)
    model = Surrogate(land.settings, (4,))
    chance = np.random.default_rng(5)
    places = [0, *chance.choice(len(land.settings), 11, replace=False)]
    points = points_of(observed(land, places, (4,)), model.candidates, model.levels)
    posterior = model.fit(points)
    able = land.speeds(4) > 0
    error = (posterior.mean(0) - np.log(np.maximum(land.speeds(4), 1)))[able]
    doubt = np.sqrt(posterior.variance(0))[able]
    assert np.median(np.abs(error)) < 0.08
    assert 0.25 < np.sqrt(np.mean((error / doubt) ** 2)) < 2.5


def test_covariance_agrees_with_variance_and_is_positive() -> None:
    """The diagonal of the one is the other, at each concurrency."""
    land = draw(3)
    model = Surrogate(land.settings, (1, 16))
    posterior = model.fit(points_of(observed(land, [0, 40, 300], (1, 16)), model.candidates, model.levels))
    some = np.arange(0, len(land.settings), 29)
    for level in (0, 1):
        covariance = posterior.covariance(some, some, level)
        assert np.allclose(np.diag(covariance), posterior.variance(level)[some], rtol=1e-3, atol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > -1e-8


def test_relaunches_say_how_noisy_a_launch_is() -> None:
    """Four launches that differ by a quarter raise the noise above its usual two per cent; four alike lower it."""
    candidates = Candidates([PLAIN, CHAIN])

    def points(values: list[float]) -> list[Observation]:
        return [Observation(n, PLAIN, "measured", concurrency=1, value=v) for n, v in enumerate(values)]

    loud, quiet = (
        noise_of(points_of(points(values), candidates, {1: 0})).sd
        for values in ([100.0, 130.0, 85.0, 140.0], [100.0, 100.2, 99.9, 100.1])
    )
    assert loud > 0.1
    assert quiet < 0.02


def test_a_short_measurement_is_believed_less() -> None:
    """Before any relaunch: a quarter of the seconds, twice the noise; two minutes and more count alike."""
    long, short, seconds = (noise_of([Point(0, 0, 0, 100.0, 1.0, measure_s=s)]).sd for s in (240.0, 30.0, 5.0))
    assert long == pytest.approx(0.02)
    assert short == pytest.approx(0.04)
    assert seconds == pytest.approx(0.08)


def test_points_whose_acceptance_is_missing_or_contradicts_itself_are_refused() -> None:
    """Without it time and acceptance cannot be told apart; a length that is not its histogram's is a broken counter."""
    candidates = Candidates([PLAIN, CHAIN])
    bare = Observation(1, CHAIN, "measured", concurrency=1, value=100.0)
    with pytest.raises(NoAcceptanceError, match="without acceptance length"):
        points_of([bare], candidates, {1: 0})
    broken = Observation(1, CHAIN, "measured", concurrency=1, value=1.0, acceptance_length=3.5, acceptance_histogram=(10, 10, 10, 10))  # fmt: skip
    with pytest.raises(NoAcceptanceError, match=r"3\.50 is not its histogram's, 2\.50"):
        points_of([broken], candidates, {1: 0})


def test_a_drafter_without_a_depth_counts_as_a_chain_of_its_tokens() -> None:
    """NGRAM verifies tokens and has no steps of its own."""
    assert shape_of(Settings("NGRAM", num_draft_tokens=8)) == (7, 1, 8)
    assert shape_of(Settings("EAGLE3", "own", 5, 4, 16)) == (5, 4, 16)
    assert shape_of(PLAIN) == (0, 1, 1)


def test_a_long_run_is_fitted_on_a_part_that_holds_its_best_and_its_newest() -> None:
    """A thousand launches at three concurrencies come down to 240 points, the plain server and the best among them."""
    points = [
        Point(n, level, n, 100.0 + (n * 37) % 1000, 1.0 if n == 0 else 2.0) for n in range(1000) for level in range(3)
    ]
    kept = thinned(points)
    assert len(kept) == 240
    for level in range(3):
        here = [point for point in kept if point.level == level]
        assert {0, 999} <= {point.trial for point in here}
        assert max(p.value for p in here) == max(p.value for p in points)
    assert thinned(kept) == kept
