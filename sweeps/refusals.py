"""Refusals of speculation: what no server with these speculative settings can do; a rule a function.

Looked at after the rewrites (rewrites.py).  File names in sources are of SGLang's package `srt`.  A rule asks for facts
where the answer depends on them and says nothing while they are unknown.  Not here: rules.py, the first of the rules to
ask; attention backends (backend_refusals.py), what concerns plain servers too (server_refusals.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from sweeps.facts import Facts
from sweeps.rule import (
    BACKENDS,
    DP_ATTENTION,
    HOOK,
    NGRAM_BREADTH,
    PAGE_READS,
    THRESHOLDS,
    TOPK_READS,
    TREE_ALGORITHMS,
    TRIPLE,
    Rule,
    Why,
    arg,
    args,
    beside_dp_attention,
    into,
    listed,
    number,
    page_as_run,
    topk_as_run,
    tree_capacity,
)
from sweeps.settings import ARGS, Settings

REFUSALS: list[Rule[Why]] = []

NEEDS_DRAFTER = ("EAGLE3", "STANDALONE", "DFLASH")
ADAPTIVE_STEPS: Mapping[str, tuple[int, ...]] = {"0.5.17": (0, 1, 3, 7), "0.5.23": (0, 1, 3, 5, 7)}
_BESIDE_DP = "{} does not run beside data-parallel attention"

NGRAM_TOKENS = 12


@into(
    REFUSALS, "algorithm", *TRIPLE, ARGS + "speculative_adaptive", v17=f"{HOOK}:592, 603-606", v23=f"{HOOK}:1160, 1176"
)
def triple_is_whole(s: Settings, _: Facts) -> Why:
    """Some of the three without the others die on an AssertionError or TypeError without a text."""
    if s.algorithm not in TREE_ALGORITHMS or arg(s, "speculative_adaptive"):
        return None
    missing = [name for name in TRIPLE if getattr(s, name) is None]
    if not missing or len(missing) == len(TRIPLE):
        return None
    return f"{s.algorithm} takes num_steps, eagle_topk and num_draft_tokens all together or not at all; missing: {', '.join(missing)}"


@into(REFUSALS, "algorithm", *TRIPLE, v17="speculative/eagle_utils.py:100-110", v23="speculative/eagle_utils.py:100")
def _tree_capacity(s: Settings, _: Facts) -> Why:
    """Unchecked by the server: it loads everything and dies in graph capture, or in its first step."""
    if s.algorithm not in TREE_ALGORITHMS or not (s.num_steps and s.eagle_topk and s.num_draft_tokens):
        return None
    capacity = tree_capacity(s.num_steps, s.eagle_topk)
    if s.num_draft_tokens <= capacity:
        return None
    return f"a tree of {s.num_steps} steps and topk {s.eagle_topk} holds at most {capacity} tokens, not {s.num_draft_tokens}"


@into(
    REFUSALS, "algorithm", *TRIPLE,
    v17="speculative/eagle_worker_common.py:452-457, eagle_utils.py:716", v23="speculative/eagle_worker_common.py:538-543, eagle_utils.py:633",
)  # fmt: skip
def _tree_depth(s: Settings, _: Facts) -> Why:
    """Unchecked by the server: the accepted path, padded to its greatest length, does not fit among the nodes of its tree,
    and the first step dies."""
    if s.algorithm not in TREE_ALGORITHMS or not (s.num_steps and s.eagle_topk and s.num_draft_tokens):
        return None
    if s.eagle_topk == 1 or s.num_draft_tokens > s.num_steps:
        return None
    return f"a tree of {s.num_steps} steps needs room for a path of {s.num_steps + 1} tokens, not {s.num_draft_tokens}"


@into(REFUSALS, "algorithm", "drafter", v17="configs/model_config.py:531-550", v23="configs/model_config.py:531")
def drafter_is_given(s: Settings, facts: Facts) -> Why:
    """Without one the target is loaded a second time as its own drafter and dies."""
    if s.drafter is not None:
        return None
    if s.algorithm in NEEDS_DRAFTER:
        return f"{s.algorithm} needs a drafter"
    if s.algorithm in ("EAGLE", "NEXTN") and facts.bundles_mtp is False:
        return f"{s.algorithm} needs a drafter: {facts.architecture or 'the target'} brings no draft layers of its own"
    return None


@into(
    REFUSALS, "algorithm", *DP_ATTENTION, given=DP_ATTENTION,
    v17=f"{HOOK}:531-539, 749-753", v23=f"{HOOK}:1078-1085, 1367-1372",
)  # fmt: skip
def drafts_beside_dp_attention(s: Settings, _: Facts) -> Why:
    return _BESIDE_DP.format(s.algorithm) if beside_dp_attention(s) and s.algorithm in ("STANDALONE", "NGRAM") else None


@into(REFUSALS, "algorithm", *args("enable_dp_attention"), given=args("enable_dp_attention"), v17=f"{HOOK}:147-155")
def dflash_beside_dp_attention(s: Settings, _: Facts) -> Why:
    """The switch alone: 0.5.17 has no attn_dp_size."""
    parallel = arg(s, "enable_dp_attention")
    return _BESIDE_DP.format(s.algorithm) if parallel and s.algorithm == "DFLASH" else None


@into(
    REFUSALS, "algorithm", *PAGE_READS, *args("speculative_ngram_max_bfs_breadth"), given=("page_size", *BACKENDS),
    v17=f"{HOOK}:738-747", v23=f"{HOOK}:1356-1366",
)  # fmt: skip
def ngram_branches_over_pages(s: Settings, facts: Facts) -> Why:
    breadth = number(s, "speculative_ngram_max_bfs_breadth", NGRAM_BREADTH)
    backend = s.attention_backend or _backend_beside_ngram(facts)
    if s.algorithm != "NGRAM" or breadth <= 1 or backend in (None, "flashinfer"):
        return None
    page = page_as_run(s, facts) or 1
    if page == 1:
        return None
    return f"NGRAM with {breadth} branches and page_size {page} needs flashinfer; or give page_size 1 or server_args.speculative_ngram_max_bfs_breadth 1"


def _backend_beside_ngram(facts: Facts) -> str | None:
    """What SGLang chooses where NGRAM is given without a backend; None: it depends on more than is known.

    server_args.py:5655-5727; arg_groups/model_override_base.py:277-345.
    """
    if facts.gpu is None or facts.attention is None or facts.gpu in ("sm100", "sm103"):
        return None
    if facts.gpu == "sm90":
        return "fa3"
    return "triton" if facts.attention == "mla" else None


@into(
    REFUSALS, "algorithm", "num_draft_tokens", *args("speculative_ngram_external_corpus_path", "speculative_ngram_external_sam_budget"),
    given=args("speculative_ngram_external_corpus_path"), v17=f"{HOOK}:712-729", v23=f"{HOOK}:1332-1349",
)  # fmt: skip
def ngram_corpus_has_a_budget(s: Settings, _: Facts) -> Why:
    if s.algorithm != "NGRAM" or arg(s, "speculative_ngram_external_corpus_path") is None:
        return None
    budget, most = number(s, "speculative_ngram_external_sam_budget", 0), (s.num_draft_tokens or NGRAM_TOKENS) - 1
    if 0 < budget <= most:
        return None
    return f"an external corpus needs server_args.speculative_ngram_external_sam_budget from 1 to num_draft_tokens - 1 = {most}, not {budget}"


@into(
    REFUSALS, "algorithm", "num_draft_tokens", *args("speculative_dflash_block_size"),
    given=args("speculative_dflash_block_size"), v17=f"{HOOK}:193-206", v23=f"{HOOK}:368-381",
)  # fmt: skip
def dflash_has_one_block(s: Settings, _: Facts) -> Why:
    block = number(s, "speculative_dflash_block_size")
    if s.algorithm != "DFLASH" or block is None or (block > 0 and s.num_draft_tokens in (None, block)):
        return None
    return f"the block of DFLASH is num_draft_tokens, {s.num_draft_tokens}; server_args.speculative_dflash_block_size is {block}"


@into(
    REFUSALS, "algorithm", "num_draft_tokens", *args("speculative_draft_window_size"),
    given=args("speculative_draft_window_size"), v17=f"{HOOK}:107-113, 249", v23=f"{HOOK}:201-208, 430",
)  # fmt: skip
def window_holds_the_block(s: Settings, _: Facts) -> Why:
    window = number(s, "speculative_draft_window_size")
    if window is None or not s.speculative:
        return None
    if window <= 0:
        return f"server_args.speculative_draft_window_size is {window}; it must be positive"
    if s.algorithm == "DFLASH" and s.num_draft_tokens is not None and window < s.num_draft_tokens:
        return f"DFLASH drafts {s.num_draft_tokens} tokens in a window of {window}; server_args.speculative_draft_window_size must hold them"
    return None


@into(
    REFUSALS, "algorithm", *args("speculative_draft_sink_size", "speculative_draft_window_size"),
    given=args("speculative_draft_sink_size"), v23=f"{HOOK}:221-235",
)  # fmt: skip
def sink_has_a_window(s: Settings, _: Facts) -> Why:
    sink = number(s, "speculative_draft_sink_size")
    if not s.speculative or sink is None or (sink >= 0 and arg(s, "speculative_draft_window_size") is not None):
        return None
    return (
        f"server_args.speculative_draft_sink_size {sink} must not be negative and needs speculative_draft_window_size"
    )


@into(
    REFUSALS, "algorithm", "num_steps", *args("speculative_adaptive", "speculative_adaptive_config"),
    given=args("speculative_adaptive"), v17=f"{HOOK}:785-791", v23=f"{HOOK}:1416-1421",
)  # fmt: skip
def adapting_starts_at_a_candidate(s: Settings, facts: Facts) -> Why:
    """With SGLang's own candidates; those of a file are the server's to read."""
    if not arg(s, "speculative_adaptive") or arg(s, "speculative_adaptive_config") is not None or s.num_steps is None:
        return None
    steps = ADAPTIVE_STEPS.get(facts.known_version or "", ADAPTIVE_STEPS["0.5.23"])
    return (
        None
        if s.num_steps in steps
        else f"adaptive steps are {listed(steps[1:])}; num_steps {s.num_steps} is none of them"
    )


@into(
    REFUSALS, *TOPK_READS, *args("speculative_use_rejection_sampling", *THRESHOLDS),
    given=args("speculative_use_rejection_sampling"), v17=f"{HOOK}:609-633", v23=f"{HOOK}:1212-1242",
)  # fmt: skip
def rejection_sampling_is_for_chains(s: Settings, facts: Facts) -> Why:
    if s.algorithm not in TREE_ALGORITHMS or not arg(s, "speculative_use_rejection_sampling"):
        return None
    if s.algorithm == "STANDALONE":
        return "rejection sampling is for EAGLE and EAGLE3, not STANDALONE"
    if (topk_as_run(s, facts) or 1) != 1:
        return f"rejection sampling takes eagle_topk 1 only, not {topk_as_run(s, facts)}"
    below = next((name for name in THRESHOLDS if number(s, name, 1.0) != 1.0), None)
    return f"rejection sampling takes no thresholds; server_args.{below} is {arg(s, below)}" if below else None


@into(
    REFUSALS, "algorithm", *args("speculative_use_rejection_sampling", "enable_deterministic_inference"),
    given=args("speculative_use_rejection_sampling"), v17=f"{HOOK}:634-640",
)  # fmt: skip
def rejection_sampling_is_not_deterministic(s: Settings, _: Facts) -> Why:
    both = arg(s, "speculative_use_rejection_sampling") and arg(s, "enable_deterministic_inference")
    if not both or s.algorithm not in TREE_ALGORITHMS:
        return None
    return "rejection sampling and deterministic inference exclude each other"


@into(
    REFUSALS, *TOPK_READS, *args("speculative_use_block_verification"),
    given=args("speculative_use_block_verification"), v23=f"{HOOK}:175-195",
)  # fmt: skip
def block_verification_is_for_chains(s: Settings, facts: Facts) -> Why:
    """It switches rejection sampling on, which takes chains only."""
    if not s.speculative or not arg(s, "speculative_use_block_verification"):
        return None
    if s.algorithm not in ("EAGLE", "EAGLE3", "DFLASH"):
        return f"block verification is for EAGLE, EAGLE3 and DFLASH, not {s.algorithm}"
    return "block verification takes eagle_topk 1 only" if (topk_as_run(s, facts) or 1) > 1 else None


@into(
    REFUSALS, "algorithm", *args("pp_size"), given=args("pp_size"),
    v17="server_args.py:8721-8724", v23="arg_groups/validation_hook.py:119-170",
)  # fmt: skip
def pipeline_does_not_speculate(s: Settings, facts: Facts) -> Why:
    """0.5.23 lets EAGLE through where it is asked for in the environment."""
    if number(s, "pp_size", 1) <= 1 or not s.speculative:
        return None
    if s.algorithm == "EAGLE" and facts.known_version != "0.5.17":
        return None
    return f"{s.algorithm} does not run with pipeline parallelism; server_args.pp_size is {arg(s, 'pp_size')}"


def _lora(s: Settings) -> bool:
    return bool(arg(s, "enable_lora") or arg(s, "lora_paths"))


LORA = args("enable_lora", "lora_paths")


@into(REFUSALS, "algorithm", *LORA, given=LORA, v17="server_args.py:8928-8932", v23="arg_groups/lora_hook.py")
def lora_beside_a_second_model(s: Settings, _: Facts) -> Why:
    return "STANDALONE does not run with LoRA" if s.algorithm == "STANDALONE" and _lora(s) else None


@into(REFUSALS, "algorithm", *LORA, given=LORA, v17="server_args.py:8928-8932")
def lora_speculates_by_ngram_only(s: Settings, _: Facts) -> Why:
    return (
        f"{s.algorithm} does not run with LoRA; NGRAM does"
        if s.algorithm not in ("none", "NGRAM") and _lora(s)
        else None
    )


@into(
    REFUSALS, "algorithm", *args("weight_cache_mode"), given=args("weight_cache_mode"),
    v17="server_args.py:7326", v23="arg_groups/model_path_hook.py:281",
)  # fmt: skip
def weights_are_not_cached(s: Settings, _: Facts) -> Why:
    if not s.speculative or arg(s, "weight_cache_mode") in (None, "off"):
        return None
    return "no speculation with server_args.weight_cache_mode"


UNIFIED = args("enable_unified_memory")


@into(
    REFUSALS, *TOPK_READS, *UNIFIED, given=UNIFIED, v17="server_args.py:7893", v23="arg_groups/kv_cache_hook.py:588-685",
)  # fmt: skip
def unified_memory_takes_chains_only(s: Settings, facts: Facts) -> Why:
    if not s.speculative or not arg(s, "enable_unified_memory"):
        return None
    if s.algorithm in ("EAGLE", "EAGLE3", "DFLASH") and (topk_as_run(s, facts) or 1) == 1:
        return None
    return "unified memory takes chains of EAGLE, EAGLE3 and DFLASH only"


@into(REFUSALS, "algorithm", *UNIFIED, given=UNIFIED, v17="server_args.py:7893")
def unified_memory_does_not_speculate(s: Settings, _: Facts) -> Why:
    return "no speculation with unified memory" if s.speculative and arg(s, "enable_unified_memory") else None


@into(
    REFUSALS, "algorithm", *args("speculative_skip_dp_mlp_sync"), given=args("speculative_skip_dp_mlp_sync"),
    v17=f"{HOOK}:132-136",
)  # fmt: skip
def only_eagle_skips_dp_mlp_sync(s: Settings, _: Facts) -> Why:
    if not arg(s, "speculative_skip_dp_mlp_sync") or s.algorithm in ("none", "EAGLE", "NEXTN"):
        return None
    return f"server_args.speculative_skip_dp_mlp_sync is for EAGLE, not {s.algorithm}"
