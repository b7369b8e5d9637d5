"""Terms: what a verify step's time, over that of the plain server's step, is thought to be a sum of.

A constant for verifying at all, a roofline in the tokens of a step (memory-bound, then bound by arithmetic), experts
woken by more tokens, drafting by steps and beam, trees, every swept server knob alone and with speculation, and random
walks over tokens, steps and topk for kernels that switch where nobody says so.  Means and sds of the weights are by hand,
from what is physically likely.  Not here: what was learned of the weights (families.py), the fit (step_time.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweeps.surrogate.candidates import Candidates, Floats

ROOFS = ((250.0, 0.7, 0.5), (100.0, 0.05, 0.25), (600.0, 0.1, 0.4))
"""Tokens of a step at which arithmetic takes over, and mean and sd of that roofline's weight."""
TIGHT = 0.6
"""Scale of the sds of all terms that are not certain to be there."""
WALK = 12
"""Most places of a random walk."""
PREFILL = "prefill"
"""Term of the tokens that a step gains: each takes its share of the prefill, which speculation does not make faster."""
SHARED = ("spec", *(f"roof_{ridge:.0f}" for ridge, _, _ in ROOFS), "experts", "tokens", "steps", "beam", "tree", "tree_width", PREFILL)  # fmt: skip
"""Terms that every space has, once."""


@dataclass(frozen=True)
class Term:
    name: str
    """Terms of one name are alike: steps of a walk, values of a knob, drafters."""
    column: Floats
    """Its value for each candidate."""
    mean: float
    sd: float
    """Of its weight."""


def terms_of(c: Candidates, concurrency: int, gained: Floats) -> list[Term]:
    """`gained`: tokens that a step of each candidate is expected to gain over one."""
    plain, wide = np.ones(len(c)), float(np.sqrt(concurrency))
    spec, tree = c.speculative.astype(float), c.tree.astype(float)
    n, s, k = c.tokens, c.steps, c.topk
    found = [Term("plain", plain, 1.0, 0.02), Term("spec", spec, 0.12, 0.45), Term(PREFILL, gained, 0.03, 0.04)]
    more = [Term(f"roof_{ridge:.0f}", _roof(concurrency * n, ridge) - _roof(concurrency * plain, ridge), mean, sd) for ridge, mean, sd in ROOFS]  # fmt: skip
    more += [
        Term("experts", (np.sqrt(n) - 1) / 3, 0.08, 0.25), Term("tokens", (n - 1) / 16, 0.03, 0.08 + 0.02 * wide),
        Term("steps", s, 0.05, 0.05), Term("beam", s * (k - 1) / 7, 0.01, 0.02 + 0.004 * wide),
        Term("tree", tree, 0.08, 0.10), Term("tree_width", tree * (k - 1) / 7, 0.02, 0.05),
        Term("ragged", tree * (n % 8 > 0), 0.0, 0.03),
    ]  # fmt: skip
    for number in range(len(c.proposers)):
        own = (c.proposer == number).astype(float)
        more += [Term("drafter_steps", s * own, 0.0, 0.035), Term("drafter", spec * own, 0.0, 0.05)]
    for name, values, sd in (("walk_tokens", n, 0.035), ("walk_steps", s, 0.02), ("walk_topk", k, 0.05)):
        more += [Term(name, spec * (values >= bound), 0.0, sd) for bound in _bounds(values[c.speculative])]
    for name, places in c.variants.items():
        own_sd = 0.06 if name.endswith("backend") else 0.25
        for value in range(int(places.max()) + 1):
            has = (places == value).astype(float)
            more += [
                Term("server", has, 0.0, own_sd), Term("server_spec", has * spec, 0.0, 0.12),
                Term("server_tree", has * tree, 0.0, 0.06), Term("server_tokens", has * (n - 1) / 16, 0.0, 0.06 + 0.01 * wide),
            ]  # fmt: skip
    return found + [Term(t.name, t.column, t.mean, TIGHT * t.sd) for t in more]


def _roof(tokens: Floats, ridge: float) -> Floats:
    """A smooth maximum of a memory-bound step, 1, and one that grows with its tokens."""
    return np.asarray((1 + (tokens / ridge) ** 3) ** (1 / 3))


def _bounds(values: Floats) -> Floats:
    """Where a walk over these values may step: at each but the least, thinned to WALK."""
    found = np.unique(values)[1:]
    return found if len(found) <= WALK else found[np.linspace(0, len(found) - 1, WALK).astype(int)]
