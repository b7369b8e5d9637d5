"""A run as an Optuna study in a file, for optuna-dashboard and whatever else reads one: `optuna-dashboard sqlite:///study.db`.

A trial there is a trial here, with the knobs that vary as its parameters (those it was launched with, in the words of the
config), the mean of the goal's metric over load points as its value, to be raised or lowered as the goal says, and each
load point's as an attribute.  Not the sampler's own study, whose parameters are coordinates and in which the plain
server does not stand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from sweeps.observation import Goal, Observation
from sweeps.settings import knobs


def write_study(observations: Iterable[Observation], goal: Goal, path: Path, name: str) -> int:
    """Write a new SQLite file at `path` that holds the study `name`; how many trials it has.

    Raises:
        FileExistsError: there is one already.
        OSError: it cannot be written; nothing is left of it.
    """
    if path.exists():
        raise FileExistsError(path)
    by_trial: dict[int, list[Observation]] = defaultdict(list)
    for observation in observations:
        by_trial[observation.trial].append(observation)
    trials = [by_trial[number] for number in sorted(by_trial)]
    space = _space([seen[0] for seen in trials])
    made = [_trial(seen, goal, space) for seen in trials]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(
            storage=url_of(path), study_name=name, direction="minimize" if goal.minimize else "maximize"
        )
        study.set_user_attr("metric", goal.metric)
        study.add_trials(made)
    except (SQLAlchemyError, StorageInternalError) as error:
        path.unlink(missing_ok=True)
        raise OSError(str(getattr(error, "orig", error)).partition("\n")[0]) from error
    return len(made)


def url_of(path: Path) -> str:
    """What Optuna calls an SQLite file, whatever signs are in its name."""
    return str(URL.create("sqlite", database=str(path.absolute())))


def _space(first: Sequence[Observation]) -> dict[str, BaseDistribution]:
    """What each knob that varies took; whole numbers and numbers as ranges."""
    found: dict[str, BaseDistribution] = {}
    for name in knobs():
        values = {getattr(one.settings, name) for one in first} - {None}
        if len(values) > 1 or (values and any(getattr(one.settings, name) is None for one in first)):
            found[name] = _distribution(values)
    return found


def _distribution(values: set[Any]) -> BaseDistribution:
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return IntDistribution(min(values), max(values))
    if all(isinstance(value, float) for value in values):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(sorted(values, key=str))


def _trial(seen: Sequence[Observation], goal: Goal, space: dict[str, BaseDistribution]) -> FrozenTrial:
    settings = seen[0].settings
    params = {name: value for name in space if (value := getattr(settings, name)) is not None}
    measured = [one for one in seen if one.value and one.concurrency is not None and goal.counts(one.concurrency)]
    values = [goal.merit(one.value) for one in measured if one.value]
    attributes: dict[str, Any] = {
        "trial": seen[0].trial,
        "settings": str(settings),
        "key": settings.key,
        "launch": seen[0].launch,
    }
    attributes |= {f"{goal.metric} at {one.concurrency}": value for one, value in zip(measured, values, strict=True)}
    attributes |= {
        f"acceptance_length at {one.concurrency}": one.acceptance_length for one in measured if one.acceptance_length
    }
    if cause := next((one.cause for one in seen if one.cause), None):
        attributes["failure_kind"] = cause
    return create_trial(
        state=TrialState.COMPLETE if measured else TrialState.FAIL,
        value=math.exp(fmean(map(math.log, values))) if values else None,
        params=params,
        distributions={name: space[name] for name in params},
        user_attrs=attributes,
    )
