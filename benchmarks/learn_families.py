"""Learn families: what step times of made-up landscapes teach of the weights of the surrogate's terms.

    python benchmarks/learn_families.py [seeds=300:700] [without=ARCHETYPE,…] [out=sweeps/surrogate/families.json]

Of each landscape every setting's true step time over the plain server's is fitted by the surrogate's terms, at each
concurrency; a family's mean and covariance of weights follow by expectation maximization (a Gaussian prior over linear
weights).  Only seeds of the tuning range; `without` leaves whole archetypes out, so that they can be judged with what
others taught.  Nothing here was measured on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.landscapes import CONCURRENCIES, Landscape, draw  # noqa: E402
from sweeps.surrogate.candidates import Candidates, Floats  # noqa: E402
from sweeps.surrogate.families import LEARNED  # noqa: E402
from sweeps.surrogate.terms import SHARED, terms_of  # noqa: E402

ERROR = 0.012
"""Relative sd of what the terms leave unexplained of a true step time."""
ROUNDS = 6
PRIOR_WORTH, PRIOR_VARIANCE = 3.0, 0.3
"""Landscapes that the belief in a covariance is worth before any was seen, and the variance it has."""
LEAST_LANDSCAPES = 6
"""At one concurrency, to learn from."""


@dataclass(frozen=True)
class Fit:
    """Normal equations of one landscape at one concurrency, in units of the sds by hand."""

    names: list[str]
    squares: Floats
    products: Floats

    @property
    def shared(self) -> list[int]:
        return [self.names.index(name) for name in SHARED]


def fit(land: Landscape, concurrency: int) -> Fit | None:
    """None where the first plain server cannot run."""
    speeds = land.speeds(concurrency)
    able = speeds > 0
    if not able[0]:
        return None
    lengths = np.array([land.length(settings) for settings in land.settings])
    ratio = (lengths / np.maximum(speeds, 1e-9)) * speeds[0]
    terms = terms_of(Candidates(land.settings), concurrency, lengths - 1)
    columns = np.stack([term.column for term in terms], axis=1)
    scaled = (columns * np.array([term.sd for term in terms]))[able] / (ERROR * ratio[able])[:, None]
    left = (ratio - columns @ np.array([term.mean for term in terms]))[able] / (ERROR * ratio[able])
    return Fit([term.name for term in terms], scaled.T @ scaled, scaled.T @ left)


def learned(fits: Sequence[Fit]) -> dict[str, Any]:
    """Mean and covariance of the shared weights, variances of the others by name."""
    size = len(SHARED)
    mean, covariance = np.zeros(size), np.eye(size)
    variance = {name: 1.0 for name in dict.fromkeys(name for one in fits for name in one.names) if name not in SHARED}
    for _ in range(ROUNDS):
        means, spreads = [], []
        squares: dict[str, list[float]] = {name: [] for name in variance}
        for one in fits:
            weight, doubt = _posterior(one, mean, covariance, variance)
            means.append(weight[one.shared])
            spreads.append(doubt[np.ix_(one.shared, one.shared)])
            for place, name in enumerate(one.names):
                if name in squares:
                    squares[name].append(weight[place] ** 2 + doubt[place, place])
        mean = np.mean(means, axis=0)
        off = np.array(means) - mean
        total = off.T @ off + np.sum(spreads, axis=0) + PRIOR_WORTH * PRIOR_VARIANCE * np.eye(size)
        covariance = total / (len(fits) + PRIOR_WORTH)
        variance = {name: float(np.mean(values)) for name, values in squares.items()}
    return {
        "landscapes": len(fits), "mean": np.round(mean, 3).tolist(), "covariance": np.round(covariance, 4).tolist(),
        "variance": {name: round(value, 4) for name, value in variance.items()},
    }  # fmt: skip


def _posterior(one: Fit, mean: Floats, covariance: Floats, variance: dict[str, float]) -> tuple[Floats, Floats]:
    """Of all weights: mean and covariance."""
    before, centre = np.diag([variance.get(name, 1.0) for name in one.names]), np.zeros(len(one.names))
    before[np.ix_(one.shared, one.shared)] = covariance
    centre[one.shared] = mean
    precision = np.linalg.inv(before + 1e-9 * np.eye(len(before)))
    doubt = np.linalg.inv(one.squares + precision)
    return doubt @ (one.products + precision @ centre), doubt


def main(words: Sequence[str]) -> None:
    given = {"seeds": "300:700", "without": "", "out": str(LEARNED)} | dict(word.split("=", 1) for word in words)
    low, high = map(int, given["seeds"].split(":"))
    without = [name for name in given["without"].split(",") if name]
    fits: dict[str, dict[int, list[Fit]]] = {}
    counts: dict[str, int] = {}
    for seed in range(low, high):
        land = draw(seed)
        if land.archetype in without:
            continue
        counts[land.family] = counts.get(land.family, 0) + 1
        for concurrency in CONCURRENCIES:
            if (found := fit(land, concurrency)) is not None:
                fits.setdefault(land.family, {}).setdefault(concurrency, []).append(found)
    families = {
        name: {
            "share": round(counts[name] / sum(counts.values()), 3),
            "at": {str(c): learned(here) for c, here in at.items() if len(here) >= LEAST_LANDSCAPES},
        }
        for name, at in sorted(fits.items())
        if any(len(here) >= LEAST_LANDSCAPES for here in at.values())
    }
    left_out = f" without={','.join(without)}" if without else ""
    provenance = f"benchmarks/learn_families.py seeds={given['seeds']}{left_out}: made-up landscapes of the tuning range, no GPU was measured"
    Path(given["out"]).write_text(_lines({"provenance": provenance, "shared": list(SHARED), "families": families}))


def _lines(value: dict[str, Any], depth: int = 0) -> str:
    """JSON with a line each for what has no names in it."""
    inside = [
        f'{" " * (depth + 1)}"{name}": {_lines(item, depth + 1) if isinstance(item, dict) else json.dumps(item)}'
        for name, item in value.items()
    ]
    return "{\n" + ",\n".join(inside) + "\n" + " " * depth + "}" + ("\n" if depth == 0 else "")


if __name__ == "__main__":
    main(sys.argv[1:])
