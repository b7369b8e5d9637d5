"""Refusals that concern plain servers too: arguments of other versions, parallelism, memory, room for the load; and notes.

A note is what a person should know of settings that can run.  File names in sources are of SGLang's package `srt`.  Not
here: rules.py, the first of the rules to ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from sweeps.facts import Facts
from sweeps.rule import (
    DP_ATTENTION,
    HOOK,
    PAGE_READS,
    THRESHOLDS,
    Rule,
    Why,
    arg,
    args,
    beside_dp_attention,
    into,
    number,
    page_as_run,
)
from sweeps.settings import Settings

SERVER_REFUSALS: list[Rule[Why]] = []
NOTES: list[Rule[Why]] = []

ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "0.5.17": (
        "speculative_skip_dp_mlp_sync", "torchao_config", "cuda_graph_tc_compiler", "dsa_prefill_cp_mode",
        "nsa_prefill_cp_mode", "prefill_cp_mode", "elastic_ep_rejoin", "enable_dsa_prefill_context_parallel",
        "enable_nsa_prefill_context_parallel", "enable_prefill_context_parallel", "enable_expert_distribution_metrics",
        "keep_mm_feature_on_device", "enable_breakable_cuda_graph", "disable_piecewise_cuda_graph",
        "enforce_piecewise_cuda_graph", "piecewise_cuda_graph_compiler",
    ),
    "0.5.23": (
        "attn_dp_size", "uno_lora_path", "speculative_use_block_verification", "speculative_draft_kv_cache_dtype",
        "speculative_dsa_topk_backend", "speculative_draft_sink_size", "speculative_domino_candidate_pool_size",
        "speculative_enable_w4a4_mxfp4_megamoe", "startup_weight_load_mode", "prefill_decode_interval",
    ),
}  # fmt: skip
"""Known version → arguments that no other known version has."""
SPECULATIVE_REQUESTS = 48
"""What SGLang sets with speculation when max_running_requests is not given."""


@into(
    SERVER_REFUSALS, *args(*ONLY_IN["0.5.17"], *ONLY_IN["0.5.23"]), given=args(*ONLY_IN["0.5.17"], *ONLY_IN["0.5.23"]),
    v17="server_args.py", v23="arg_groups/fields",
)  # fmt: skip
def argument_of_another_version(s: Settings, facts: Facts) -> Why:
    """The parser of this version does not know it and exits with code 2."""
    for version, names in ONLY_IN.items():
        if facts.known_version not in (None, version):
            foreign = [name for name, _ in s.server_args if name in names]
            if foreign:
                return f"server_args.{foreign[0]}: SGLang {facts.known_version} has no such argument ({version} has)"
    return None


@into(
    SERVER_REFUSALS, *args("disable_cuda_graph_padding", "enable_torch_compile"), given=args("disable_cuda_graph_padding"),
    v17="server_args.py:8710-8720", v23="arg_groups/validation_hook.py:182-190",
)  # fmt: skip
def compiling_needs_padding(s: Settings, _: Facts) -> Why:
    both = arg(s, "disable_cuda_graph_padding") and arg(s, "enable_torch_compile")
    return "enable_torch_compile and disable_cuda_graph_padding exclude each other" if both else None


@into(
    SERVER_REFUSALS, *PAGE_READS, *args("chunked_prefill_size"), *DP_ATTENTION,
    given=args("chunked_prefill_size"), v17="server_args.py:8755-8760", v23="arg_groups/validation_hook.py:240-246",
)  # fmt: skip
def chunks_are_whole_pages(s: Settings, facts: Facts) -> Why:
    chunk, page = arg(s, "chunked_prefill_size"), page_as_run(s, facts)
    if beside_dp_attention(s) or not isinstance(chunk, int) or chunk <= 0 or page is None or chunk % page == 0:
        return None
    return f"server_args.chunked_prefill_size {chunk} is no multiple of page_size {page}"


@into(SERVER_REFUSALS, "tp_size", *DP_ATTENTION, v17="models/llama.py:160-170", v23="models/llama.py")
def heads_divide_among_gpus(s: Settings, facts: Facts) -> Why:
    """With data-parallel attention they divide among fewer, which is left to the server."""
    if s.tp_size == 1 or beside_dp_attention(s):
        return None
    if facts.num_attention_heads is not None and facts.num_attention_heads % s.tp_size:
        return f"{facts.num_attention_heads} attention heads do not divide among tp_size {s.tp_size} GPUs"
    heads = facts.num_kv_heads if facts.attention == "gqa" else None
    if not heads or heads % s.tp_size == 0 or s.tp_size % heads == 0:
        return None
    return f"{heads} KV heads do not divide among tp_size {s.tp_size} GPUs, nor these among them"


@into(
    SERVER_REFUSALS, "mem_fraction_static", "tp_size", *args("quantization", "cpu_offload_gb", "pp_size"),
    given=("mem_fraction_static",), v17="model_executor/pool_configurator.py", v23="model_executor/pool_configurator.py",
)  # fmt: skip
def weights_fit_their_share(s: Settings, facts: Facts) -> Why:
    """The KV cache is what mem_fraction_static leaves beside the weights; a server without room for it dies after loading."""
    if s.mem_fraction_static is None or facts.memory_gib is None or facts.weights_gib is None:
        return None
    if any(arg(s, name) for name in ("quantization", "cpu_offload_gb", "pp_size")):
        return None
    share, weights = s.mem_fraction_static * facts.memory_gib, facts.weights_gib / s.tp_size
    if weights < share:
        return None
    return f"mem_fraction_static {s.mem_fraction_static:g} is {share:.1f} GiB of a GPU; the weights alone take {weights:.1f}"


@into(
    SERVER_REFUSALS, "max_running_requests", given=("max_running_requests",),
    v17="managers/scheduler.py:4183", v23="managers/scheduler_components/internal_state.py:73",
)  # fmt: skip
def requests_have_room(s: Settings, facts: Facts) -> Why:
    """The server would run, and queue: not speculation but waiting would be measured."""
    if s.max_running_requests is None or facts.largest_concurrency is None:
        return None
    if s.max_running_requests >= facts.largest_concurrency:
        return None
    return (
        f"max_running_requests {s.max_running_requests} is below the largest concurrency, {facts.largest_concurrency}"
    )


@into(
    NOTES, "max_running_requests", "algorithm", v17=f"{HOOK}:257, 540, 692", v23=f"{HOOK}:1089, 1296",
)  # fmt: skip
def speculation_limits_requests(s: Settings, facts: Facts) -> Why:
    if not s.speculative or s.max_running_requests is not None:
        return None
    if facts.largest_concurrency is None or facts.largest_concurrency <= SPECULATIVE_REQUESTS:
        return None
    return f"with speculation the server runs {SPECULATIVE_REQUESTS} requests at once unless told otherwise; the largest concurrency is {facts.largest_concurrency}: give max_running_requests"


GRAPH_LIMITS = ("cuda_graph_max_bs_decode", "cuda_graph_bs_decode")
"""Arguments that bound the batch sizes captured: one number, or a list of sizes."""


def _largest(sizes: object) -> int | None:
    """Of a size or a list of sizes; None when they are no numbers (what they are is the server's to say)."""
    numbers = sizes if isinstance(sizes, list | tuple) else [sizes]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
    return max(whole) if whole and len(whole) == len(numbers) else None


@into(
    NOTES, "cuda_graph", *args(*GRAPH_LIMITS), given=args(*GRAPH_LIMITS),
    v17="model_executor/runner/base_cuda_graph_runner.py:61", v23="model_executor/runner/base_cuda_graph_runner.py:61",
)  # fmt: skip
def graphs_reach_the_load(s: Settings, facts: Facts) -> Why:
    if not s.cuda_graph or facts.largest_concurrency is None:
        return None
    for name in GRAPH_LIMITS:
        largest = _largest(arg(s, name))
        if largest is not None and largest < facts.largest_concurrency:
            return f"server_args.{name} {largest} is below the largest concurrency, {facts.largest_concurrency}: above it decoding runs outside CUDA graphs"
    return None


@into(NOTES, "algorithm", *args(*THRESHOLDS), given=args(*THRESHOLDS), v17="speculative/eagle_utils.py:723-819", v23="speculative/eagle_utils.py:487-500, 781")  # fmt: skip
def thresholds_change_the_output(s: Settings, _: Facts) -> Why:
    below = next((name for name in THRESHOLDS if s.speculative and number(s, name, 1.0) < 1.0), None)
    if below is None:
        return None
    return f"server_args.{below} {arg(s, below)} accepts tokens that the target would not have drawn; at temperature 0 it does nothing"
