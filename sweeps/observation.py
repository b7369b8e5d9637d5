"""Observation: all the sampler ever sees of a result; Goal: what a sweep wants.

Not here: how it was measured (results/measurement.py), how sure we are (results/verdict.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sweeps.settings import Settings

Outcome = Literal["measured", "infeasible", "fault"]
"""infeasible: the setting itself cannot run.  fault: the machine's doing; says nothing about the setting."""


TOKENS_OVER_TIME = frozenset({
    "output_tok_s", "steady_output_tok_s", "user_tok_s", "tokens_per_joule", "tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms",
    "tpot_p99_ms", "itl_mean_ms",
})  # fmt: skip
"""Metrics that are acceptance length over step time, up to a factor that settings share."""


@dataclass(frozen=True)
class Goal:
    """What to maximize, at which concurrencies, within which limits.

    `metric` is a metric's name or `speedup`, which is output_tok_s over the best plain server at that concurrency.
    `limits` are upper bounds on metrics, e.g. {"ttft_p99_ms": 500}.
    """

    maximize: str = "speedup"
    minimize: str | None = None
    """Instead: a metric that is better lower.  A speedup of 1.2 then is a value 1.2 times lower than the plain server's."""
    at: tuple[int, ...] = ()
    """Concurrencies that count; empty: all."""
    limits: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    """Concurrency → what it counts in the mean of log speedups that one setting for all load points is to maximize; empty:
    all alike."""
    price_per_gpu_hour: float | None = None
    """Of any currency; None: costs are not reckoned."""

    @property
    def metric(self) -> str:
        return self.minimize or ("output_tok_s" if self.maximize == "speedup" else self.maximize)

    @property
    def follows_speed(self) -> bool:
        """Whether the metric follows from how many tokens a step gains and how long it takes (sweeps/surrogate)."""
        return self.metric in TOKENS_OVER_TIME

    def merit(self, value: float) -> float:
        """A positive value of the metric as what is to be raised, and the other way round: its own inverse."""
        return 1 / value if self.minimize else value

    def counts(self, concurrency: int) -> bool:
        return not self.at or concurrency in self.at

    def weight(self, concurrency: int) -> float:
        return self.weights.get(concurrency, 0.0) if self.weights else 1.0


@dataclass(frozen=True)
class Observation:
    """One row as the sampler sees it.  `value` is the merit of the goal's metric (positive, better higher); None unless
    measured and valid."""

    trial: int
    settings: Settings
    outcome: Outcome
    concurrency: int | None = None
    repeat: int = 0
    launch: int = 0
    value: float | None = None
    excess: float = 0.0
    """Largest (metric - limit) / limit over the goal's limits; positive means a limit is broken."""
    acceptance_length: float | None = None
    acceptance_histogram: tuple[int, ...] | None = None
    cause: str | None = None
    """failure_kind of an outcome that is not measured."""
    launch_s: float | None = None
    """Seconds from the launch to ready; None: not known."""
    measure_s: float | None = None
    """Seconds this load point took; None: not known."""
    elsewhere: str = ""
    """Name of the sweep of another target or other GPUs that it comes from: a hint; empty: as good as measured here."""
