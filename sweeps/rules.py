"""Rules: what a server would really run of the settings it is given, and what it cannot run at all.

`settle` rewrites settings the way SGLang does, so that twins share a key before anything is launched; `problems` says
why settings can never run.  Each rule names its source, `file:line` in SGLang 0.5.17 unless it says otherwise; all hold
for 0.5.17 and 0.5.23.  Not here: which values a sweep tries (space.py), what only the hardware or the checkpoint knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeps.settings import Settings

TREE_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE")
NEEDS_DRAFTER = ("EAGLE3", "STANDALONE", "DFLASH")
PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
CHAIN_ONLY_BACKENDS = ("trtllm_mha", "trtllm_mla", "flashmla", "cutedsl_mla", "aiter")
NO_SPECULATION_BACKENDS = ("flex_attention", "hpc_ops")


@dataclass(frozen=True)
class Change:
    """One knob that the server would run with another value."""

    knob: str
    was: object
    now: object
    why: str


@dataclass(frozen=True)
class Settled:
    settings: Settings
    changes: tuple[Change, ...] = ()


def tree_capacity(num_steps: int, eagle_topk: int) -> int:
    """Nodes a draft tree can offer for verification, the root included.

    Candidate scores number topk + (steps-1)*topk² and num_draft_tokens-1 of them are selected
    (speculative/eagle_utils.py:100-110); more raises "selected index k out of range" in graph capture.
    """
    return 1 + eagle_topk + (num_steps - 1) * eagle_topk**2


def settle(settings: Settings) -> Settled:
    """What the server would run.  Total and idempotent: settling settled settings changes nothing."""
    changes: list[Change] = []
    for rule in (_plain_has_no_speculation, _alias, _not_a_parameter, _chain_fills_its_tokens, _tree_has_a_capacity):
        for change in rule(settings):
            changes.append(change)
            settings = settings.replace(**{change.knob: change.now})
    return Settled(settings, tuple(changes))


def problems(settings: Settings) -> list[str]:
    """Why these (settled) settings cannot run; empty when nothing is known against them."""
    return [why for rule in _PROBLEMS if (why := rule(settings)) is not None]


def _plain_has_no_speculation(s: Settings) -> list[Change]:
    if s.speculative:
        return []
    return _cleared(s, list(_SPECULATION), "the plain server does not speculate")


def _alias(s: Settings) -> list[Change]:
    """NEXTN is rewritten to EAGLE before anything reads it (arg_groups/speculative_hook.py:52-60)."""
    if s.algorithm != "NEXTN":
        return []
    return [Change("algorithm", "NEXTN", "EAGLE", "NEXTN is another name of EAGLE")]


def _not_a_parameter(s: Settings) -> list[Change]:
    """NGRAM takes its breadth and depth elsewhere (speculative_hook.py:700-712); DFLASH drafts one block (:176-190)."""
    if s.algorithm == "NGRAM":
        return _cleared(s, ["drafter", "num_steps", "eagle_topk", "draft_attention_backend"], "NGRAM has none")
    if s.algorithm == "DFLASH":
        return _cleared(s, ["num_steps", "eagle_topk"], "DFLASH drafts one block of num_draft_tokens")
    return []


def _chain_fills_its_tokens(s: Settings) -> list[Change]:
    """With topk 1 SGLang replaces num_draft_tokens by num_steps + 1 (speculative_hook.py:657-665)."""
    if s.algorithm not in TREE_ALGORITHMS or s.eagle_topk != 1 or s.num_steps is None:
        return []
    now = s.num_steps + 1
    if s.num_draft_tokens == now:
        return []
    return [Change("num_draft_tokens", s.num_draft_tokens, now, "with eagle_topk 1 it is always num_steps + 1")]


def _tree_has_a_capacity(s: Settings) -> list[Change]:
    if s.algorithm not in TREE_ALGORITHMS or None in (s.num_steps, s.eagle_topk, s.num_draft_tokens):
        return []
    assert s.num_steps is not None
    assert s.eagle_topk is not None
    assert s.num_draft_tokens is not None
    capacity = tree_capacity(s.num_steps, s.eagle_topk)
    if s.num_draft_tokens <= capacity:
        return []
    why = f"a tree of {s.num_steps} steps and topk {s.eagle_topk} holds at most {capacity} tokens"
    return [Change("num_draft_tokens", s.num_draft_tokens, capacity, why)]


def _cleared(s: Settings, names: list[str], why: str) -> list[Change]:
    return [Change(name, getattr(s, name), None, why) for name in names if getattr(s, name) is not None]


_SPECULATION = ("drafter", "num_steps", "eagle_topk", "num_draft_tokens", "draft_attention_backend")


def _triple_is_whole(s: Settings) -> str | None:
    """Two of the three die on an AssertionError without a text (speculative_hook.py:592)."""
    if s.algorithm not in TREE_ALGORITHMS:
        return None
    triple = {"num_steps": s.num_steps, "eagle_topk": s.eagle_topk, "num_draft_tokens": s.num_draft_tokens}
    missing = [name for name, value in triple.items() if value is None]
    if not missing or len(missing) == len(triple):
        return None
    return f"{s.algorithm} takes num_steps, eagle_topk and num_draft_tokens all together or not at all; missing: {', '.join(missing)}"


def _drafter_is_given(s: Settings) -> str | None:
    """Without one the target is loaded a second time as its own drafter and dies (configs/model_config.py:531-550)."""
    if s.algorithm in NEEDS_DRAFTER and s.drafter is None:
        return f"{s.algorithm} needs a drafter"
    return None


def _backend_speculates(s: Settings) -> str | None:
    """server_args.py:5759-5767, layers/attention/attention_registry.py:268."""
    if s.speculative and s.attention_backend in NO_SPECULATION_BACKENDS:
        return f"{s.attention_backend} refuses every speculative algorithm"
    return None


def _backend_takes_trees(s: Settings) -> str | None:
    """speculative_hook.py:603-606, 667-681; flashmla_backend.py:577; aiter_backend.py:742."""
    if s.algorithm not in TREE_ALGORITHMS or s.eagle_topk in (None, 1):
        return None
    if s.attention_backend in CHAIN_ONLY_BACKENDS:
        return f"{s.attention_backend} takes eagle_topk 1 only"
    if s.page_size not in (None, 1) and s.attention_backend not in (None, *PAGED_TREE_BACKENDS):
        return f"eagle_topk {s.eagle_topk} with page_size {s.page_size} needs one of {', '.join(PAGED_TREE_BACKENDS)}"
    return None


_PROBLEMS: tuple[Callable[[Settings], str | None], ...] = (
    _triple_is_whole, _drafter_is_given, _backend_speculates, _backend_takes_trees,
)  # fmt: skip
