"""Landscapes: made-up machines, models and drafters with a known best setting, to judge samplers by; no server, no GPU.

`draw(seed)` makes one: its legal settings, the true throughput of each at every concurrency, and launches that cost
seconds, fail and are noisy.  The truth is not the surrogate's formula (sweeps/surrogate): acceptance comes from a
Monte-Carlo simulation of EAGLE-2's dynamic trees (a confidence per node, a beam of topk, reranked to num_draft_tokens), a
step's time from a smooth-max roofline with MoE expert activation, tiles, attention, communication and the cost of trees,
each setting has a quirk of its own, and archetype `cliffy` one or two jumps that nothing announces.
Seeds below 2000 are for tuning.  Not here: samplers (search.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sweeps.observation import Observation
from sweeps.settings import Settings

STEPS = tuple(range(1, 9))
TOPKS = (1, 2, 4, 8)
TREE_TOKENS = (4, 6, 8, 12, 16, 24, 32, 48, 64)
CONCURRENCIES = (1, 4, 16, 64)
ARCHETYPES = ("dense_1gpu", "dense_tp4", "moe_tp8", "moe_int4_pcie", "weak_drafter", "cliffy")
FULL_S, SHORT_S, WARM_UP_S = 120.0, 30.0, 15.0
"""Seconds of a full and of a short benchmark at one concurrency, and of the warm-up before either."""
CONTEXTS = 240

Shape = tuple[int, int, int]
"""num_steps, eagle_topk, num_draft_tokens."""


def _fits(steps: int, topk: int, tokens: int) -> bool:
    return steps + 1 <= tokens and tokens - 1 <= topk + (steps - 1) * topk * topk


CHAINS: list[Shape] = [(s, 1, s + 1) for s in STEPS]
TREES: list[Shape] = [(s, k, n) for s in STEPS for k in TOPKS if k > 1 for n in TREE_TOKENS if _fits(s, k, n)]
SHAPES = CHAINS + TREES
PLACE = {shape: place for place, shape in enumerate(SHAPES)}


@dataclass(frozen=True)
class Launched:
    """What one launch came to: an observation a concurrency, or one of its failure; seconds the GPUs were held."""

    observations: list[Observation]
    wall_s: float


class Landscape:
    """A machine with a model and its drafters; `numbers` are what `draw` drew."""

    def __init__(self, seed: int, archetype: str, numbers: dict[str, Any]) -> None:
        self.seed, self.archetype, self._numbers = seed, archetype, numbers
        self.gpus: int = numbers["n_gpus"]
        self.launch_s: float = numbers["launch_s"]
        self._backends: list[str] = numbers["backends"]
        self._drafters: list[dict[str, Any]] = numbers["drafters"]
        chance = np.random.default_rng([seed, 11])
        self._survival = [_survival_table(drafter, chance) for drafter in self._drafters]
        self.settings = self._all_settings()
        """Every setting there is, plain servers first."""
        self.place = {settings: place for place, settings in enumerate(self.settings)}
        self._speeds: dict[int, np.ndarray] = {}

    def _all_settings(self) -> list[Settings]:
        found = [Settings(attention_backend=backend) for backend in self._backends]
        for number, drafter in enumerate(self._drafters):
            for steps, topk, tokens in CHAINS if drafter["kind"] == "ngram" else SHAPES:
                found += [
                    Settings("EAGLE3", f"d{number}", steps, topk, tokens, attention_backend=b) for b in self._backends
                ]
        return found

    def speed(self, settings: Settings, concurrency: int) -> float:
        """True tokens per second of all streams; 0 where it cannot run."""
        if not self._supported(settings) or not self._has_room(settings, concurrency):
            return 0.0
        decoding = 1000.0 * concurrency * self.length(settings) / self._step_ms(settings, concurrency)
        return 1.0 / (1.0 / decoding + self._numbers["prefill"] / self.plain_speed(concurrency))

    def speeds(self, concurrency: int) -> np.ndarray:
        """Of all `settings`, in their order."""
        if concurrency not in self._speeds:
            self._speeds[concurrency] = np.array([self.speed(s, concurrency) for s in self.settings])
        return self._speeds[concurrency]

    def plain_speed(self, concurrency: int) -> float:
        """Of the best plain server, without the prefill's share."""
        return max(1000.0 * concurrency / self._step_ms(s, concurrency) for s in self._plain)

    @cached_property
    def _plain(self) -> list[Settings]:
        return [settings for settings in self.settings if not settings.speculative]

    def regret(self, settings: Settings | None, concurrency: int) -> float:
        """Share of the best speed that is lost with these settings."""
        if settings is None:
            return 1.0
        speeds = self.speeds(concurrency)
        return float(1.0 - speeds[self.place[settings]] / speeds.max())

    @property
    def family(self) -> str:
        """Which step times it has, as the surrogate's families go (sweeps/surrogate/families.py)."""
        if self._numbers["cliffs"]:
            return "jumps"
        if self._numbers["spec_pen"] > 0.5 * self._numbers["t_mem"]:
            return "slow_verify"
        return "experts" if self._numbers["t_moe"] else "dense"

    def pays(self, concurrency: int) -> bool:
        """Whether the best setting is more than 2 % faster than the best plain server."""
        speeds = self.speeds(concurrency)
        return bool(speeds.max() > 1.02 * speeds[: len(self._plain)].max())

    def launch(
        self, trial: int, settings: Settings, concurrencies: Sequence[int], bench_s: float, chance: np.random.Generator
    ) -> Launched:
        """Start a server once and measure each concurrency in turn."""
        failed, wall_s = self._failure(settings, max(concurrencies), chance)
        if failed is not None:
            outcome = "fault" if failed == "hang_serving" else "infeasible"
            return Launched([Observation(trial, settings, outcome, cause=failed)], wall_s)
        wall_s = self.launch_s * float(np.exp(chance.normal(0, 0.08)))
        luck = self._numbers["sig_launch"] * chance.standard_t(5)
        found = [self._measured(trial, settings, c, bench_s, luck, chance) for c in concurrencies]
        return Launched(found, wall_s + len(found) * (WARM_UP_S + bench_s))

    def _failure(self, settings: Settings, most_streams: int, chance: np.random.Generator) -> tuple[str | None, float]:
        if not self._supported(settings):
            return "backend_unsupported", min(30.0, 0.3 * self.launch_s)
        if not self._has_room(settings, most_streams):
            return "oom_graph_capture", 0.7 * self.launch_s
        if chance.random() < self._numbers["flaky"]:
            return "hang_serving", self.launch_s * chance.uniform(0.3, 2.0)
        return None, 0.0

    def _measured(
        self, trial: int, settings: Settings, streams: int, bench_s: float, luck: float, chance: np.random.Generator
    ) -> Observation:
        run = self._numbers["sig_run"] * np.sqrt(FULL_S / bench_s)
        noise = luck + run * chance.standard_t(4) / np.sqrt(2)
        if chance.random() < 0.02:
            noise -= chance.uniform(0.03, 0.10)  # a hiccup: speeds err downwards only
        speed = self.speed(settings, streams)
        common: dict[str, Any] = {"trial": trial, "settings": settings, "outcome": "measured", "concurrency": streams}
        common |= {"launch_s": self.launch_s, "measure_s": bench_s + WARM_UP_S}
        if not settings.speculative:
            return Observation(**common, value=speed * float(np.exp(noise)))
        shares = -np.diff(np.concatenate([[1.0], self._survives(settings)[: settings.num_steps], [0.0]]))
        shares = np.clip(shares, 0, None)
        steps = int(np.clip(speed * bench_s / self.length(settings) / 6, 60, 6000))  # neighbouring steps are alike
        histogram = chance.multinomial(steps, shares / shares.sum())
        length = 1 + float((histogram * np.arange(len(histogram))).sum()) / steps
        value = speed * (length / self.length(settings)) ** 0.9 * float(np.exp(noise))
        return Observation(**common, value=value, acceptance_length=length, acceptance_histogram=tuple(histogram.tolist()))  # fmt: skip

    def _supported(self, settings: Settings) -> bool:
        return (settings.eagle_topk or 1) == 1 or settings.attention_backend not in self._numbers["no_tree"]

    def _has_room(self, settings: Settings, streams: int) -> bool:
        need = streams * (settings.num_draft_tokens or 1) + self._numbers["draft_mem"] * settings.speculative
        return bool(need <= self._numbers["mem_cap"])

    def _survives(self, settings: Settings) -> np.ndarray:
        drafter, shape = _drafter_number(settings), _shape(settings)
        shift = 0.006 * _normal(self.seed, "ctx", drafter, *shape[:2])
        return np.clip(self._survival[drafter][PLACE[shape]] * (1 + shift), 0, 1)

    def length(self, settings: Settings) -> float:
        """True acceptance length."""
        return 1.0 + float(self._survives(settings).sum()) if settings.speculative else 1.0

    def _step_ms(self, settings: Settings, streams: int) -> float:
        """Milliseconds of one verify step (of one decode step where nothing speculates)."""
        n, backend = self._numbers, settings.attention_backend
        tokens = settings.num_draft_tokens or 1
        total = streams * tokens
        active = 1 - (1 - n["moe_f"]) ** (total ** n["moe_r"]) if n["t_moe"] else 0.0
        memory = n["t_mem"] + n["t_moe"] * active
        tiled = np.ceil(total / n["tile"]) * n["tile"] * 0.35 + total * 0.65
        matmul = (memory ** n["p"] + (n["t_tok"] * tiled) ** n["p"]) ** (1 / n["p"])
        attention = streams * n["t_kv"] * (1 + n["att"][backend] * (tokens - 1)) * n["bk"][backend]
        step = matmul + attention + n["t_comm"] + n["t_comm_tok"] * total + n["t_fix"]
        return float(self._speculating(step, settings, streams) if settings.speculative else step)

    def _speculating(self, step: float, settings: Settings, streams: int) -> float:
        """A step's time with drafting and what verification costs beside its tokens."""
        n, backend, number = self._numbers, settings.attention_backend, _drafter_number(settings)
        steps, topk, tokens = _shape(settings)
        drafter, tree, total = self._drafters[number], topk > 1, streams * tokens
        step += n["spec_pen"] * n["bkpen"][backend] + n["cpu_spec"] * (1 + 0.01 * streams)
        if tree:
            step += n["tree_fix"] + n["tree_req"] * streams + n["bktree"][backend]
        step += steps * (drafter["t_step"] + drafter["t_tok"] * streams * topk) + drafter["t_tok"] * total * 0.5
        quirk = _normal(self.seed, "k", backend, tree, tokens, streams)
        quirk += 0.5 * _normal(self.seed, "d", number, steps, topk)
        step *= np.exp(n["quirk"] * quirk)
        for kind, bound, factor in n["cliffs"]:
            jumps = {
                "ntot": total > bound, "topk": topk >= bound, "steps": steps > bound, "ndt_not8": tree and tokens % 8 > 0,
            }  # fmt: skip
            step *= factor if jumps[kind] else 1.0
        return step


def draw(seed: int, archetype: str | None = None) -> Landscape:
    """The landscape of this seed; of a given archetype, or of one that the seed chooses."""
    chance = np.random.default_rng([seed, 2024])
    kind = archetype or ARCHETYPES[chance.integers(len(ARCHETYPES))]
    uniform = chance.uniform

    def spread(low: float, high: float) -> float:
        """Uniform on the logarithm."""
        return float(np.exp(uniform(np.log(low), np.log(high))))

    base = ("dense_1gpu", "dense_tp4", "moe_tp8")[chance.integers(3)] if kind in ("weak_drafter", "cliffy") else kind
    if base == "dense_1gpu":
        plain = spread(4, 9)
        n = {"n_gpus": 1, "launch_s": spread(20, 90), "t_mem": plain * 0.85, "t_moe": 0, "t_comm": 0.05, "t_comm_tok": 0.0005, "t_fix": spread(0.2, 0.7)}  # fmt: skip
        ridge = spread(130, 450)
    elif base == "dense_tp4":
        plain = spread(14, 28)
        n = {"n_gpus": 4, "launch_s": spread(60, 240), "t_mem": plain * 0.75, "t_moe": 0, "t_comm": plain * 0.12, "t_comm_tok": plain * 0.0006, "t_fix": spread(0.4, 1.2)}  # fmt: skip
        ridge = spread(120, 400)
    else:
        plain = spread(9, 20)
        n = {"n_gpus": 8, "launch_s": spread(150, 600), "t_mem": plain * 0.5, "t_moe": plain * spread(1.0, 3.5), "t_comm": plain * 0.15, "t_comm_tok": plain * 0.0008, "t_fix": spread(0.5, 1.5)}  # fmt: skip
        ridge = spread(250, 700)
    n |= {"moe_f": spread(8 / 384, 8 / 128), "moe_r": uniform(0.6, 0.95), "p": uniform(2.5, 5), "tile": int(chance.choice([8, 16, 64]))}  # fmt: skip
    n["t_tok"] = (n["t_mem"] + 0.6 * n["t_moe"]) / ridge
    n |= {"t_kv": plain * spread(0.001, 0.008), "cpu_spec": plain * spread(0.01, 0.08), "spec_pen": plain * spread(0.01, 0.15)}  # fmt: skip
    n |= {"tree_fix": plain * spread(0.01, 0.12), "tree_req": plain * spread(2e-4, 4e-3)}
    backends = list(chance.permutation(["fa3", "flashinfer", "triton"]))[: int(chance.integers(2, 4))]
    n["backends"] = [str(backend) for backend in backends]
    n["bk"] = {b: spread(0.8, 1.5) for b in backends}
    n["att"] = {b: spread(0.01, 0.12) for b in backends}
    n["bkpen"] = {b: spread(0.5, 2.5) for b in backends}
    n["bktree"] = {b: plain * spread(0.001, 0.08) for b in backends}
    n["no_tree"] = [str(backends[-1])] if uniform() < 0.55 else []
    n["cliffs"] = []
    if base == "moe_int4_pcie":
        n |= {"spec_pen": plain * uniform(1.2, 2.4), "t_comm": plain * 0.3, "t_comm_tok": plain * 0.004}
    n["drafters"] = _drafters(kind, plain, chance, spread)
    if kind == "cliffy":
        jumps = [
            ("ntot", int(chance.choice([16, 32, 64, 256])), uniform(1.15, 1.5)),
            ("topk", int(chance.choice([4, 8])), uniform(1.1, 1.4)),
            ("steps", int(chance.choice([3, 5])), uniform(1.1, 1.3)),
            ("ndt_not8", 0, uniform(1.1, 1.25)),
        ]
        n["cliffs"] = [jumps[i] for i in chance.permutation(4)[: int(chance.integers(1, 3))]]
    n |= {"mem_cap": float(chance.choice([1200, 2200, 5000])), "draft_mem": float(chance.choice([0, 100, 300]))}
    n |= {"flaky": uniform(0.01, 0.06), "sig_launch": uniform(0.003, 0.010), "sig_run": uniform(0.007, 0.022)}
    n |= {"quirk": uniform(0.006, 0.02), "prefill": spread(0.01, 0.12)}
    return Landscape(seed, kind, n)


def _drafters(kind: str, plain: float, chance: np.random.Generator, spread: Any) -> list[dict[str, Any]]:
    uniform, found = chance.uniform, []
    count = int(chance.integers(2, 4))
    for number in range(count):
        lookup = number == count - 1 and uniform() < 0.35
        middle = {"weak_drafter": uniform(-0.6, 0.2), "moe_int4_pcie": uniform(-0.5, 0.5)}.get(kind, uniform(0.3, 2.0))
        found.append({
            "kind": "ngram" if lookup else "eagle", "seed": int(chance.integers(1 << 30)), "m": middle,
            "s_ctx": uniform(0.5, 1.6), "s_node": uniform(0.5, 1.5),
            "decay": uniform(0, 0.12) if uniform() < 0.6 else uniform(0.12, 0.45), "zeta": uniform(1.2, 2.2),
            "tau": uniform(0.7, 1.3), "kappa": uniform(0.94, 1.0), "hit": uniform(0.15, 0.55), "a1": uniform(0.5, 0.85),
            "a2": uniform(0.7, 0.93), "t_step": plain * 1e-4 if lookup else plain * spread(0.02, 0.12),
            "t_tok": 0.0 if lookup else plain * spread(5e-5, 8e-4),
        })  # fmt: skip
    return found


def _survival_table(drafter: dict[str, Any], chance: np.random.Generator) -> np.ndarray:
    """P(at least j drafts are accepted) for j = 1 … 8, a row a shape; by Monte Carlo over contexts."""
    table = np.zeros((len(SHAPES), len(STEPS)))
    if drafter["kind"] == "ngram":
        chain = drafter["hit"] * np.cumprod([drafter["a1"], *[drafter["a2"]] * 7])
        for steps, topk, tokens in CHAINS:
            table[PLACE[steps, topk, tokens], :steps] = chain[:steps]
        return table
    contexts = chance.normal(0, drafter["s_ctx"], CONTEXTS)
    for topk in TOPKS:
        _fill(table, drafter, topk, contexts)
    return table


def _fill(table: np.ndarray, drafter: dict[str, Any], topk: int, contexts: np.ndarray) -> None:
    """The rows of this topk: draft a beam to full depth, rerank what was drafted by its confidence."""
    ranks = np.arange(2, 200.0) ** (-drafter["zeta"])
    tail = (ranks / ranks.sum())[: topk - 1]
    nodes = np.random.default_rng(int(drafter["seed"]) * 7 + 1)  # the same for every topk
    score, chance_right = np.zeros((CONTEXTS, 1)), np.ones((CONTEXTS, 1))
    scores, rights, depths = [], [], []
    for depth in STEPS:
        noise = nodes.normal(0, drafter["s_node"], (CONTEXTS, 8))[:, : score.shape[1]]
        logit = drafter["m"] + contexts[:, None] + noise - drafter["decay"] * (depth - 1)
        first = (1 / (1 + np.exp(-logit)))[..., None]
        children = np.concatenate([first, (1 - first) * tail], -1)
        scored = (score[..., None] + drafter["tau"] * np.log(np.maximum(children, 1e-9))).reshape(CONTEXTS, -1)
        right = (chance_right[..., None] * children * drafter["kappa"]).reshape(CONTEXTS, -1)
        scores.append(scored)
        rights.append(right)
        depths.append(np.full(scored.shape[1], depth))
        kept = np.argsort(-scored, 1)[:, :topk]
        score, chance_right = np.take_along_axis(scored, kept, 1), np.take_along_axis(right, kept, 1)
        pool, value, deep = np.concatenate(scores, 1), np.concatenate(rights, 1), np.concatenate(depths)
        if topk == 1:
            table[PLACE[depth, 1, depth + 1], :depth] = value.mean(0)
            continue
        order = np.argsort(-pool, 1)[:, : max(TREE_TOKENS) - 1]
        value, deep = np.take_along_axis(value, order, 1), deep[order]
        for tokens in TREE_TOKENS:
            if (place := PLACE.get((depth, topk, tokens))) is not None:
                for level in range(1, depth + 1):
                    at_level = value[:, : tokens - 1] * (deep[:, : tokens - 1] == level)
                    table[place, level - 1] = at_level.sum(1).mean()


def _normal(*key: object) -> float:
    """A standard normal number that belongs to `key`."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    one = (int.from_bytes(digest[:8], "little") + 1) / 2**64
    other = int.from_bytes(digest[8:], "little") / 2**64
    return float(np.sqrt(-2 * np.log(one)) * np.cos(2 * np.pi * other))


def _drafter_number(settings: Settings) -> int:
    return int((settings.drafter or "d-1")[1:])


def _shape(settings: Settings) -> Shape:
    return (settings.num_steps or 0, settings.eagle_topk or 1, settings.num_draft_tokens or 1)
