"""How often the verdict is right: simulated sweeps whose truth is known, judged by the very functions that judge a real one.

    python benchmarks/verdict.py [sweeps=500] [seed=0] [only=SCENARIO]

No server and no clock: a landscape says how fast each setting truly is at each load point, a noise model says how far a
launch strays from that, and `results.verdict` picks, races (`race_pass`) and judges.  What is counted, per answer (one a
load point) and per sweep:

- covered: the interval of the speedup holds the truth of the setting it is about;
- false better: `better` is said of a setting whose true speedup is below 1, or equal to 1 (a setting that gains nothing);
- found: of the load points where the best setting truly gains 5 % or more, those answered `better`;
- regret: how much slower, truly, what the verdict says to run is than the best there was (plain server included).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from results.record import Record  # noqa: E402
from results.verdict import judge, race_pass  # noqa: E402
from sweeps.observation import Goal  # noqa: E402
from sweeps.settings import Settings  # noqa: E402
from tests.fakes.records import PLAIN, measured  # noqa: E402

POINTS = (1, 8, 32)
PLAIN_SD = 0.015
GAIN = math.log(1.05)
GOAL = Goal()
Random = np.random.Generator


@dataclass(frozen=True)
class Noise:
    """How far the speed of a speculative launch lies from its settings' mean, on the log, a value a load point.

    Half of a launch's luck is shared by its load points, half is each one's own.
    """

    name: str
    sd: float
    heavy: bool = False
    """Student's t with 3 degrees of freedom instead of a normal, scaled to the same standard deviation."""
    stalls: float = 0.0
    """Share of launches that are slow for as long as they live, at two load points of three."""
    stall: float = 0.3
    """How much slower, on the log."""

    def draw(self, random: Random) -> np.ndarray:
        shared, own = self._unit(random, 1), self._unit(random, len(POINTS))
        hit = (random.random() < self.stalls) * (random.random(len(POINTS)) < 2 / 3) * self.stall
        return math.sqrt(0.5) * self.sd * (shared + own) - (hit - self.stalls * 2 / 3 * self.stall)

    def _unit(self, random: Random, size: int) -> np.ndarray:
        return random.standard_t(3, size) / math.sqrt(3) if self.heavy else random.standard_normal(size)


QUIET = Noise("1.5 %", 0.015)
MIDDLING = Noise("5 %", 0.05)
WIDE = Noise("12 %, heavy tails", 0.12, heavy=True)
STALLS = Noise("3 %, one launch in five stalls by 26 %", 0.03, stalls=0.2)
NOISES = (QUIET, MIDDLING, WIDE, STALLS)


@dataclass(frozen=True)
class Scenario:
    name: str
    noise: Noise
    best: float | None = None
    """True log speedup of the best setting at every load point; None: whatever the landscape gives."""
    kept_back: int = 4
    searched: int = 16
    """Speculative settings launched before the race."""


SCENARIOS = tuple(
    Scenario(f"{what}, noise {noise.name}", noise, best)
    for noise in NOISES
    for what, best in (("gains of all sizes", None), ("nothing gains: the best equals plain", 0.0), ("nothing gains: the best loses 5 %", -0.05))
)  # fmt: skip


def settings_of(chance: Random) -> list[Settings]:
    """Every setting of a small space of chains and trees, in random order."""
    shapes = [(steps, 1, steps + 1) for steps in range(1, 8)]
    shapes += [(steps, topk, tokens) for steps in (2, 3, 5, 7) for topk in (2, 4, 8) for tokens in (8, 16, 32)]
    found = [
        PLAIN.replace(algorithm="EAGLE3", drafter=drafter, num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens)
        for steps, topk, tokens in shapes
        for drafter in ("own", "public")
    ]
    return [found[index] for index in chance.permutation(len(found))]


def landscape(random: Random, settings: Sequence[Settings], best: float | None) -> np.ndarray:
    """True log speedups, a row a setting, a column a load point: acceptance length over what a step costs."""
    accuracy = dict(zip(("own", "public"), random.uniform(0.45, 0.85, 2), strict=True))
    draft, verify, knee = random.uniform(0.02, 0.1), random.uniform(0.02, 0.2), math.exp(random.uniform(3, 6))
    truth = np.array([[_log_speedup(one, c, accuracy, draft, verify, knee) for c in POINTS] for one in settings])
    return truth if best is None else truth - truth.max(axis=0) + best


def _log_speedup(
    one: Settings, concurrency: int, accuracy: dict[str, float], draft: float, verify: float, knee: float
) -> float:
    steps, topk, tokens = one.num_steps or 1, one.eagle_topk or 1, one.num_draft_tokens or 2
    right = 1 - (1 - accuracy[str(one.drafter)]) ** (topk**0.5)
    filled = 1 - math.exp(-tokens / (1 + steps * topk**0.7))
    length = 1 + sum((right * (filled if topk > 1 else 1.0)) ** depth for depth in range(1, steps + 1))
    arithmetic = math.hypot(1, concurrency * tokens / knee) / math.hypot(1, concurrency / knee)
    return math.log(length / (arithmetic + verify + draft * steps))


@dataclass
class Tally:
    """What the verdicts over many sweeps came to."""

    answers: int = 0
    covered: int = 0
    sweeps: int = 0
    false_better: int = 0
    sweeps_with_false_better: int = 0
    gains: int = 0
    found: int = 0
    launches: int = 0
    regrets: list[float] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        cells = [
            name, str(self.sweeps), f"{self.covered / self.answers:.1%}", f"{self.false_better / self.answers:.1%}",
            f"{self.sweeps_with_false_better / self.sweeps:.1%}",
            f"{self.found / self.gains:.0%} of {self.gains}" if self.gains else "–",
            f"±{np.median(self.halves):.0%}", f"{np.mean(self.regrets):.1%}", f"{self.launches / self.sweeps:.1f}",
        ]  # fmt: skip
        return "| " + " | ".join(cells) + " |"


HEADER = (
    "scenario", "sweeps", "covered", "false better, answers", "false better, sweeps", "gains found", "half interval", "regret",
    "relaunches",
)  # fmt: skip


class Machine:
    """Launches settings: rows with the truth and a launch's luck in them, numbered as a sweep numbers them."""

    def __init__(self, scenario: Scenario, random: Random) -> None:
        self.random = random
        self.noise = scenario.noise
        found = settings_of(random)
        truth = landscape(random, found, scenario.best)
        best = truth.mean(axis=1).argsort()[::-1]
        near = list(best[: len(best) // 2])
        random.shuffle(near)  # a sampler looks where it is good: three in four from the better half
        chosen = [*near[: scenario.searched * 3 // 4], *best[len(best) // 2 :][: scenario.searched // 4]]
        self.settings = [found[index] for index in chosen]
        self.truth = {found[index].key: truth[index] for index in chosen} | {PLAIN.key: np.zeros(len(POINTS))}
        self.records: list[Record] = []
        self.launched: dict[str, int] = {}

    def launch(self, settings: Settings) -> None:
        ordinal = self.launched.get(settings.key, 0)
        self.launched[settings.key] = ordinal + 1
        luck = self.noise.draw(self.random) if settings.speculative else self.random.normal(0, PLAIN_SD, len(POINTS))
        number = sum(self.launched.values())
        for concurrency, log in zip(POINTS, self.truth[settings.key] + luck, strict=True):
            speed = 100 * concurrency * math.exp(log)
            self.records.append(measured(settings, speed, trial=number, launch=ordinal, concurrency=concurrency))


def sweep(scenario: Scenario, seed: int) -> Machine:
    """One sweep: the plain server, the search, the race."""
    machine = Machine(scenario, np.random.default_rng(seed))
    for settings in (PLAIN, *machine.settings):
        machine.launch(settings)
    room, number = scenario.kept_back, 0
    while room > 0 and (launches := race_pass(machine.records, GOAL, room, number)):
        for settings in launches:
            machine.launch(settings)
        room, number = room - len(launches), number + 1
    return machine


def count(tally: Tally, machine: Machine) -> None:
    false = 0
    for index, answer in enumerate(judge(machine.records, GOAL).answers):
        assert answer.best_speculative is not None
        assert answer.speedup_low is not None
        assert answer.speedup_high is not None
        truth = machine.truth[answer.best_speculative.key][index]
        best = max(0.0, *(truths[index] for truths in machine.truth.values()))
        tally.answers += 1
        tally.covered += math.log(answer.speedup_low) <= truth <= math.log(answer.speedup_high)
        tally.halves.append(math.log(answer.speedup_high / answer.speedup_low) / 2)
        false += answer.answer == "better" and truth <= 0
        tally.gains += best >= GAIN
        tally.found += best >= GAIN and answer.answer == "better"
        tally.regrets.append(best - (truth if answer.settings else 0.0))
    tally.false_better += false
    tally.sweeps += 1
    tally.sweeps_with_false_better += false > 0
    tally.launches += sum(machine.launched.values()) - len(machine.launched)


def tally_of(scenario: Scenario, seeds: Sequence[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        count(tally, sweep(scenario, seed))
    return tally


def main(words: list[str]) -> None:
    given = {"sweeps": "500", "seed": "0", "only": "", **dict(word.split("=", 1) for word in words)}
    print("| " + " | ".join(HEADER) + " |")
    print("|" + " --- |" * len(HEADER))
    for line in lines(given):
        print(line, flush=True)


def lines(given: dict[str, str]) -> Iterator[str]:
    first = int(given["seed"])
    seeds = range(first, first + int(given["sweeps"]))
    for scenario in SCENARIOS:
        if given["only"] in scenario.name:
            yield tally_of(scenario, seeds).row(scenario.name)


if __name__ == "__main__":
    main(sys.argv[1:])
