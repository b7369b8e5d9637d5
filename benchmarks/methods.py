"""Methods: ways to search a landscape, ours and others, which all see the same settings and observations.

Off-the-shelf samplers get each illegal proposal moved to the nearest legal one for free.  A method's answer is its best
single value, ours the best expected of what was measured.  Not here: landscapes, budgets, what a search was worth (search.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import optuna

from benchmarks.landscapes import TREE_TOKENS
from sweeps.observation import Observation
from sweeps.settings import Settings
from sweeps.surrogate import Surrogate
from sweeps.surrogate.families import Family
from sweeps.surrogate.gain import Costs, Next, next_launch
from sweeps.surrogate.known import Known

METHODS = ("spec", "tpe", "random", "grid", "gp")


class Method(Protocol):
    def ask(self) -> tuple[Settings, tuple[int, ...]] | None:
        """What to launch and at which concurrencies; None: nothing more."""

    def tell(self, observations: Sequence[Observation]) -> None: ...

    def answer(self, concurrency: int) -> Settings | None: ...


class Spec:
    """Ours, without Optuna around it (sweeps/sampler/spec.py wraps the same call)."""

    def __init__(
        self, settings: Sequence[Settings], concurrencies: Sequence[int], known: Sequence[Family] | None = None
    ) -> None:
        self._surrogate = Surrogate(settings, concurrencies, known)
        self._seen: list[Observation] = []
        self._planned: dict[int, tuple[int, ...]] = {}
        self._faults: dict[Settings, int] = {}
        self.next: Next | None = None
        self._asked: tuple[Settings, tuple[int, ...]] = (settings[0], tuple(concurrencies))

    def ask(self) -> tuple[Settings, tuple[int, ...]] | None:
        if self.next is not None:
            self._asked = (self._surrogate.candidates.settings[self.next.place], self.next.concurrencies)
        return self._asked

    def tell(self, observations: Sequence[Observation]) -> None:
        settings, at = self._asked
        self._planned[observations[0].trial] = at
        self._seen += observations
        if observations[0].outcome == "fault":
            self._faults[settings] = self._faults.get(settings, 0) + 1
        known = Known.of(self._surrogate, self._seen, self._planned)
        may = np.array([self._faults.get(s, 0) < 2 for s in self._surrogate.candidates.settings])
        if known.points:
            self.next = next_launch(known, costs=Costs.of(self._seen), allowed=may)

    def answer(self, concurrency: int) -> Settings | None:
        best = self.next.best[self._surrogate.levels[concurrency]] if self.next and self.next.best else None
        return None if best is None else self._surrogate.candidates.settings[best]


class Raw:
    """What all others share: the answer is the best single value."""

    def __init__(self, settings: Sequence[Settings], concurrencies: Sequence[int]) -> None:
        self._settings, self._concurrencies = settings, tuple(concurrencies)
        self._best: dict[int, tuple[float, Settings]] = {}
        self._started = False

    def ask(self) -> tuple[Settings, tuple[int, ...]] | None:
        settings = self._proposed() if self._started else self._settings[0]
        self._started = True
        return None if settings is None else (settings, self._concurrencies)

    def tell(self, observations: Sequence[Observation]) -> None:
        for o in observations:
            if o.value is not None and o.concurrency is not None:
                self._best[o.concurrency] = max(self._best.get(o.concurrency, (0.0, o.settings)), (o.value, o.settings), key=lambda pair: pair[0])  # fmt: skip

    def answer(self, concurrency: int) -> Settings | None:
        return self._best[concurrency][1] if concurrency in self._best else None

    def _proposed(self) -> Settings | None:
        raise NotImplementedError


class Random(Raw):
    def __init__(self, settings: Sequence[Settings], concurrencies: Sequence[int], seed: int) -> None:
        super().__init__(settings, concurrencies)
        self._chance = np.random.default_rng([seed, 5])

    def _proposed(self) -> Settings | None:
        return self._settings[self._chance.integers(len(self._settings))]


class Grid(Raw):
    """The nesting of SGLang's bench_speculative.py, twins left out, for every drafter and backend."""

    def __init__(self, settings: Sequence[Settings], concurrencies: Sequence[int]) -> None:
        super().__init__(settings, concurrencies)
        self._left = self._nested()

    def _nested(self) -> Iterator[Settings]:
        there = set(self._settings)
        drafters = dict.fromkeys(s.drafter for s in self._settings if s.speculative)
        backends = dict.fromkeys(s.attention_backend for s in self._settings)
        shapes = [(s, k, s + 1 if k == 1 else n) for s in (1, 3, 5, 7) for k in (1, 2, 4, 8) for n in (2, 4, 8, 16, 32)]
        for drafter in drafters:
            for backend in backends:
                made = (Settings("EAGLE3", drafter, s, k, n, attention_backend=backend) for s, k, n in shapes)
                yield from (settings for settings in dict.fromkeys(made) if settings in there)

    def _proposed(self) -> Settings | None:
        return next(self._left, None)


class OffTheShelf(Raw):
    """An Optuna sampler as it comes; told the mean ratio to the plain server, for a failure the worst seen."""

    def __init__(
        self, settings: Sequence[Settings], concurrencies: Sequence[int], sampler: optuna.samplers.BaseSampler
    ) -> None:
        super().__init__(settings, concurrencies)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._drafters = [None, *dict.fromkeys(s.drafter for s in settings if s.speculative)]
        self._backends = list(dict.fromkeys(s.attention_backend for s in settings))
        self._there = set(settings)
        self._plain: dict[int, float] = {}
        of = optuna.distributions
        self._distributions = {
            "drafter": of.CategoricalDistribution(list(range(len(self._drafters)))),
            "steps": of.IntDistribution(1, 8), "topk": of.CategoricalDistribution([1, 2, 4, 8]),
            "tokens": of.IntDistribution(4, 64, log=True), "backend": of.CategoricalDistribution(self._backends),
        }  # fmt: skip
        self._study.enqueue_trial({"drafter": 0, "steps": 1, "topk": 1, "tokens": 4, "backend": self._backends[0]})

    def ask(self) -> tuple[Settings, tuple[int, ...]] | None:
        self._trial = self._study.ask(dict(self._distributions))
        return self._legal(self._trial.params), self._concurrencies

    def tell(self, observations: Sequence[Observation]) -> None:
        super().tell(observations)
        values = {o.concurrency: o.value for o in observations if o.value is not None}
        if len(values) == len(self._concurrencies):
            self._plain = self._plain or values
            self._study.tell(self._trial, float(np.mean([values[c] / self._plain[c] for c in self._concurrencies])))
        elif observations[0].outcome == "fault":
            self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        else:
            seen = [trial.value for trial in self._study.get_trials(deepcopy=False) if trial.value is not None]
            self._study.tell(self._trial, min(seen, default=0.0))

    def _legal(self, p: dict[str, Any]) -> Settings:
        """The nearest legal setting."""
        drafter, backend, steps = self._drafters[p["drafter"]], p["backend"], p["steps"]
        if drafter is None:
            return Settings(attention_backend=backend)
        chain = Settings("EAGLE3", drafter, steps, 1, steps + 1, attention_backend=backend)
        trees = [Settings("EAGLE3", drafter, steps, p["topk"], n, attention_backend=backend) for n in TREE_TOKENS]
        able = [tree for tree in trees if p["topk"] > 1 and tree in self._there]
        return min(able, key=lambda s: abs(np.log((s.num_draft_tokens or 1) / p["tokens"])), default=chain)


def made(
    method: str, settings: Sequence[Settings], concurrencies: Sequence[int], seed: int,
    known: Sequence[Family] | None = None,
) -> Method:  # fmt: skip
    """`known`: what ours believes of step times (sweeps/surrogate/families.py); None: what was learned."""
    if method == "spec":
        return Spec(settings, concurrencies, known)
    if method == "random":
        return Random(settings, concurrencies, seed)
    if method == "grid":
        return Grid(settings, concurrencies)
    samplers = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
    return OffTheShelf(settings, concurrencies, samplers[method](seed=seed))
