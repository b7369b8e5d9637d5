"""Families: kinds of model and machine whose step times behave alike, and what the weights of the terms were in each.

What one family knows is learned (benchmarks/learn_families.py) and kept in families.json with where it comes from: for a
few concurrencies the mean and covariance of the weights of the terms that every space has (`SHARED`), and the variance of
the rest by name; all in units of the sds that terms.py gives by hand.  `unknown` holds those as they are, for what
resembles nothing that was learned from.  Not here: the terms (terms.py), which family it is (step_time.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from sweeps.surrogate.candidates import Floats
from sweeps.surrogate.terms import SHARED

LEARNED = Path(__file__).with_name("families.json")
WIDER = 1.2
"""Factor on all learned sds: what comes is less like what was learned from than that is among itself."""
LEAST_VARIANCE, MORE_VARIANCE = 0.4, 0.15
"""What a variance that was learned is at least, and what is added to those of `SHARED`: machines differ where the landscapes
that were learned from happen not to."""
UNKNOWN_SHARE = 0.1
"""Chance, before anything was measured, of no family that was learned."""


@dataclass(frozen=True)
class Weights:
    """Of the terms at one concurrency, in units of their sds by hand."""

    mean: Floats
    """Of `SHARED`."""
    covariance: Floats
    variance: Mapping[str, float]
    """Name of another term → variance about 0; missing: 1."""

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Weights]]) -> Weights:
        """One that has the first two moments of all; the chances sum to 1."""
        mean = np.sum([chance * part.mean for chance, part in parts], axis=0)
        covariance = np.sum([c * (p.covariance + np.outer(p.mean - mean, p.mean - mean)) for c, p in parts], axis=0)
        names = dict.fromkeys(name for _, part in parts for name in part.variance)
        return cls(mean, covariance, {name: sum(c * p.variance.get(name, 1.0) for c, p in parts) for name in names})


@dataclass(frozen=True)
class Family:
    name: str
    share: float
    """Chance of it before anything was measured."""
    learned: Mapping[int, Weights]
    """Concurrency → its weights there."""

    def at(self, concurrency: int) -> Weights:
        """Between two concurrencies by the logarithm; beyond the last ones as there."""
        known = sorted(self.learned)
        over = next((c for c in known if c >= concurrency), known[-1])
        under = next((c for c in reversed(known) if c <= concurrency), known[0])
        if over == under:
            return self.learned[over]
        part = np.log(concurrency / under) / np.log(over / under)
        one, other = self.learned[under], self.learned[over]
        return Weights(
            (1 - part) * one.mean + part * other.mean,
            (1 - part) * one.covariance + part * other.covariance,
            {name: (1 - part) * v + part * other.variance[name] for name, v in one.variance.items()},
        )


UNKNOWN = Family("unknown", UNKNOWN_SHARE, {1: Weights(np.zeros(len(SHARED)), np.eye(len(SHARED)), {})})


@cache
def families(path: Path = LEARNED) -> tuple[Family, ...]:
    """Those of a file, as if they were WIDER, and the unknown one."""
    read = json.loads(path.read_text())["families"]
    total = sum(item["share"] for item in read.values())
    known = [
        Family(name, (1 - UNKNOWN_SHARE) * item["share"] / total, {int(c): _weights(w) for c, w in item["at"].items()})
        for name, item in read.items()
    ]
    return (*known, UNKNOWN)


def _weights(read: Mapping[str, object]) -> Weights:
    mean, covariance, variance = (read[name] for name in ("mean", "covariance", "variance"))
    shared = WIDER**2 * (np.array(covariance) + MORE_VARIANCE * np.eye(len(SHARED)))
    return Weights(np.array(mean), shared, {n: WIDER**2 * max(v, LEAST_VARIANCE) for n, v in dict(variance).items()})  # type: ignore[call-overload]
