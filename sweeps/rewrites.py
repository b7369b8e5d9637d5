"""Rewrites: what a server silently makes of the settings it is given, a rule a function, in the order they are applied.

One pass reaches the end: no rule has anything left to say of what the pass returns.  File names in sources are of
SGLang's package `srt`.  Not here: what a server refuses (refusals.py), the first of the rules to ask (rules.py).
"""

from __future__ import annotations

from sweeps.facts import Facts
from sweeps.rule import (
    DP_ATTENTION,
    HOOK,
    PAGE_READS,
    TREE_ALGORITHMS,
    TRIPLE,
    Change,
    Rule,
    arg,
    args,
    beside_dp_attention,
    into,
    number,
    snapped_page,
    without_args,
)
from sweeps.settings import ARGS, Settings, knobs

Changes = tuple[Change, ...]
NONE: Changes = ()

REWRITES: list[Rule[Changes]] = []

NO_GRAPHS = ("torch_native", "flex_attention")
RENAMED = {
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "piecewise_cuda_graph_tokens": "cuda_graph_bs_prefill",
    "piecewise_cuda_graph_max_tokens": "cuda_graph_max_bs_prefill",
    "speculative_dflash_draft_window_size": "speculative_draft_window_size",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "nsa_prefill_backend": "dsa_prefill_backend",
    "nsa_decode_backend": "dsa_decode_backend",
    "enable_gdn_replayssm_spec": "enable_linear_replayssm_spec",
    "stream_output": "incremental_streaming_output",
}
"""Old argument → its new name, which both known versions take; 0.5.23 takes the old ones no more."""
NO_ADAPTING_BESIDE = ("enable_multi_layer_eagle", "enable_two_batch_overlap", "enable_pdmux")
ADAPTIVE = ("speculative_adaptive", "speculative_adaptive_config")
ADAPTIVE_START = 3
"""The middle one of the candidate steps that SGLang brings itself, in both versions."""
GRAPH_SIZES = ("cuda_graph_max_bs_decode", "cuda_graph_bs_decode", "cuda_graph_max_bs_prefill", "cuda_graph_bs_prefill")


def speculation_knobs(*but: str) -> tuple[str, ...]:
    """What the plain server does not have, `but` for these; the algorithm itself is what says so."""
    return tuple(knob.name for knob in knobs().values() if knob.scope == "speculation" and knob.name not in ("algorithm", *but))  # fmt: skip


@into(
    REWRITES, *args(*RENAMED), *args(*RENAMED.values()), writes=(*args(*RENAMED), *args(*RENAMED.values())), given=args(*RENAMED),
    v17="server_args.py:8259-8415", v23="gone from server_args.py",
)  # fmt: skip
def argument_has_a_new_name(s: Settings, _: Facts) -> Changes:
    """Where both are given the new one counts: it stands last on the command line."""
    old = [name for name, _ in s.server_args if name in RENAMED]
    if not old:
        return NONE
    now = {RENAMED.get(name, name): value for name, value in sorted(s.server_args, key=lambda pair: pair[0] not in RENAMED)}  # fmt: skip
    why = ", ".join(f"{name} is called {RENAMED[name]} now" for name in old)
    return (Change("server_args", s.server_args, tuple(sorted(now.items())), why),)


@into(REWRITES, "algorithm", writes=("algorithm",), v17=f"{HOOK}:52-60", v23=f"{HOOK}:109-117")
def nextn_is_eagle(s: Settings, _: Facts) -> Changes:
    if s.algorithm != "NEXTN":
        return NONE
    return (Change("algorithm", "NEXTN", "EAGLE", "NEXTN is another name of EAGLE"),)


@into(
    REWRITES,
    "algorithm",
    *speculation_knobs(),
    ARGS + "speculative_*",
    writes=(*speculation_knobs(), ARGS + "speculative_*"),
    v17=f"{HOOK}:122",
    v23=f"{HOOK}:240",
)
def plain_has_no_speculation(s: Settings, _: Facts) -> Changes:
    if s.speculative:
        return NONE
    why = "the plain server does not speculate"
    given = tuple(name for name, _ in s.server_args if name.startswith("speculative_"))
    return (*_cleared(s, speculation_knobs(), why), *without_args(s, given, why))


@into(
    REWRITES, "algorithm", *speculation_knobs("num_draft_tokens"),
    writes=speculation_knobs("num_draft_tokens"), v17=f"{HOOK}:700-712", v23=f"{HOOK}:1308-1331",
)  # fmt: skip
def ngram_has_no_drafter(s: Settings, _: Facts) -> Changes:
    """Its branches are speculative_ngram_max_bfs_breadth, whatever topk says; no drafter is loaded."""
    if s.algorithm != "NGRAM":
        return NONE
    return _cleared(s, speculation_knobs("num_draft_tokens"), "NGRAM has none")


@into(
    REWRITES,
    "algorithm",
    "num_steps",
    "eagle_topk",
    writes=("num_steps", "eagle_topk"),
    v17=f"{HOOK}:176-190",
    v23=f"{HOOK}:339-362",
)
def dflash_has_no_tree(s: Settings, _: Facts) -> Changes:
    if s.algorithm != "DFLASH":
        return NONE
    return _cleared(s, ("num_steps", "eagle_topk"), "DFLASH drafts one block of num_draft_tokens")


@into(
    REWRITES, "algorithm", "num_draft_tokens", *args("speculative_dflash_block_size"),
    writes=("num_draft_tokens", *args("speculative_dflash_block_size")), given=args("speculative_dflash_block_size"), v17=f"{HOOK}:193-206", v23=f"{HOOK}:368-381",
)  # fmt: skip
def dflash_block_is_its_tokens(s: Settings, _: Facts) -> Changes:
    block = number(s, "speculative_dflash_block_size")
    if s.algorithm != "DFLASH" or block is None or block < 2 or s.num_draft_tokens not in (None, block):
        return NONE
    why = "the block of DFLASH is num_draft_tokens"
    filled = () if s.num_draft_tokens == block else (Change("num_draft_tokens", None, block, why),)
    return (*filled, *without_args(s, ("speculative_dflash_block_size",), why))


@into(
    REWRITES, "algorithm", "eagle_topk", *args(*ADAPTIVE, *NO_ADAPTING_BESIDE), *DP_ATTENTION,
    writes=args(*ADAPTIVE), given=args(*ADAPTIVE), v17=f"{HOOK}:756-768, speculative/adaptive_spec_params.py:50-90",
    v23=f"{HOOK}:1374-1390, speculative/adaptive_spec_params.py:56-113",
)  # fmt: skip
def adapting_is_for_chains(s: Settings, _: Facts) -> Changes:
    """Switched off with a warning; a config for it is read by nothing then."""
    if not arg(s, "speculative_adaptive"):
        return without_args(s, ADAPTIVE, "steps are not adapted")
    if s.algorithm not in ("EAGLE", "EAGLE3"):
        return without_args(s, ADAPTIVE, f"{s.algorithm} cannot adapt its steps")
    if s.eagle_topk not in (None, 1):
        return without_args(s, ADAPTIVE, "only chains (eagle_topk 1) adapt their steps")
    beside = next((name for name in NO_ADAPTING_BESIDE if arg(s, name)), None)
    if beside is None and beside_dp_attention(s):
        beside = "data-parallel attention"
    return NONE if beside is None else without_args(s, ADAPTIVE, f"steps are not adapted beside {beside}")


@into(
    REWRITES, "algorithm", "num_steps", "eagle_topk", *args(*ADAPTIVE), writes=("num_steps", "eagle_topk"), given=args("speculative_adaptive"),
    v17=f"{HOOK}:771-793", v23=f"{HOOK}:1393-1428",
)  # fmt: skip
def adapting_starts_somewhere(s: Settings, _: Facts) -> Changes:
    if not arg(s, "speculative_adaptive"):
        return NONE
    why = "where adapting begins unless told otherwise"
    steps, topk = Change("num_steps", None, ADAPTIVE_START, why), Change("eagle_topk", None, 1, why)
    own_config = arg(s, "speculative_adaptive_config") is not None
    return (*(() if s.num_steps or own_config else (steps,)), *(() if s.eagle_topk else (topk,)))


@into(REWRITES, "algorithm", *TRIPLE, writes=("num_draft_tokens",), v17=f"{HOOK}:657-665", v23=f"{HOOK}:1255-1266")
def chain_fills_its_tokens(s: Settings, _: Facts) -> Changes:
    if s.algorithm not in TREE_ALGORITHMS or s.eagle_topk != 1 or s.num_steps is None:
        return NONE
    now = s.num_steps + 1
    if s.num_draft_tokens == now:
        return NONE
    return (Change("num_draft_tokens", s.num_draft_tokens, now, "with eagle_topk 1 it is always num_steps + 1"),)


def _unmixed(s: Settings) -> Changes:
    return without_args(s, ("enable_mixed_chunk",), f"{s.algorithm} switches mixed chunks off")


@into(
    REWRITES, "algorithm", *args("enable_mixed_chunk"), writes=args("enable_mixed_chunk"), given=args("enable_mixed_chunk"),
    v17=f"{HOOK}:546-552, 699", v23=f"{HOOK}:1104-1118, 1302",
)  # fmt: skip
def chunks_are_not_mixed(s: Settings, _: Facts) -> Changes:
    return _unmixed(s) if s.algorithm in ("STANDALONE", "NGRAM") else NONE


@into(
    REWRITES,
    "algorithm",
    *args("enable_mixed_chunk"),
    writes=args("enable_mixed_chunk"),
    given=args("enable_mixed_chunk"),
    v17=f"{HOOK}:546-552",
)
def chunks_are_not_mixed_beside_speculation(s: Settings, _: Facts) -> Changes:
    return _unmixed(s) if s.speculative else NONE


@into(
    REWRITES, "algorithm", *args("speculative_token_map"), writes=args("speculative_token_map"), given=args("speculative_token_map"),
    v17="speculative/eagle_worker_v2.py:262", v23="speculative/eagle_worker_v2.py:326",
)  # fmt: skip
def eagle3_has_its_own_vocabulary(s: Settings, _: Facts) -> Changes:
    if s.algorithm != "EAGLE3":
        return NONE
    return without_args(s, ("speculative_token_map",), "an EAGLE-3 head brings its own d2t")


@into(
    REWRITES, "attention_backend", *args("kv_cache_dtype"), writes=("attention_backend",), given=args("kv_cache_dtype"),
    v17="arg_groups/overrides.py:2190", v23="arg_groups/overrides.py:1262-1270",
)  # fmt: skip
def fa3_takes_no_fp8_e5m2(s: Settings, _: Facts) -> Changes:
    if s.attention_backend != "fa3" or arg(s, "kv_cache_dtype") != "fp8_e5m2":
        return NONE
    return (Change("attention_backend", "fa3", "triton", "fa3 cannot read a KV cache of fp8_e5m2"),)


@into(
    REWRITES, *PAGE_READS, writes=("page_size",), given=("page_size",),
    v17="arg_groups/overrides.py:2031-2105, 2200-2218", v23="arg_groups/overrides.py:1144-1199, 1273-1296",
)  # fmt: skip
def backend_has_its_page_sizes(s: Settings, facts: Facts) -> Changes:
    if s.page_size is None or (now := snapped_page(s, facts)) == s.page_size:
        return NONE
    return (Change("page_size", s.page_size, now, "the attention backend has pages of its own size"),)


@into(
    REWRITES, "attention_backend", "cuda_graph", writes=("cuda_graph",), given=("attention_backend",),
    v17="server_args.py:5745-5767", v23="arg_groups/attention_hook.py:120-163",
)  # fmt: skip
def torch_kernels_have_no_graphs(s: Settings, _: Facts) -> Changes:
    if s.attention_backend not in NO_GRAPHS or not s.cuda_graph:
        return NONE
    return (Change("cuda_graph", True, False, f"{s.attention_backend} runs outside CUDA graphs"),)


@into(
    REWRITES, "cuda_graph", "max_running_requests", ARGS + "*cuda_graph*",
    writes=args(*GRAPH_SIZES), given=args(*GRAPH_SIZES), v17="model_executor/runner/base_cuda_graph_runner.py:61",
    v23="model_executor/runner/base_cuda_graph_runner.py:61, arg_groups/memory_hook.py:90-165",
)  # fmt: skip
def graphs_end_where_requests_end(s: Settings, _: Facts) -> Changes:
    """No graph is captured above max_running_requests, which is also what a launch asks for unless told otherwise."""
    if not s.cuda_graph:
        return without_args(s, GRAPH_SIZES, "there are no CUDA graphs")
    sizes = [name for name, _ in s.server_args if "cuda_graph" in name]
    if sizes != ["cuda_graph_max_bs_decode"] or arg(s, sizes[0]) != s.max_running_requests:
        return NONE
    return without_args(s, GRAPH_SIZES, "graphs reach to max_running_requests anyway")


def _cleared(s: Settings, names: tuple[str, ...], why: str) -> Changes:
    """Back to what they are when nobody gives them, which the class holds."""
    was_and_now = ((name, getattr(s, name), getattr(type(s), name)) for name in names)
    return tuple(Change(name, was, now, why) for name, was, now in was_and_now if was != now)
