"""How many launches and GPU-minutes a search needs to the best setting: ours beside Optuna's samplers, random and a grid.

    python benchmarks/search.py [seeds=1000:1020] [methods=spec,tpe,random,grid] [budget=40] [repeats=1] [at=one|all]
                                [bench_s=120] [fault=none|no_histogram|acceptance|noise|flaky]
                                [priors=learned|by_hand|wrong|FILE] [archetype=NAME] [out=FILE.jsonl]
    python benchmarks/search.py table FILE.jsonl …

Every method begins with the plain server and has the same budget; it sees the settings and what it measured, never the
landscape.  Off-the-shelf samplers get each illegal proposal moved to the nearest legal one for free.  A method's answer
is study.best_trial, ours the best expected of what was measured.  `reached` is the first launch from which the true loss
stays within a bound to the end of the budget; GPU-minutes count launches, failures, warm-up and measuring.  Ratios are
paired by landscape and cautious: the reference that never arrives counts what it spent, ours that never arrives counts
0, both 1.  Intervals are bootstraps over landscapes.  `at=one`: one concurrency a landscape, 1, 4, 16 and 64 in turn;
`all`: the four at once.  Everything here is made up (landscapes.py): a GPU was not measured.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna  # noqa: E402

from benchmarks.landscapes import (  # noqa: E402
    CONCURRENCIES,
    FULL_S,
    Landscape,
    draw,
)
from benchmarks.methods import METHODS, Spec, made  # noqa: E402
from sweeps.observation import Observation  # noqa: E402
from sweeps.settings import Settings  # noqa: E402
from sweeps.surrogate.families import UNKNOWN, Family, families  # noqa: E402

FLAKY = 0.15
"""Share of launches that hang with `fault=flaky`, beside the landscape's own."""


def run(
    method: str, land: Landscape, concurrencies: Sequence[int], seed: int, budget: int = 40, bench_s: float = FULL_S,
    fault: str = "none", priors: str = "learned",
) -> dict[str, Any]:  # fmt: skip
    """One search: a row a launch of (worst and mean loss over concurrencies, GPU-minutes so far), of ours with what it expects to gain."""
    chance = np.random.default_rng([seed, land.seed, 99])
    search = made(method, land.settings, concurrencies, seed, families_of(priors))
    minutes, rows, stop = 0.0, [], None
    for number in range(budget):
        asked = search.ask()
        if asked is None:
            break
        launched = land.launch(number, asked[0], asked[1], bench_s, chance)
        minutes += launched.wall_s * land.gpus / 60
        hangs = fault == "flaky" and chance.random() < FLAKY
        lost = [Observation(number, asked[0], "fault", cause="hang_serving")]
        search.tell(lost if hangs else [_spoilt(o, fault, chance) for o in launched.observations])
        losses = [land.regret(search.answer(concurrency), concurrency) for concurrency in concurrencies]
        rows.append([round(max(losses), 5), round(float(np.mean(losses)), 5), round(minutes, 3)])
        if isinstance(search, Spec) and search.next:
            rows[-1] += [round(float(x), 4) for x in (search.next.mean_gain, search.next.mean_insured_gain, search.next.near)]  # fmt: skip
        if stop is None and isinstance(search, Spec) and number >= 3 and search.next and search.next.enough:
            stop = {
                "launches": number + 1, "minutes": round(minutes, 3), "loss": rows[-1][0], "near": search.next.near,
                "levels": [_level(land, search.answer(c), c) for c in concurrencies],
            }  # fmt: skip
    pays = [land.pays(c) for c in concurrencies]
    return {
        "seed": land.seed, "noise_seed": seed, "archetype": land.archetype, "at": list(concurrencies), "method": method,
        "pays": all(pays), "never": not any(pays), "bench_s": bench_s, "fault": fault, "priors": priors,
        "rows": rows, "stop": stop,
    }  # fmt: skip


def families_of(priors: str) -> tuple[Family, ...]:
    """What ours believes of step times before it measures: what was learned, nothing of it, its opposite, or a file's."""
    match priors:
        case "learned":
            return families()
        case "by_hand":
            return (UNKNOWN,)
        case "wrong":
            return tuple(_opposite(family) for family in families())
        case _:
            return families(Path(priors))


def _opposite(family: Family) -> Family:
    learned = {c: dataclasses.replace(weights, mean=-weights.mean) for c, weights in family.learned.items()}
    return dataclasses.replace(family, learned=learned)


def _level(land: Landscape, answered: Settings | None, concurrency: int) -> dict[str, Any]:
    """What a search answered at one concurrency: its loss, and whether it speculates though a plain server is over 1 % faster."""
    speculates = answered is not None and answered.speculative
    speeds = land.speeds(concurrency)
    plain = max(speeds[place] for place, s in enumerate(land.settings) if not s.speculative)
    mine = speeds[land.place[answered]] if answered is not None else 0.0
    return {
        "concurrency": concurrency, "loss": round(land.regret(answered, concurrency), 5), "speculates": speculates,
        "false_winner": bool(speculates and mine < 0.99 * plain), "pays": land.pays(concurrency),
    }  # fmt: skip


def _spoilt(o: Observation, fault: str, chance: np.random.Generator) -> Observation:
    """The same observation as a worse instrument would have given it."""
    if o.value is None or (o.acceptance_length is None and fault != "noise"):
        return o
    if fault == "no_histogram":
        return dataclasses.replace(o, acceptance_histogram=None)
    if fault == "acceptance":
        return dataclasses.replace(o, acceptance_length=(o.acceptance_length or 1) * 1.05, acceptance_histogram=None)
    if fault == "noise":
        return dataclasses.replace(o, value=o.value * float(np.exp(chance.normal(0, 0.02))))
    return o


# The table.


def reached(rows: Sequence[Sequence[float]], bound: float, column: int = 0) -> int | None:
    """Launches until the loss stays within the bound; None: it does not."""
    inside = [row[column] <= bound for row in rows]
    return (
        None if not inside or not inside[-1] else len(inside) - inside[::-1].index(False) + 1 if False in inside else 1
    )


def share(runs: Sequence[dict[str, Any]], launches: int, bound: float) -> str:
    """Share of searches within the bound after so many launches, with its interval over landscapes."""
    return interval(_by_seed(runs, lambda r: float(r["rows"][min(launches, len(r["rows"])) - 1][0] <= bound)), np.mean)


def _by_seed(items: Sequence[dict[str, Any]], of: Any) -> list[float]:
    """A mean a landscape, over its noise seeds."""
    seeds: dict[int, list[float]] = {}
    for item in items:
        seeds.setdefault(item["seed"], []).append(of(item))
    return [float(np.mean(values)) for values in seeds.values()]


def interval(values: Sequence[float], of: Any, digits: int = 2) -> str:
    """A statistic with its bootstrapped 95 % interval."""
    if not values:
        return "–"
    found, chance = np.array(values, float), np.random.default_rng(0)
    low, high = np.quantile([of(chance.choice(found, len(found))) for _ in range(1000)], [0.025, 0.975])
    return f"{of(found):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def ratio(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], bound: float) -> str:
    """Paired GPU-minutes of theirs over ours until the loss stays within the bound, where speculation pays."""
    other = {(r["seed"], r["noise_seed"]): r for r in theirs}
    found: dict[int, list[float]] = {}
    for mine in ours:
        reference = other.get((mine["seed"], mine["noise_seed"]))
        if reference is not None and mine["pays"]:
            found.setdefault(mine["seed"], []).append(_one_ratio(mine["rows"], reference["rows"], bound))
    return interval([float(np.median(values)) for values in found.values()], np.median, 1)


def _one_ratio(mine: Sequence[Any], theirs: Sequence[Any], bound: float) -> float:
    at, other = reached(mine, bound), reached(theirs, bound)
    if at is None:
        return 0.0 if other is not None else 1.0
    return float(theirs[(other or len(theirs)) - 1][2] / mine[at - 1][2])


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: every method on the landscapes that all of them ran."""
    methods = [m for m in METHODS if any(r["method"] == m for r in runs)]
    of = {m: [r for r in runs if r["method"] == m] for m in methods}
    lines = ["| method | searches | ≤ 5 % after 10 | ≤ 2 % after 10 | ≤ 2 % after 20 | launches to 5 %, q1/median/q3 | to 2 % | GPU-minutes of it over ours, to 2 % | to 5 % |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for method in methods:
        mine = of[method]
        quartiles = [_quartiles([reached(r["rows"], bound) or np.inf for r in mine if r["pays"]]) for bound in (0.05, 0.02)]  # fmt: skip
        ratios = (ratio(of["spec"], mine, 0.02), ratio(of["spec"], mine, 0.05)) if "spec" in of and method != "spec" else ("1", "1")  # fmt: skip
        cells = [method, str(len(mine)), share(mine, 10, 0.05), share(mine, 10, 0.02), share(mine, 20, 0.02), *quartiles, *ratios]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_of_ours(of.get("spec", []))])


def _quartiles(launches: Sequence[float]) -> str:
    if not launches:
        return "–"
    return "/".join("never" if q == np.inf else f"{q:.0f}" for q in np.quantile(launches, [0.25, 0.5, 0.75], method="nearest"))  # fmt: skip


def _of_ours(runs: Sequence[dict[str, Any]]) -> list[str]:
    """By archetype, and how the search ends by itself."""
    lines = ["| ours, by archetype | searches | ≤ 5 % after 10 | ≤ 2 % after 10 | ≤ 5 % after 20 | ≤ 2 % after 20 |", "|---|---|---|---|---|---|"]  # fmt: skip
    for kind in sorted({r["archetype"] for r in runs}):
        some = [r for r in runs if r["archetype"] == kind]
        cells = [share(some, n, bound) for n, bound in ((10, 0.05), (10, 0.02), (20, 0.05), (20, 0.02))]
        lines.append(f"| {kind} | {len(some)} | " + " | ".join(cells) + " |")
    lines += ["", *_ends(runs)] if any(r["stop"] for r in runs) else []
    return lines


def _ends(runs: Sequence[dict[str, Any]]) -> list[str]:
    """How the search ends by itself, and what it says where speculation does not pay."""
    ends = [r["stop"] | {"seed": r["seed"], "never": r["never"]} for r in runs if r["stop"]]
    launches = [end["launches"] for end in ends] + [np.inf] * (len(runs) - len(ends))
    p90 = np.quantile(launches, 0.9, method="nearest")
    within, stated = interval(_by_seed(ends, lambda e: float(e["loss"] <= 0.02)), np.mean), np.mean([e["near"] for e in ends])  # fmt: skip
    median = np.quantile(launches, 0.5, method="nearest")
    tail = "not within the budget" if p90 == np.inf else f"{p90:.0f}"
    lines = [f"Ends by itself in {len(ends)} of {len(runs)} searches; launches median {median:.0f}, p90 {tail}; within 2 % {within}, stated {stated:.2f}."]  # fmt: skip
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 1.01)):
        some = [end for end in ends if low <= end["near"] < high]
        if some:
            lines.append(f"- stated {low:.2f}–{min(high, 1):.2f}: {len(some)}, within 2 % {np.mean([e['loss'] <= 0.02 for e in some]):.2f}, stated {np.mean([e['near'] for e in some]):.2f}")  # fmt: skip
    levels = [level | {"launches": end["launches"], "never": end["never"]} for end in ends for level in end["levels"]]
    not_paying = [level for level in levels if not level["pays"]]
    never = [end for end in ends if end["never"]]
    if never:
        lines += ["", f"Where speculation pays at no concurrency ({len(never)} ended): launches median {np.median([e['launches'] for e in never]):.0f}; lost more than 1 % {np.mean([e['loss'] > 0.01 for e in never]):.2f}."]  # fmt: skip
    if not_paying:
        lines.append(f"Of {len(not_paying)} concurrencies where it does not pay, speculation was answered though a plain server is over 1 % faster in {sum(level['false_winner'] for level in not_paying)}; of {len(levels) - len(not_paying)} where it pays, the plain server in {sum(not level['speculates'] for level in levels if level['pays'])}.")  # fmt: skip
    return lines


def main(words: Sequence[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    if words[:1] == ["table"]:
        print(table([json.loads(line) for path in words[1:] for line in Path(path).read_text().splitlines()]))
        return
    given = {"seeds": "1000:1020", "methods": "spec,tpe,random,grid", "budget": "40", "repeats": "1", "at": "one", "bench_s": "120", "fault": "none", "priors": "learned", "archetype": "", "out": ""} | dict(word.split("=", 1) for word in words)  # fmt: skip
    methods = [m for m in given["methods"].split(",") if m != "gp" or importlib.util.find_spec("torch")]
    low, high = map(int, given["seeds"].split(":"))
    runs = []
    for seed in range(low, high):
        land = draw(seed)
        if given["archetype"] not in ("", land.archetype):
            continue
        at = CONCURRENCIES if given["at"] == "all" else (CONCURRENCIES[seed % 4],)
        for noise_seed in range(int(given["repeats"])):
            for method in methods:
                runs.append(run(method, land, at, seed + 1000 * (noise_seed + 1), int(given["budget"]), float(given["bench_s"]), given["fault"], given["priors"]))  # fmt: skip
                if given["out"]:
                    with Path(given["out"]).open("a") as out:
                        out.write(json.dumps(runs[-1]) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
