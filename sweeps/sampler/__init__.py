"""Sampler: which settings to try next, and what it learned; the only package that imports Optuna.

Proposals are settled and legal, and never a twin of what was begun before.  `spec` (the default) chooses by what a launch
teaches (spec.py); `grid` takes them as the space is written; the others are Optuna's own, and where the budget reaches for
every legal setting those come in a random order.  The study lives in memory and is rebuilt
from observations when a sweep resumes.  The plain server is not proposed here while anything speculates: the schedule
launches it beside every setting that needs it (orchestrator/schedule.py).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from sweeps.coordinates import Coordinates, Proposal
from sweeps.facts import NOTHING_KNOWN, Facts
from sweeps.observation import Goal, Observation
from sweeps.sampler.spec import (
    OBSERVED,
    SpecSampler,
    distributions,
    note,
    told,
    written,
)
from sweeps.settings import Settings
from sweeps.space import SearchSpace
from sweeps.surrogate.gain import Next
from sweeps.surrogate.known import KERNELS_REFUSE, Known
from sweeps.surrogate.odds import NEAR, BreakEven, break_even, chances_of_best
from sweeps.surrogate.points import NoAcceptanceError

RE_ASKS = 20
LEAST_MEASURED = 4
"""Speculative settings that this sweep measures before the search may end by itself."""


class Sampler:
    """Proposes settings of `space` and learns from observations.

    `seed` must differ after every resume (a reused seed replays its start-up proposals).  `facts` are what the rules may
    know.  `launches` are those that the budget has for proposals; None: not known.
    `ends`: whether `spec` may say that it has seen enough before everything was launched.
    """

    def __init__(
        self,
        space: SearchSpace,
        goal: Goal,
        name: str = "default",
        seed: int | None = None,
        facts: Facts = NOTHING_KNOWN,
        launches: int | None = None,
        ends: bool = True,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._coordinates = Coordinates(space, facts)
        self._distributions = distributions(self._coordinates)
        self._goal = goal
        self._random = random.Random(seed)  # noqa: S311 - proposals, not secrets
        chosen = self._named(name, seed)
        self._spec = chosen if isinstance(chosen, SpecSampler) else None
        self._in_order = name == "grid"
        self._asks = self._spec is not None or not (self._in_order or self._coordinates.fits_in(launches))
        self._study = optuna.create_study(direction="maximize", sampler=chosen)
        self._seen: set[str] = set()
        self._pending: dict[str, optuna.Trial] = {}
        self._values: dict[str, float] = {}
        self._measured: set[str] = set()
        """Speculative settings that this sweep measured, not an earlier one."""
        self._observations: dict[int, list[Observation]] = defaultdict(list)
        self._plain_value: float | None = None
        self._untold: list[tuple[Settings, list[Observation]]] = []
        self._said: str | None = None
        self._ends = ends
        self.enough: Next | None = None
        """Set once nothing is likely to be found that is worth a launch: `propose` has nothing more then."""
        self.waits = False
        """Whether what is being measured may still change that: ask again when it is learned."""
        self._given_up: set[tuple[str, str | None, str | None]] = set()
        self._refused_kernels: set[tuple[object, ...]] = set()

    def give_up(self, algorithm: str, drafter: str | None, attention_backend: str | None = None) -> bool:
        """Propose nothing more with this algorithm and drafter, on this attention backend or, without one, on any.

        False: they were given up before.
        """
        branch = (algorithm, drafter, attention_backend)
        known = not self._given_up.isdisjoint({branch, (algorithm, drafter, None)})
        self._given_up.add(branch)
        return not known

    def gave_up(self, settings: Settings) -> bool:
        """Whether these are not worth a launch: they were given up, or one launch showed that the kernels cannot do it."""
        pair = (settings.algorithm, settings.drafter)
        if not self._given_up.isdisjoint({(*pair, None), (*pair, settings.attention_backend)}):
            return True
        refused = self._refused_kernels
        return bool(refused) and not refused.isdisjoint((_kernels(settings), _kernels(settings.plain())))

    def seen(self, settings: Settings) -> None:
        """Never propose these: they were begun (or will be, as a baseline)."""
        self._seen.add(settings.key)

    @property
    def why_nothing(self) -> str:
        """Why `propose` gave None, for a person."""
        if self.enough is None:
            return "space exhausted: every legal setting was launched"
        alike = "; too many are alike for one launch each to tell them apart" if self.enough.near < 0.5 else ""
        return (
            f"nothing left is likely to be worth a launch: the best so far is within {NEAR:.0%} of the best there is with "
            f"probability {self.enough.near:.2f}, by the sampler's model{alike}"
        )

    def propose(self) -> Proposal | None:
        """New settings to launch; None when every legal setting was begun, or enough was seen (`why_nothing`, `waits`)."""
        if self.enough is not None:
            return None
        for _ in range(RE_ASKS if self._asks else 0):
            trial = self._study.ask(dict(self._distributions))
            if self._found_enough(trial):
                return None
            settings = self._coordinates.decode(trial.params)
            if settings is not None and settings.key not in self._seen and not self.gave_up(settings):
                return self._proposed(trial, settings)
            self._answer_twin(trial, settings)
        return self._propose_unseen()

    def learn(self, observation: Observation) -> None:
        self._observations[observation.trial].append(observation)

    def finish(self, trial: int, here: bool = True) -> None:
        """All of this trial's observations are in: tell Optuna.  Not `here`: they come from another run (a warm start)."""
        if self.waits:
            self.enough, self.waits = None, False
        observations = self._observations.pop(trial, [])
        if not observations:
            return
        settings = observations[0].settings
        if here:
            self._seen.add(settings.key)
        if self._spec is not None and (pending := self._pending.get(settings.key)) is not None:
            note(pending, observations)
        if any(o.outcome == "infeasible" and o.cause == KERNELS_REFUSE for o in observations):
            self._refused_kernels.add(_kernels(settings))
        value = self._value(observations)
        if not settings.speculative and self._coordinates.speculates:
            self._plain_value = value if value is not None else self._plain_value
            if self._spec is not None:
                self._study.add_trial(told(observations))
        elif any(o.outcome == "infeasible" for o in observations):
            self._untold.append((settings, observations))
        elif value is not None:
            self._values[settings.key] = value
            self._measured |= {settings.key} if here else set()
            self._tell(settings, value, observations, excess=max(o.excess for o in observations), runs=True)
        elif (pending := self._pending.pop(settings.key, None)) is not None:
            self._study.tell(pending, state=TrialState.FAIL)
        self._tell_infeasible()

    def _value(self, observations: Iterable[Observation]) -> float | None:
        """Weighted mean log of the goal's metric over the load points that count; None unless each was validly measured."""
        points: dict[int, list[float]] = defaultdict(list)
        for o in observations:
            if o.concurrency is not None and self._goal.counts(o.concurrency):
                if o.value is None or not math.isfinite(o.value) or o.value <= 0:
                    return None
                points[o.concurrency].append(math.log(o.value))
        weights = {concurrency: self._goal.weight(concurrency) for concurrency in points}
        if not sum(weights.values()):
            return None
        means = {concurrency: sum(logs) / len(logs) for concurrency, logs in points.items()}
        return sum(weights[c] * mean for c, mean in means.items()) / sum(weights.values())

    def _tell_infeasible(self) -> None:
        """A setting that cannot run gets the worst value seen; before there is one, half the plain server's.

        Told as FAIL it would teach nothing, and the region would be proposed again.
        """
        if self._values:
            worst = min(self._values.values())
        elif self._plain_value is not None:
            worst = self._plain_value - math.log(2)
        else:
            return
        for settings, observations in self._untold:
            self._tell(settings, worst, observations, excess=0.0, runs=False)
        self._untold.clear()

    def _tell(
        self, settings: Settings, value: float, observations: Iterable[Observation], excess: float, runs: bool
    ) -> None:
        constraints = {"runs": -1.0 if runs else 1.0, "limits": excess}
        pending = self._pending.pop(settings.key, None)
        if pending is not None:
            for name, amount in constraints.items():
                pending.set_constraint(name, amount)
            self._study.tell(pending, value)
            return
        coordinates = self._coordinates.encode(settings)
        if coordinates is None:
            return
        self._study.add_trial(
            create_trial(
                params=coordinates,
                distributions=dict(self._distributions),
                value=value,
                constraints=constraints,
                user_attrs={OBSERVED: [written(o) for o in observations]} if self._spec is not None else None,
            )
        )

    def _answer_twin(self, trial: optuna.Trial, settings: Settings | None) -> None:
        """Optuna came back to something known, or given up: give it an answer that it learns from, and go on."""
        value = self._values.get(settings.key) if settings else None
        hopeless = settings is not None and self.gave_up(settings)
        if hopeless and value is None:
            value = min(self._values.values(), default=None)
        if value is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        trial.set_constraint("runs", 1.0 if hopeless else -1.0)
        trial.set_constraint("limits", 0.0)
        self._study.tell(trial, value)

    def _propose_unseen(self) -> Proposal | None:
        candidates = self._coordinates.candidates(None if self._in_order else self._random)
        found = next((c for c in candidates if c.settings.key not in self._seen and not self.gave_up(c.settings)), None)
        if found is None:
            return None
        self._study.enqueue_trial(dict(found.coordinates))
        return self._proposed(self._study.ask(dict(self._distributions)), found.settings)

    def _proposed(self, trial: optuna.Trial, settings: Settings) -> Proposal:
        self._seen.add(settings.key)
        self._pending[settings.key] = trial
        return Proposal(settings, dict(trial.params))

    def expects(self) -> dict[str, Any]:
        """What the model makes of everything observed, as plain values for the journal; empty without a model.

        `near`: chance that the best found is within NEAR of the best there is; None where it was not reckoned.
        `break_even`: for each concurrency what speculation needs there and is expected to have.
        """
        known = self._known()
        if known is None:
            return {}
        posterior = known.surrogate.fit(known.points)
        found = [break_even(known, posterior, level) for level in range(len(known.surrogate.concurrencies))]
        return {
            "near": self.enough.near if self.enough is not None else None,
            "break_even": [_plainly(item, known) for item in found if item is not None],
        }

    def chances_of_best(self) -> Callable[[Settings, int], float]:
        """Of settings at a concurrency: how likely they are the best of all that was measured there, by the model.

        1 for all where there is no model, or none for this goal or concurrency.
        """
        known = self._known()
        if known is None:
            return lambda *_: 1.0
        posterior = known.surrogate.fit(known.points)
        found = {c: chances_of_best(known, posterior, level) for c, level in known.surrogate.levels.items()}
        place = known.surrogate.candidates.place
        return lambda settings, concurrency: (
            found[concurrency].get(place.get(settings.key, -1), 0.0) if concurrency in found else 1.0
        )

    def _known(self) -> Known | None:
        """All that the model knows; None where there is no model, or it can do nothing with what was observed."""
        if self._spec is None or not self._goal.follows_speed:
            return None
        try:
            known, _, _ = self._spec.known(self._study)
        except NoAcceptanceError:
            return None
        return known if known.points else None

    def _found_enough(self, trial: optuna.Trial) -> bool:
        """Whether the search may end with this proposal unlaunched, or wait with it for what is being measured."""
        last = self._spec.last if self._spec is not None else None
        if not self._ends or last is None or not last.enough or len(self._measured) < LEAST_MEASURED:
            return False
        self._study.tell(trial, state=TrialState.FAIL)
        self.enough, self.waits = last, bool(self._pending)
        return True

    def new_fall_back(self) -> str | None:
        """Why the last proposal was not the model's; None: it was, no model was asked for, or it was said before."""
        why = self._spec.fell_back if self._spec is not None else None
        before, self._said = self._said, why
        return why if why != before else None

    def _named(self, name: str, seed: int | None) -> optuna.samplers.BaseSampler:
        tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
        match name:
            case "spec" | "default":
                return SpecSampler(self._coordinates, self._goal, seed, tpe, may=self._may, every_load=True)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
            case _:
                return tpe

    def _may(self, settings: Settings) -> bool:
        return settings.key not in self._seen and not self.gave_up(settings)


def _plainly(item: BreakEven, known: Known) -> dict[str, Any]:
    return {
        "concurrency": item.concurrency, "settings": str(known.surrogate.candidates.settings[item.place]),
        "step_time_ratio": round(item.step_time_ratio, 3), "acceptance_length": round(item.acceptance_length, 3),
        "chance": round(item.chance, 3),
    }  # fmt: skip


def _kernels(s: Settings) -> tuple[object, ...]:
    """What decides whether an attention backend can do it: where rules are silent, one failure speaks for all alike."""
    return (s.algorithm, s.attention_backend, s.draft_attention_backend, s.page_size, (s.eagle_topk or 1) > 1)
