"""SpecSampler: an Optuna sampler that knows what speculation is; it can be used with any study.

    space, goal = SearchSpace({...}), Goal()
    sampler = SpecSampler(Coordinates(space, facts), goal)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trial(told(observations_of_the_plain_server))          # once, before the first proposal
    trial = study.ask(sampler.distributions)
    settings = sampler.settings(trial)                               # launch and measure these at
    concurrencies = concurrencies_of(trial)                          # these; None: at all
    note(trial, observations)                                        # what was seen, before the trial is told
    study.tell(trial, value)

It keeps nothing: each proposal is made from the study's trials, so a stored study is taken up by another process.  Trials
that run count as being measured.  Where what was observed cannot be split into acceptance and time (no histograms, broken
counters, a goal like the time to the first token) the fallback proposes, and `fell_back` says why.  Not here: the model (sweeps/surrogate).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeps.coordinates import Coordinates
from sweeps.observation import Goal, Observation
from sweeps.settings import Settings
from sweeps.space import Choice, Range
from sweeps.surrogate import Surrogate
from sweeps.surrogate.gain import Costs, Next, Pending, next_launch
from sweeps.surrogate.known import Known
from sweeps.surrogate.points import NoAcceptanceError

OBSERVED = "spec:observations"
CONCURRENCIES = "spec:concurrencies"
MOST_CANDIDATES = 3000
"""Of a larger space so many settings are drawn once; those observed are looked at as well."""


class SpecSampler(optuna.samplers.BaseSampler):
    """`may`: whether settings may be proposed.  `fallback` proposes where the model cannot, and every parameter that is none of
    the coordinates.  `every_load`: each launch is measured at all concurrencies, whatever is said of it."""

    def __init__(
        self,
        coordinates: Coordinates,
        goal: Goal | None = None,
        seed: int | None = None,
        fallback: optuna.samplers.BaseSampler | None = None,
        may: Callable[[Settings], bool] = lambda _: True,
        every_load: bool = False,
    ) -> None:
        self._every_load = every_load
        self._coordinates = coordinates
        self._goal = goal or Goal()
        self._fallback = fallback or optuna.samplers.TPESampler(seed=seed)
        self._may = may
        self._random = random.Random(seed)  # noqa: S311 - an order, not secrets
        self.distributions = distributions(coordinates)
        self.fell_back: str | None = None
        """Why the fallback proposed the last time; None: it did not."""
        self.last: Next | None = None
        """The last proposal with its gain; None: there was none, or the fallback's."""
        self._pool: list[Settings] | None = None
        self._made: Surrogate | None = None
        self._parsed: dict[int, list[Observation]] = {}
        self._refused: tuple[int, str] = (-1, "")
        """How many trials carried observations when they could not be read, and why."""

    def settings(self, trial: optuna.Trial | FrozenTrial) -> Settings | None:
        """Of a trial's parameters; None where they are illegal or not all there."""
        if any(name not in trial.params for name in self.distributions):
            return None
        return self._coordinates.decode(trial.params)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        found = dict(self.distributions)
        found.update(self._fallback.infer_relative_search_space(study, trial))
        return found | self.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        chosen = self._chosen(study, trial)
        if chosen is not None:
            settings, concurrencies = chosen
            coordinates = self._coordinates.encode(settings)
            if coordinates is not None and not self._every_load:
                study._storage.set_trial_system_attr(trial._trial_id, CONCURRENCIES, list(concurrencies))
            if coordinates is not None:
                return coordinates
        return self._fallback.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self._fallback.reseed_rng()
        self._random.seed()

    def known(self, study: optuna.Study, but: int | None = None) -> tuple[Known, list[Pending], Costs]:
        """What the study's trials (without number `but`) say.  Raises NoAcceptanceError (sweeps/surrogate/points.py)."""
        observations: list[Observation] = []
        running: list[FrozenTrial] = []
        planned: dict[int, tuple[int, ...]] = {}
        for other in study.get_trials(deepcopy=False):
            seen = self._observations(other)
            observations += seen
            planned |= {o.trial: tuple(at) for o in seen if (at := other.system_attrs.get(CONCURRENCIES))}
            if other.number != but and other.state == TrialState.RUNNING and not seen:
                running.append(other)
        counted = [o for o in observations if o.concurrency is None or self._goal.counts(o.concurrency)]
        surrogate = self._surrogate(counted)
        pending = [
            Pending(settings.key, concurrencies_of(item) or surrogate.concurrencies)
            for item in running if (settings := self.settings(item)) is not None
        ]  # fmt: skip
        weights = tuple(self._goal.weight(c) for c in surrogate.concurrencies) if self._goal.weights else ()
        return Known.of(surrogate, counted, planned, weights if sum(weights) else ()), pending, Costs.of(counted)

    def _observations(self, trial: FrozenTrial) -> list[Observation]:
        if OBSERVED not in trial.user_attrs:
            return []
        if trial.number not in self._parsed:
            self._parsed[trial.number] = [read(item) for item in trial.user_attrs[OBSERVED]]
        return self._parsed[trial.number]

    def _chosen(self, study: optuna.Study, trial: FrozenTrial) -> tuple[Settings, tuple[int, ...]] | None:
        self.fell_back, self.last = None, None
        if not self._goal.follows_speed:
            self.fell_back = f"{self._goal.metric} does not follow from acceptance and step time"
            return None
        carrying = sum(OBSERVED in other.user_attrs for other in study.get_trials(deepcopy=False))
        if self._refused[0] == carrying:
            self.fell_back = self._refused[1]
            return None
        try:
            known, pending, costs = self.known(study, trial.number)
        except NoAcceptanceError as why:
            self.fell_back = str(why)
            self._refused = (carrying, self.fell_back)
            return None
        settings = known.surrogate.candidates.settings
        allowed = np.array([s.speculative == self._coordinates.speculates and self._may(s) for s in settings], bool)
        self.last = next_launch(known, pending, costs, allowed, self._random, self._every_load)
        return None if self.last is None else (settings[self.last.place], self.last.concurrencies)

    def _surrogate(self, observations: Sequence[Observation]) -> Surrogate:
        """Of the candidates, with what was observed beside them, at the concurrencies observed."""
        concurrencies = {o.concurrency for o in observations if o.concurrency is not None}
        at = tuple(sorted(concurrencies)) or (self._coordinates.largest_concurrency or 16,)
        made = self._made
        place = made.candidates.place if made is not None else {}
        if made is None or made.concurrencies != at or any(o.settings.key not in place for o in observations):
            plain = [o.settings for o in observations if not o.settings.speculative]
            rest = [o.settings for o in observations if o.settings.speculative]
            distinct = {s.key: s for s in [*plain, *self._candidates(), *rest]}
            self._made = made = Surrogate(list(distinct.values()), at)
        return made

    def _candidates(self) -> list[Settings]:
        if self._pool is None:
            legal = self._coordinates.legal
            if legal is not None and len(legal.settings) <= MOST_CANDIDATES:
                self._pool = list(legal.settings)
            else:
                chance = random.Random(0)  # noqa: S311 - the same settings after a resume
                self._pool = [proposal.settings for proposal in self._coordinates.some(chance, MOST_CANDIDATES)]
        return self._pool


def distributions(coordinates: Coordinates) -> dict[str, BaseDistribution]:
    """Name of a coordinate → what it may be, in Optuna's words."""
    return {name: _distribution(axis) for name, axis in coordinates.axes.items()}


def _distribution(axis: Choice | Range) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(list(range(len(axis.options))))
    return IntDistribution(int(axis.low), int(axis.high)) if axis.whole else FloatDistribution(axis.low, axis.high)


def concurrencies_of(trial: optuna.Trial | FrozenTrial) -> tuple[int, ...] | None:
    """At which concurrencies this trial is worth measuring, ascending; None: nobody said."""
    frozen = trial.study.get_trials(deepcopy=False)[trial.number] if isinstance(trial, optuna.Trial) else trial
    found = frozen.system_attrs.get(CONCURRENCIES)
    return tuple(found) if found else None


def note(trial: optuna.Trial, observations: Iterable[Observation]) -> None:
    """Keep with a running trial what was observed on it, failures included."""
    trial.set_user_attr(OBSERVED, [written(o) for o in observations])


def told(observations: Iterable[Observation], value: float = 0.0, **given: Any) -> FrozenTrial:
    """A finished trial that carries observations: of the plain server, which is in no space, or of an earlier sweep."""
    return create_trial(value=value, user_attrs={OBSERVED: [written(o) for o in observations]}, **given)


def written(observation: Observation) -> dict[str, Any]:
    """As plain JSON values."""
    values = {item.name: getattr(observation, item.name) for item in dataclasses.fields(observation)}
    histogram = observation.acceptance_histogram
    return values | {
        "settings": observation.settings.as_dict(),
        "acceptance_histogram": list(histogram) if histogram is not None else None,
    }


def read(values: dict[str, Any]) -> Observation:
    histogram = values["acceptance_histogram"]
    given = values | {"settings": Settings.from_dict(values["settings"])}
    return Observation(**given | {"acceptance_histogram": tuple(histogram) if histogram is not None else None})
