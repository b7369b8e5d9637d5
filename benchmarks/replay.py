"""How many launches a search needs on a grid that was measured in full: ours beside Optuna's samplers, random and a grid.

    python benchmarks/replay.py RECORDING [methods=spec,tpe,gp,random,grid] [seeds=10] [out=FILE.jsonl]

RECORDING is a run directory, a folder of Parquet files or one such file.  Every method is the product's own sampler of
that name (sweeps/sampler) over the space that the recorded settings span; what was not recorded is in nobody's space.
A launch is answered with one recorded launch of its settings, all load points together, each recorded launch once in a
random order before any comes again; failures fail as they did.  All begin with the plain server.  A method's answer at a
concurrency is its best single value so far, ours the best expected of what was measured.

Truth is the mean log over all recorded launches.  An answer is tied with the best where the 90 % interval of their log
ratio includes 0, by the spread between launches pooled over all settings launched more than once there (over all
concurrencies with fewer than three degrees of freedom).  `Until tied for good` is the first launch from which all answers stay
tied until everything was launched.  Not here: made-up landscapes (search.py).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from scipy.stats import t as student  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.engines.replay import Recording  # noqa: E402
from results.record import Record  # noqa: E402
from sweeps.facts import NOTHING_KNOWN  # noqa: E402
from sweeps.legal import legal  # noqa: E402
from sweeps.observation import Goal, Observation  # noqa: E402
from sweeps.sampler import Sampler  # noqa: E402
from sweeps.settings import ARGS, Settings, knobs  # noqa: E402
from sweeps.space import Choice, Held, SearchSpace  # noqa: E402
from sweeps.surrogate import Surrogate  # noqa: E402
from sweeps.surrogate.known import Known  # noqa: E402
from sweeps.surrogate.points import NoAcceptanceError  # noqa: E402

METHODS = ("spec", "tpe", "gp", "random", "grid")
ENOUGH_DEGREES = 3
"""Of freedom, for a concurrency to have a spread of its own."""


@dataclass(frozen=True)
class Grid:
    """What was recorded, as a landscape."""

    recording: Recording
    goal: Goal = field(default_factory=Goal)

    @cached_property
    def settings(self) -> list[Settings]:
        """Plain servers first, each group in the order of its recording."""
        found = [launches[0][0].asked for launches in self.recording.launches.values()]
        return sorted(found, key=lambda settings: settings.speculative)

    @cached_property
    def space(self) -> SearchSpace:
        """Of every value that a knob has in some recorded settings; those of speculation alone are not asked of a plain server."""
        speculative = [s for s in self.settings if s.speculative]
        arguments = sorted({ARGS + name for settings in self.settings for name, _ in settings.server_args})
        domains: dict[str, Choice | Held] = {}
        for name in (*knobs(), *arguments):
            values = {_value(s, name) for s in (self.settings if name == "algorithm" else speculative)} - {None}
            if values:
                domains[name] = Choice(tuple(sorted(values))) if len(values) > 1 else Held(*values)
        return SearchSpace(domains)

    @cached_property
    def logs(self) -> dict[int, dict[str, list[float]]]:
        """Concurrency → settings key → log of the goal's metric, a launch each."""
        found: dict[int, dict[str, list[float]]] = defaultdict(dict)
        for key, launches in self.recording.launches.items():
            for rows in launches:
                points: dict[int, list[float]] = defaultdict(list)
                for record in rows:
                    if record.point and (value := record.observation(self.goal).value):
                        points[record.point.concurrency].append(math.log(value))
                for concurrency, values in points.items():
                    found[concurrency].setdefault(key, []).append(sum(values) / len(values))
        return dict(sorted(found.items()))

    @cached_property
    def spreads(self) -> dict[int, tuple[float, int]]:
        """Concurrency → sd between launches of the same settings, and its degrees of freedom."""
        own = {concurrency: _spread(here.values()) for concurrency, here in self.logs.items()}
        pooled = _spread(values for here in self.logs.values() for values in here.values())
        return {c: spread if spread[1] >= ENOUGH_DEGREES else pooled for c, spread in own.items()}

    def tied(self, settings: Settings | None, concurrency: int) -> bool:
        """With the best there."""
        here = self.logs[concurrency]
        if settings is None or settings.key not in here:
            return False
        means = {key: sum(values) / len(values) for key, values in here.items()}
        best = max(means, key=lambda key: means[key])
        sd, degrees = self.spreads[concurrency]
        error = sd * math.sqrt(1 / len(here[best]) + 1 / len(here[settings.key]))
        return means[best] - means[settings.key] <= (float(student.ppf(0.95, degrees)) * error if degrees else 0.0)

    def tie_sets(self) -> dict[int, int]:
        """Concurrency → how many settings are tied with the best."""
        return {c: sum(self.tied(s, c) for s in self.settings) for c in self.logs}


def _value(settings: Settings, name: str) -> Any:
    return dict(settings.server_args).get(name[len(ARGS) :]) if name.startswith(ARGS) else getattr(settings, name)


def _spread(groups: Any) -> tuple[float, int]:
    many = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in many)
    squares = sum(float(np.var(values)) * len(values) for values in many)
    return (math.sqrt(squares / degrees) if degrees else 0.0), degrees


class Answers:
    """What a method would say after what it has seen."""

    def __init__(self, grid: Grid, by_model: bool) -> None:
        self._surrogate = Surrogate(grid.settings, tuple(grid.logs)) if by_model else None
        self._concurrencies = tuple(grid.logs)
        self._seen: list[Observation] = []
        self._best: dict[int, tuple[float, Settings]] = {}

    def learn(self, seen: Sequence[Observation]) -> None:
        self._seen += seen
        for o in seen:
            if o.value is not None and o.concurrency is not None:
                new = (o.value, o.settings)
                self._best[o.concurrency] = max(self._best.get(o.concurrency, new), new, key=lambda pair: pair[0])

    def now(self) -> Mapping[int, Settings | None]:
        raw = {c: self._best[c][1] if c in self._best else None for c in self._concurrencies}
        if self._surrogate is None:
            return raw
        try:
            known = Known.of(self._surrogate, self._seen)
        except NoAcceptanceError:
            return raw
        if not known.points:
            return raw
        posterior = self._surrogate.fit(known.points)
        found = {c: known.incumbent(posterior, level) for c, level in self._surrogate.levels.items()}
        return {c: None if place is None else self._surrogate.candidates.settings[place] for c, place in found.items()}


class Search:
    """One method on a grid; `rows` hold a launch each: whether the answer is tied with the best at each concurrency."""

    def __init__(self, grid: Grid, method: str, seed: int) -> None:
        self._grid = grid
        self._chance = np.random.default_rng([seed, 17])
        self._left: dict[str, list[list[Record]]] = {}
        self._sampler = Sampler(grid.space, grid.goal, method, seed, launches=0, ends=False)
        self._answers = Answers(grid, by_model=method == "spec")
        self.rows: list[dict[int, bool]] = []
        recorded = {settings.key: settings for settings in grid.settings}
        for settings in legal(grid.space, NOTHING_KNOWN).settings:
            if settings.key not in recorded:
                self._sampler.seen(settings)
        plain = [settings for settings in grid.settings if not settings.speculative]
        for settings in plain:
            self._sampler.seen(settings)
        self._launch(plain[0])
        while (proposal := self._sampler.propose()) is not None:
            same = recorded.get(proposal.settings.plain().key)
            if same is not None and same.key not in self._left:
                self._launch(same)  # before a setting the plain server with the same values, as in a sweep
            self._launch(recorded[proposal.settings.key])

    def _launch(self, settings: Settings) -> None:
        launches, number = self._left.setdefault(settings.key, []), len(self.rows)
        if not launches:
            every = self._grid.recording.launches[settings.key]
            launches += [every[place] for place in self._chance.permutation(len(every))]
        seen = [replace(record.observation(self._grid.goal), trial=number, launch=0) for record in launches.pop()]
        for observation in seen:
            self._sampler.learn(observation)
        self._sampler.finish(number)
        self._answers.learn(seen)
        now = self._answers.now()
        self.rows.append(
            {concurrency: self._grid.tied(now[concurrency], concurrency) for concurrency in self._grid.logs}
        )


def until(rows: Sequence[Mapping[int, bool]]) -> int:
    """First launch from which all answers stay tied."""
    inside = [all(row.values()) for row in rows]
    return len(inside) - inside[::-1].index(False) + 1 if False in inside else 1


def first(rows: Sequence[Mapping[int, bool]]) -> int:
    """First launch after which all answers are tied, whatever comes later."""
    inside = [all(row.values()) for row in rows]
    return inside.index(True) + 1 if True in inside else len(inside) + 1


def table(grid: Grid, found: Mapping[str, Sequence[Sequence[Mapping[int, bool]]]]) -> str:
    quarter = math.ceil(len(grid.settings) / 4)
    concurrencies = list(grid.logs)
    lines = [
        f"{len(grid.settings)} settings, a quarter is {quarter} launches.  Tied with the best: "
        + ", ".join(f"{count} at {c}" for c, count in grid.tie_sets().items())
        + ".  Spread between launches: "
        + ", ".join(f"{sd:.1%} at {c} ({degrees} degrees of freedom)" for c, (sd, degrees) in grid.spreads.items())
        + ".",
        "",
        "| method | searches | launches until first tied everywhere, q1/median/q3 | until tied for good | tied everywhere after a quarter | "
        + " | ".join(f"at {c}" for c in concurrencies)
        + " |",
        "|" + "---|" * (5 + len(concurrencies)),
    ]
    for method, searches in found.items():
        need = [_quartiles([when(rows) for rows in searches]) for when in (first, until)]
        after = [rows[min(quarter, len(rows)) - 1] for rows in searches]
        cells = [
            method, str(len(searches)), *need,
            f"{sum(all(row.values()) for row in after)} of {len(after)}", *(f"{sum(row[c] for row in after)}" for c in concurrencies),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _quartiles(counts: Sequence[int]) -> str:
    return "/".join(f"{q:.0f}" for q in np.quantile(counts, [0.25, 0.5, 0.75], method="nearest"))


def main(words: Sequence[str]) -> None:
    given = {"methods": ",".join(METHODS), "seeds": "10", "out": ""} | dict(word.split("=", 1) for word in words[1:])
    grid = Grid(Recording.at(Path(words[0])))
    methods = [m for m in given["methods"].split(",") if m != "gp" or importlib.util.find_spec("torch")]
    found: dict[str, list[list[dict[int, bool]]]] = {}
    for method in methods:
        for seed in range(int(given["seeds"])):
            found.setdefault(method, []).append(Search(grid, method, seed).rows)
            if given["out"]:
                with Path(given["out"]).open("a") as out:
                    out.write(json.dumps({"method": method, "seed": seed, "rows": found[method][-1]}) + "\n")
    print(table(grid, found))


if __name__ == "__main__":
    main(sys.argv[1:])
