"""Families: what was learned of step times elsewhere, mixed by how well each explains what was measured here."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.landscapes import CONCURRENCIES, draw
from benchmarks.learn_families import fit, learned
from sweeps.surrogate import Surrogate
from sweeps.surrogate.families import LEARNED, UNKNOWN, Weights, families
from sweeps.surrogate.points import points_of
from sweeps.surrogate.terms import SHARED


def test_the_data_file_says_where_it_comes_from_and_holds_every_shared_term() -> None:
    """Its covariances are positive, and its chances sum to 1 with the family that nothing was learned of."""
    read = json.loads(LEARNED.read_text())
    assert "learn_families.py" in read["provenance"]
    assert read["shared"] == list(SHARED)
    assert sum(family.share for family in families()) == pytest.approx(1)
    for family in families():
        for weights in family.learned.values():
            assert len(weights.mean) == len(SHARED)
            assert np.linalg.eigvalsh(weights.covariance).min() > 0


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=4), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_mixture_has_the_mean_and_the_spread_of_all_its_parts(shares: list[float], seed: int) -> None:
    """Drawn from the parts by their chances, weights have the mixture's first two moments."""
    chance = np.random.default_rng(seed)
    chances = np.array(shares) / sum(shares)
    parts = [Weights(chance.normal(0, 2, 3), np.diag(chance.uniform(0.1, 1, 3)), {"walk": float(n)}) for n in range(len(shares))]  # fmt: skip
    mixed = Weights.mixed(list(zip(chances.tolist(), parts, strict=True)))
    second = sum(c * (p.covariance + np.outer(p.mean, p.mean)) for c, p in zip(chances, parts, strict=True))
    assert mixed.mean == pytest.approx(sum(c * p.mean for c, p in zip(chances, parts, strict=True)))
    assert mixed.covariance + np.outer(mixed.mean, mixed.mean) == pytest.approx(second)
    assert mixed.variance["walk"] == pytest.approx(sum(n * c for n, c in enumerate(chances)))


def test_between_two_concurrencies_a_family_lies_between_what_it_was_there() -> None:
    """Half-way on the logarithm; beyond the last one it stays."""
    family = families()[0]
    assert family.at(2).mean == pytest.approx((family.at(1).mean + family.at(4).mean) / 2)
    assert family.at(500) == family.at(64)
    assert (UNKNOWN.at(16).mean == 0).all()


def test_a_few_launches_tell_which_family_a_machine_is_of() -> None:
    """A machine whose verify steps wake experts and one that computes all of them end with different chances."""
    told = {}
    for seed in (12, 3, 14, 30):
        land = draw(seed)
        model = Surrogate(land.settings, (4,))
        chance = np.random.default_rng(5)
        places = [0, *chance.choice(len(land.settings), 9, replace=False)]
        seen = [o for n, p in enumerate(places) for o in land.launch(n, land.settings[p], (4,), 120.0, chance).observations]  # fmt: skip
        times = model.fit(points_of(seen, model.candidates, model.levels)).times
        chances = dict(zip((f.name for f in model.basis.families), times.chances, strict=True))
        told.setdefault(land.family, []).append(chances[land.family])
    assert len(told) > 1
    assert np.mean([chance for chances in told.values() for chance in chances]) > 0.5


def test_what_is_learned_from_landscapes_of_a_family_explains_another_of_it_better() -> None:
    """Three landscapes teach where the weights of a fourth lie: nearer than the means by hand."""
    lands = [draw(seed, "moe_tp8") for seed in range(300, 304)]
    known = learned([found for land in lands[:3] if (found := fit(land, CONCURRENCIES[1])) is not None])
    other = fit(lands[3], CONCURRENCIES[1])
    assert other is not None

    def explained(shared: np.ndarray) -> float:
        weights = np.zeros(len(other.names))
        weights[other.shared] = shared
        return float(weights @ other.products - 0.5 * weights @ other.squares @ weights)

    assert explained(np.array(known["mean"])) > explained(np.zeros(len(SHARED)))
