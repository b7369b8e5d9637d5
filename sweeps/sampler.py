"""Sampler: which settings to try next, and what it learned; the only file that imports Optuna.

Proposals are settled and legal, and never a twin of what was begun before.  Where the budget reaches for every legal
setting they come in a random order; otherwise Optuna chooses.  The study lives in memory and is rebuilt
from observations when a sweep resumes.  The plain server is not proposed here while anything speculates: the schedule
launches it beside every setting that needs it (orchestrator/schedule.py).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from sweeps.facts import NOTHING_KNOWN, Facts
from sweeps.legal import ENUMERABLE, Legal, TooLarge, legal
from sweeps.observation import Goal, Observation
from sweeps.rules import TREE_ALGORITHMS, problems, settle, tree_capacity
from sweeps.settings import Settings
from sweeps.space import Choice, Domain, Range, SearchSpace

RE_ASKS = 20
DRAWS = 4000
"""Random points looked at for one that is new, where the space is too large to enumerate."""
KERNELS_REFUSE = "backend_unsupported"
"""Cause of a failure that says something of all settings with the same kernels."""
FILL = "draft_fill"
"""Coordinate of num_draft_tokens: 0 is its lower and 1 its upper bound at these steps and topk, geometric between."""


@dataclass(frozen=True)
class Proposal:
    settings: Settings
    coordinates: Mapping[str, Any]


class Sampler:
    """Proposes settings of `space` and learns from observations.

    `seed` must differ after every resume (a reused seed replays its start-up proposals).  `facts` are what the rules may
    know.  `launches` are those that the budget has for proposals; None: not known.
    """

    def __init__(
        self,
        space: SearchSpace,
        goal: Goal,
        name: str = "default",
        seed: int | None = None,
        facts: Facts = NOTHING_KNOWN,
        launches: int | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._coder = _Coder(space, facts)
        self._tries_all = self._coder.fits_in(launches)
        self._goal = goal
        self._random = random.Random(seed)  # noqa: S311 - proposals, not secrets
        self._study = optuna.create_study(direction="maximize", sampler=_optuna_sampler(name, seed))
        self._seen: set[str] = set()
        self._pending: dict[str, optuna.Trial] = {}
        self._values: dict[str, float] = {}
        self._observations: dict[int, list[Observation]] = defaultdict(list)
        self._plain_value: float | None = None
        self._untold: list[Settings] = []
        self._given_up: set[tuple[str, str | None]] = set()
        self._refused_kernels: set[tuple[object, ...]] = set()

    def give_up(self, algorithm: str, drafter: str | None) -> bool:
        """Propose nothing more with this algorithm and drafter (they do not fit, or the drafter guesses nothing).

        False: they were given up before.
        """
        known = (algorithm, drafter) in self._given_up
        self._given_up.add((algorithm, drafter))
        return not known

    def gave_up(self, settings: Settings) -> bool:
        """Whether these are not worth a launch: their drafter was given up, or one launch showed that the kernels cannot do it."""
        if (settings.algorithm, settings.drafter) in self._given_up:
            return True
        refused = self._refused_kernels
        return bool(refused) and not refused.isdisjoint((_kernels(settings), _kernels(settings.plain())))

    def seen(self, settings: Settings) -> None:
        """Never propose these: they were begun (or will be, as a baseline)."""
        self._seen.add(settings.key)

    def propose(self) -> Proposal | None:
        """New settings to launch; None when every legal setting was begun."""
        for _ in range(0 if self._tries_all else RE_ASKS):
            trial = self._study.ask(dict(self._coder.distributions))
            settings = self._coder.decode(trial.params)
            if settings is not None and settings.key not in self._seen and not self.gave_up(settings):
                return self._proposed(trial, settings)
            self._answer_twin(trial, settings)
        return self._propose_unseen()

    def learn(self, observation: Observation) -> None:
        self._observations[observation.trial].append(observation)

    def finish(self, trial: int, here: bool = True) -> None:
        """All of this trial's observations are in: tell Optuna.  Not `here`: they come from another run (a warm start)."""
        observations = self._observations.pop(trial, [])
        if not observations:
            return
        settings = observations[0].settings
        if here:
            self._seen.add(settings.key)
        if any(o.outcome == "infeasible" and o.cause == KERNELS_REFUSE for o in observations):
            self._refused_kernels.add(_kernels(settings))
        value = self._value(observations)
        if not settings.speculative and self._coder.speculates:
            self._plain_value = value if value is not None else self._plain_value
        elif any(o.outcome == "infeasible" for o in observations):
            self._untold.append(settings)
        elif value is not None:
            self._values[settings.key] = value
            self._tell(settings, value, excess=max(o.excess for o in observations), runs=True)
        elif (pending := self._pending.pop(settings.key, None)) is not None:
            self._study.tell(pending, state=TrialState.FAIL)
        self._tell_infeasible()

    def _value(self, observations: Iterable[Observation]) -> float | None:
        """Mean log of the goal's metric over the load points that count; None unless each was validly measured."""
        points: dict[int, list[float]] = defaultdict(list)
        for o in observations:
            if o.concurrency is not None and self._goal.counts(o.concurrency):
                if o.value is None or not math.isfinite(o.value) or o.value <= 0:
                    return None
                points[o.concurrency].append(math.log(o.value))
        if not points:
            return None
        return sum(sum(logs) / len(logs) for logs in points.values()) / len(points)

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
        for settings in self._untold:
            self._tell(settings, worst, excess=0.0, runs=False)
        self._untold.clear()

    def _tell(self, settings: Settings, value: float, excess: float, runs: bool) -> None:
        constraints = {"runs": -1.0 if runs else 1.0, "limits": excess}
        pending = self._pending.pop(settings.key, None)
        if pending is not None:
            for name, amount in constraints.items():
                pending.set_constraint(name, amount)
            self._study.tell(pending, value)
            return
        coordinates = self._coder.encode(settings)
        if coordinates is None:
            return
        self._study.add_trial(
            create_trial(
                params=coordinates, distributions=dict(self._coder.distributions), value=value, constraints=constraints
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
        candidates = self._coder.candidates(self._random)
        found = next((c for c in candidates if c.settings.key not in self._seen and not self.gave_up(c.settings)), None)
        if found is None:
            return None
        self._study.enqueue_trial(dict(found.coordinates))
        return self._proposed(self._study.ask(dict(self._coder.distributions)), found.settings)

    def _proposed(self, trial: optuna.Trial, settings: Settings) -> Proposal:
        self._seen.add(settings.key)
        self._pending[settings.key] = trial
        return Proposal(settings, dict(trial.params))


def _kernels(s: Settings) -> tuple[object, ...]:
    """What decides whether an attention backend can do it: where rules are silent, one failure speaks for all alike."""
    return (s.algorithm, s.attention_backend, s.draft_attention_backend, s.page_size, (s.eagle_topk or 1) > 1)


def _optuna_sampler(name: str, seed: int | None) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)


class _Coder:
    """Between Optuna's coordinates, which are static and independent, and legal settled Settings."""

    def __init__(self, space: SearchSpace, facts: Facts) -> None:
        self.space = _proposed_space(space)
        self._facts = facts
        self.speculates = any(a != "none" for a in space.domains["algorithm"].values()) if "algorithm" in space.domains else False  # fmt: skip
        self._free = self.space.free
        self._fills = "num_draft_tokens" in self._free
        self.distributions = {
            (FILL if name == "num_draft_tokens" else name): _distribution(name, domain)
            for name, domain in self._free.items()
        }
        self._remaining: Iterator[Proposal] | None = None

    @cached_property
    def legal(self) -> Legal | None:
        """Everything legal; None when there is too much of it to look at."""
        try:
            return legal(self.space, self._facts)
        except TooLarge:
            return None

    def fits_in(self, launches: int | None) -> bool:
        """Whether so many launches are enough for every legal setting."""
        ranges = [domain for domain in self._free.values() if isinstance(domain, Range)]
        if launches is None or not all(domain.whole for domain in ranges):
            return False
        return self.legal is not None and len(self.legal.settings) <= launches

    def decode(self, coordinates: Mapping[str, Any]) -> Settings | None:
        """Settled settings of these coordinates; None when they are illegal."""
        values = {n: _value(d, coordinates[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
        if self._fills:
            options = self._draft_tokens(self.space.settings(values))
            if not options:
                return None
            values["num_draft_tokens"] = options[_filled(coordinates[FILL], len(options))]
        settings = settle(self.space.settings(values), self._facts).settings
        return None if problems(settings, self._facts) else settings

    def encode(self, settings: Settings) -> dict[str, Any] | None:
        """Coordinates that decode to these settings; None when they are outside the space."""
        direct = self._as_they_stand(settings)
        if direct is not None and self.decode(direct) == settings:
            return direct
        asked = self.legal.asked(settings) if self.legal is not None else None
        return None if asked is None else self._coordinates(asked)

    def _coordinates(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Of values of every free knob."""
        plain = {n: _coordinate(d, asked[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
        if not self._fills:
            return plain
        return plain | {FILL: _fill_of(self._draft_tokens(self.space.settings(asked)), asked["num_draft_tokens"])}

    def _as_they_stand(self, settings: Settings) -> dict[str, Any] | None:
        """Coordinates at which the free knobs have these values; None where one is not among its values."""
        given = settings.as_dict() | {f"server_args.{k}": v for k, v in settings.server_args}
        coordinates: dict[str, Any] = {}
        for name, domain in self._free.items():
            if name == "num_draft_tokens":
                continue
            value = given.get(name)
            known = domain.values() if isinstance(domain, Choice) else None
            if value is None:
                value = domain.values()[0]
            if (known is not None and value not in known) or (isinstance(domain, Range) and not domain.low <= value <= domain.high):  # fmt: skip
                return None
            coordinates[name] = _coordinate(domain, value)
        if self._fills:
            values = {n: _value(d, coordinates[n]) for n, d in self._free.items() if n != "num_draft_tokens"}
            coordinates[FILL] = _fill_of(self._draft_tokens(self.space.settings(values)), settings.num_draft_tokens)
        return coordinates

    def candidates(self, chance: random.Random) -> Iterator[Proposal]:
        """What is legal, in random order; what was taken does not come again.  Of a space too large, some random points."""
        if self.legal is None:
            return self._drawn(chance)
        if self._remaining is None:
            self._remaining = self._enumerated(self.legal, chance)
        return self._remaining

    def _enumerated(self, known: Legal, chance: random.Random) -> Iterator[Proposal]:
        count = len(known.settings)
        order = chance.sample(range(count), min(count, ENUMERABLE))
        for settings in (known.settings[place] for place in order):
            coordinates = self.encode(settings)
            assert coordinates is not None
            yield Proposal(settings, coordinates)

    def _drawn(self, chance: random.Random) -> Iterator[Proposal]:
        for _ in range(DRAWS):
            coordinates = {name: _draw(d, chance) for name, d in self.distributions.items()}
            settings = self.decode(coordinates)
            if settings is not None:
                yield Proposal(settings, coordinates)

    def _draft_tokens(self, settings: Settings) -> list[int]:
        """Values of num_draft_tokens that are distinct launches at these steps and topk; none where no tree is so large."""
        allowed = [int(v) for v in self._free["num_draft_tokens"].values()]
        if settings.algorithm not in TREE_ALGORITHMS or settings.num_steps is None or settings.eagle_topk is None:
            return allowed
        if settings.eagle_topk == 1:
            return [settings.num_steps + 1]
        capacity = tree_capacity(settings.num_steps, settings.eagle_topk)
        return [v for v in allowed if v <= capacity]


def _proposed_space(space: SearchSpace) -> SearchSpace:
    """The space without the plain server, unless there is nothing else."""
    domain = space.domains.get("algorithm")
    speculative = tuple(a for a in domain.values() if a != "none") if domain else ()
    if not speculative:
        return space
    return SearchSpace({**space.domains, "algorithm": Choice(speculative)})


def _distribution(name: str, domain: Domain) -> BaseDistribution:
    if name == "num_draft_tokens":
        return FloatDistribution(0.0, 1.0)
    if isinstance(domain, Range):
        return IntDistribution(int(domain.low), int(domain.high)) if domain.whole else FloatDistribution(domain.low, domain.high)  # fmt: skip
    return CategoricalDistribution(list(range(len(domain.values()))))


def _value(domain: Domain, coordinate: Any) -> Any:
    return coordinate if isinstance(domain, Range) else domain.values()[int(coordinate)]


def _coordinate(domain: Domain, value: Any) -> Any:
    return value if isinstance(domain, Range) else domain.values().index(value)


def _filled(fill: float, count: int) -> int:
    """Index of the option at `fill`: option i owns an equal share of a logarithmic scale, so few tokens are as likely as many."""
    return min(count - 1, int((count + 1) ** fill) - 1)


def _fill_of(options: list[int], tokens: int | None) -> float:
    """Middle of the share that decodes to `tokens`; 0 where there is nothing to choose."""
    if len(options) < 2 or tokens not in options:
        return 0.0
    index = options.index(tokens)
    return (math.log(index + 1) + math.log(index + 2)) / 2 / math.log(len(options) + 1)


def _draw(distribution: BaseDistribution, chance: random.Random) -> Any:
    if isinstance(distribution, IntDistribution):
        return chance.randint(distribution.low, distribution.high)
    if isinstance(distribution, FloatDistribution):
        return chance.uniform(distribution.low, distribution.high)
    assert isinstance(distribution, CategoricalDistribution)
    return chance.choice(distribution.choices)
