"""The performance model: how many drafts are right, how long a step takes, what fits in memory.  Pure functions of a profile.

Acceptance follows the identity E[tokens a step] = 1 + sum over tree nodes of P(node lies on the true path)
(Sequoia, EAGLE-2; with topk 1 it is Leviathan's chain with position-dependent rates).  Step time is a roofline in the
number of verified tokens plus overheads (SmartSpec, MagicDec).  Acceptance does not depend on the load.
Not here: batching (scheduler.py) and the numbers (profile.py, conf/profiles).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from orchestrator.simulator.profile import Acceptance, Backend, Drafter, Memory, Profile, StepTime

CONTEXTS = ((-2.857, 0.011257), (-1.3556, 0.222076), (0.0, 0.533333), (1.3556, 0.222076), (2.857, 0.011257))
"""Nodes and weights of the 5-point Gauss-Hermite rule for a standard normal: the kinds of context a step may meet."""

UNMATCHED = Acceptance(logit=-4.5, depth_slope=0.0, context_spread=0.3, prompt_spread=0.1)
"""An EAGLE-3 head launched as EAGLE: it is fed the wrong hidden state; acceptance lengths of 1.01 to 1.03 were measured."""


@dataclass(frozen=True)
class Launch:
    """What of a launch decides its speed: resolved values, as the server runs them."""

    algorithm: str = "none"
    drafter: str | None = None
    num_steps: int = 0
    eagle_topk: int = 1
    num_draft_tokens: int = 1
    attention_backend: str | None = None
    """None: the profile's own choice."""
    cuda_graph: bool = True
    tp_size: int | None = None
    """None: the profile's reference."""

    @property
    def speculative(self) -> bool:
        return self.algorithm != "none"

    @property
    def depth(self) -> int:
        """The longest run of drafts one verify step can accept."""
        return min(self.num_draft_tokens - 1, 18) if self.algorithm == "NGRAM" else self.num_steps


def largest_tree(steps: int, topk: int) -> int:
    """Tokens of the fullest tree, the root included: 1 + topk + (steps - 1) * topk^2 (SGLang's candidate list).

    Written here as well as in `sweeps` on purpose: the tests of its rules call this one as a witness of its own.
    """
    return 1 + topk + (steps - 1) * topk * topk


@lru_cache(maxsize=4096)
def survival(acceptance: Acceptance, steps: int, topk: int, tokens: int, shift: float = 0.0) -> tuple[float, ...]:
    """P(at least j drafts of a verify step are right), j = 1 … steps.

    In a context z (a standard normal, five kinds of it) the guess at depth j is right with
        a_j = sigmoid(logit + depth_slope * ln j + context_spread * z + shift),
    and the guess of rank r there with (1 - (1 - a_j)^(r^e)) - (1 - (1 - a_j)^((r-1)^e)), e = rank_exponent: topk guesses
    cover 1 - (1 - a_j)^(topk^e).  As in EAGLE-2 each level keeps the topk likeliest paths, every kept path has topk
    children, and of all candidates the likeliest `tokens - 1` are verified.  The exact path is unique, so the chance to
    get j deep is the sum over the verified nodes of that depth.
    """
    totals = [0.0] * steps
    for z, weight in CONTEXTS:
        for depth, share in enumerate(_tree(acceptance, steps, topk, tokens, acceptance.context_spread * z + shift)):
            totals[depth] += weight * share * acceptance.gate
    return tuple(totals)


def _tree(acceptance: Acceptance, steps: int, topk: int, tokens: int, shift: float) -> list[float]:
    candidates: list[tuple[float, int]] = []
    beam = [1.0]
    for depth in range(steps):
        ranks = _ranks(acceptance, depth + 1, topk, shift)
        level = [path * rank for path in beam for rank in ranks]
        candidates += [(probability, depth) for probability in level]
        beam = heapq.nlargest(topk, level)
    shares = [0.0] * steps
    for probability, depth in heapq.nlargest(tokens - 1, candidates, key=lambda node: node[0]):
        shares[depth] += probability
    return shares


def _ranks(acceptance: Acceptance, depth: int, topk: int, shift: float) -> list[float]:
    miss = 1.0 / (1.0 + math.exp(acceptance.logit + acceptance.depth_slope * math.log(depth) + shift))
    covered = [1.0 - miss ** (rank**acceptance.rank_exponent) if rank else 0.0 for rank in range(topk + 1)]
    return [covered[rank + 1] - covered[rank] for rank in range(topk)]


def weights_ms(step: StepTime, tokens: float) -> float:
    """A smooth roofline: reading the weights (and the experts that `tokens` wake), or arithmetic, whichever is longer.

    (memory^p + arithmetic^p)^(1/p), arithmetic = weights_ms * tokens / knee_tokens, p = sharpness.  A mixture of experts
    wakes 1 - (1 - expert_share)^(tokens^expert_exponent) of its experts.
    """
    woken = 1.0 - (1.0 - step.expert_share) ** (tokens**step.expert_exponent) if step.experts_ms else 0.0
    memory = step.weights_ms + step.experts_ms * woken
    arithmetic = (step.weights_ms + step.experts_ms * step.expert_share) * tokens / step.knee_tokens
    power = step.sharpness
    return float((memory**power + arithmetic**power) ** (1.0 / power))


@dataclass(frozen=True)
class Performance:
    """The model for one launch of one profile."""

    profile: Profile
    launch: Launch

    @cached_property
    def drafter(self) -> Drafter | None:
        if self.launch.algorithm == "NGRAM":
            return self.profile.ngram
        return self.profile.drafters[self.launch.drafter] if self.launch.drafter else None

    @cached_property
    def acceptance(self) -> Acceptance | None:
        """None on a plain server."""
        if self.drafter is None:
            return None
        mistaken = self.drafter.algorithm == "EAGLE3" and self.launch.algorithm in ("EAGLE", "NEXTN")
        return UNMATCHED if mistaken else self.drafter.acceptance

    @cached_property
    def backend(self) -> Backend:
        tree = self.launch.eagle_topk > 1
        chosen = self.launch.attention_backend or (
            self.profile.default_tree_attention_backend if tree else self.profile.default_attention_backend
        )
        return self.profile.attention_backends[chosen]

    def survival(self, level: float = 0.0) -> tuple[float, ...]:
        """For a prompt whose log-odds lie `level` off the middling ones; empty on a plain server."""
        if self.acceptance is None:
            return ()
        launch = self.launch
        return survival(
            self.acceptance, launch.depth, launch.eagle_topk, launch.num_draft_tokens, round(level * 20) / 20
        )

    def acceptance_length(self, level: float = 0.0) -> float:
        """Mean tokens a step, the bonus token included; 1 on a plain server."""
        return 1.0 + sum(self.survival(level))

    def mean_acceptance_length(self) -> float:
        """`acceptance_length` over all prompts: total tokens over total steps (harmonic, as long answers are alike)."""
        if self.acceptance is None:
            return 1.0
        spread = self.acceptance.prompt_spread
        return 1.0 / sum(weight / self.acceptance_length(spread * z) for z, weight in CONTEXTS)

    def decode_ms(self, batch: int, kv_tokens: float = 0.0) -> float:
        """One decode step of a plain server, or one draft-and-verify step.

        plain  = fixed + requests + weights(batch) + kv
        verify = fixed + requests + weights(batch * num_draft_tokens) + kv + verify costs + tree costs + drafting
        drafting = num_steps * (step_ms + token_ms * batch * topk); times the backend's factors.
        """
        step, launch = self.profile.step, self.launch
        tokens = batch * launch.num_draft_tokens
        shrink = self.profile.tp_size / (launch.tp_size or self.profile.tp_size)
        body = step.fixed_ms + step.request_ms * batch + shrink * weights_ms(step, tokens)
        body += shrink * step.kv_ms_per_ktoken * kv_tokens / 1000.0
        if launch.speculative:
            body = (body + self._verify_ms(batch)) * self.backend.verify + self._draft_ms(batch)
        if launch.eagle_topk > 1:
            body *= self.backend.tree
        return body * self.backend.decode * (1.0 if launch.cuda_graph else step.no_graph_factor)

    def _verify_ms(self, batch: int) -> float:
        step, launch = self.profile.step, self.launch
        tokens = batch * launch.num_draft_tokens
        extra = step.verify_ms + step.verify_request_ms * batch + step.verify_token_ms * tokens
        if launch.eagle_topk > 1:
            extra += step.tree_ms + step.tree_token_ms * tokens
        if launch.depth == 1:
            extra += step.one_step_ms
        return extra

    def _draft_ms(self, batch: int) -> float:
        if self.drafter is None:
            return 0.0
        steps = 1 if self.launch.algorithm == "NGRAM" else self.launch.num_steps
        return steps * (self.drafter.step_ms + self.drafter.token_ms * batch * self.launch.eagle_topk)

    def prefill_ms(self, tokens: int, requests: int) -> float:
        """One prefill batch of `tokens` prompt tokens that are not cached."""
        step = self.profile.step
        return step.prefill_ms + step.prefill_token_ms * tokens + step.prefill_request_ms * requests

    def output_tok_s(self, concurrency: int, kv_tokens_per_request: float = 200.0) -> float:
        """Steady decoding at `concurrency`, prefill and noise left out."""
        step_ms = self.decode_ms(concurrency, concurrency * kv_tokens_per_request)
        return 1000.0 * concurrency * self.mean_acceptance_length() / step_ms


@dataclass(frozen=True)
class MemoryUse:
    """GiB on each GPU, and what is left for the KV cache."""

    weights_gib: float
    drafter_gib: float
    kv_gib: float
    graph_gib: float
    free_gib: float
    """Outside the static share, after the graphs; below 0 the capture fails."""
    kv_tokens: int


def memory_use(profile: Profile, launch: Launch, mem_fraction: float | None, captured_batch: int) -> MemoryUse:
    """How one GPU's memory is shared out: weights + KV inside memory * mem_fraction, graphs in the rest (SGLang's own split)."""
    memory: Memory = profile.memory
    tp = launch.tp_size or profile.tp_size
    drafter = Performance(profile, launch).drafter
    weights, drafter_weights = profile.target.weights_gib / tp, (drafter.weights_gib / tp if drafter else 0.0)
    static = memory.memory_gib * (mem_fraction if mem_fraction is not None else memory.mem_fraction_static)
    kv = static - weights - drafter_weights
    captured = captured_batch * launch.num_draft_tokens if launch.cuda_graph else 0
    graph = memory.graph_gib + memory.graph_gib_per_ktoken * captured / 1000.0 if captured else 0.0
    return MemoryUse(
        weights_gib=weights,
        drafter_gib=drafter_weights,
        kv_gib=max(0.0, kv),
        graph_gib=graph,
        free_gib=memory.memory_gib - static - graph,
        kv_tokens=max(0, int(1000.0 * kv * tp / profile.target.kv_gib_per_ktoken)),
    )
