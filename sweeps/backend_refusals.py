"""Refusals of attention backends: which of them speculate, draft trees, run on which GPUs and serve which targets.

Looked at after the rewrites.  File names in sources are of SGLang's package `srt`.  Not here: rules.py, the first of the
rules to ask; what other arguments refuse (refusals.py, server_refusals.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from sweeps.facts import Facts
from sweeps.rule import (
    BACKENDS,
    HOOK,
    NGRAM_BREADTH,
    PAGE_READS,
    TOPK_READS,
    TREE_ALGORITHMS,
    Rule,
    Why,
    arg,
    args,
    into,
    listed,
    number,
    page_as_run,
    target_backends,
    topk_as_run,
)
from sweeps.settings import Settings

BACKEND_REFUSALS: list[Rule[Why]] = []

COMMON_BACKENDS = (
    "triton", "torch_native", "flex_attention", "dsa", "nsa", "dsv4", "compressed", "fa3", "fa4", "flashinfer", "flashmla",
    "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "trtllm_mha", "hpc_ops", "aiter", "wave", "intel_amx", "ascend",
    "intel_xpu",
)  # fmt: skip
BACKEND_CHOICES: Mapping[str, tuple[str, ...]] = {
    "0.5.17": (*COMMON_BACKENDS, "cutlass_mla", "dual_chunk_flash_attn"),
    "0.5.23": (*COMMON_BACKENDS, "qsa", "llada2_cfg_flashinfer", "minicpm_flashattn", "minicpm_flashinfer"),
}
PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
CHAIN_ONLY_BACKENDS = (
    "trtllm_mha", "trtllm_mla", "tokenspeed_mla", "flashmla", "cutedsl_mla", "dsa", "nsa", "dsv4", "compressed", "aiter",
    "intel_amx",
)  # fmt: skip
NO_SPECULATION_BACKENDS = ("flex_attention", "hpc_ops")
DRAFT_BACKENDS = (
    "flashinfer", "triton", "intel_amx", "intel_xpu", "aiter", "fa3", "fa4", "hybrid_linear_attn", "flashmla", "trtllm_mha",
    "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "dsa", "nsa", "ascend", "dsv4",
)  # fmt: skip
MLA_BACKENDS = ("trtllm_mla", "tokenspeed_mla", "cutedsl_mla", "flashmla", "cutlass_mla", "dsa", "nsa")
NO_MLA_BACKENDS = ("trtllm_mha", "hpc_ops")
BLACKWELL = ("sm100", "sm103", "sm120", "sm121")
TRTLLM_MLA_BY_DEFAULT = (
    "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "LongcatFlashForCausalLM",
    "MistralLarge3ForCausalLM",
)
"""Targets that sm100 serves with trtllm_mla unless told otherwise."""
GPUS_OF: Mapping[str, tuple[str, ...]] = {
    "fa3": ("sm80", "sm86", "sm87", "sm89", "sm90"),
    "trtllm_mha": ("sm90", *BLACKWELL),
    "trtllm_mla": BLACKWELL,
    "tokenspeed_mla": BLACKWELL,
    "cutedsl_mla": ("sm100", "sm103"),
    "hpc_ops": ("sm90",),
    "aiter": (), "wave": (), "intel_amx": (), "intel_xpu": (), "ascend": (),
}  # fmt: skip
"""Backend → generations of GPUs it runs on, none for other makers' hardware; one that is not listed is left to the server."""
KV_TYPES: Mapping[str, tuple[str, ...]] = {
    "trtllm_mla": ("fp8_e4m3", "fp4_e2m1", "bf16", "bfloat16", "auto"),
    "cutedsl_mla": ("fp8_e4m3", "bf16", "bfloat16", "auto"),
}


@into(BACKEND_REFUSALS, *BACKENDS, given=BACKENDS, v17="server_args.py:175-203", v23="arg_groups/choices.py:69-99")
def unknown_backend(s: Settings, facts: Facts) -> Why:
    if facts.known_version is None:
        return None
    choices = BACKEND_CHOICES[facts.known_version]
    strange = sorted(target_backends(s) - set(choices))
    if not strange:
        return None
    meant = difflib.get_close_matches(strange[0], choices, n=1)
    there = f", but {meant[0]!r}" if meant else f"; it has {listed(choices)}"
    return f"SGLang {facts.known_version} has no attention backend {strange[0]!r}{there}"


@into(
    BACKEND_REFUSALS, "algorithm", *BACKENDS, given=BACKENDS, v17="server_args.py:5759-5767, layers/attention/attention_registry.py:268",
    v23="arg_groups/attention_hook.py:141-163, layers/attention/attention_registry.py",
)  # fmt: skip
def backend_speculates(s: Settings, _: Facts) -> Why:
    refusing = target_backends(s) & set(NO_SPECULATION_BACKENDS) if s.speculative else ()
    return f"{min(refusing)} refuses every speculative algorithm" if refusing else None


@into(
    BACKEND_REFUSALS, *TOPK_READS, *BACKENDS, given=BACKENDS,
    v17=f"{HOOK}:603-606, layers/attention/flashmla_backend.py:577, layers/attention/aiter_backend.py:742",
    v23=f"{HOOK}:1176-1179, layers/attention/flashmla_backend.py",
)  # fmt: skip
def backend_takes_chains_only(s: Settings, facts: Facts) -> Why:
    refusing = target_backends(s) & set(CHAIN_ONLY_BACKENDS)
    return f"{min(refusing)} takes eagle_topk 1 only" if refusing and (topk_as_run(s, facts) or 1) > 1 else None


@into(
    BACKEND_REFUSALS, *TOPK_READS, *BACKENDS, given=BACKENDS, v17="layers/attention/flashinfer_mla_backend.py:988",
    v23="layers/attention/flashinfer_mla_backend.py",
)  # fmt: skip
def flashinfer_drafts_no_trees_on_mla(s: Settings, facts: Facts) -> Why:
    """It says so from two steps on; with one it would verify a tree without its mask."""
    if facts.attention != "mla" or "flashinfer" not in target_backends(s) or (topk_as_run(s, facts) or 1) == 1:
        return None
    return "flashinfer takes eagle_topk 1 only on an MLA target"


@into(
    BACKEND_REFUSALS, *TOPK_READS, *BACKENDS, *args("speculative_ngram_max_bfs_breadth"),
    v17="arg_groups/overrides.py:631-642, server_args.py:5705-5727",
    v23="arg_groups/model_overrides/deepseek_v2.py:180-188, arg_groups/model_override_base.py:277-345",
)  # fmt: skip
def sm100_drafts_no_trees_on_mla_unless_told_how(s: Settings, facts: Facts) -> Why:
    """Without a backend it takes flashinfer, or trtllm_mla for DeepSeek's family: neither drafts trees of an MLA target."""
    if facts.gpu not in ("sm100", "sm103") or facts.attention != "mla" or target_backends(s):
        return None
    ngram = s.algorithm == "NGRAM" and facts.architecture in TRTLLM_MLA_BY_DEFAULT
    branches = number(s, "speculative_ngram_max_bfs_breadth", NGRAM_BREADTH) if ngram else topk_as_run(s, facts) or 1
    if branches <= 1:
        return None
    return f"on {facts.gpu} an MLA target has backends for chains only unless another one is given, e.g. attention_backend triton; this drafts {branches} branches"


@into(
    BACKEND_REFUSALS, *TOPK_READS, *PAGE_READS, given=("page_size", *BACKENDS, "draft_attention_backend"),
    v17=f"{HOOK}:667-681", v23=f"{HOOK}:1268-1282",
)  # fmt: skip
def backend_takes_paged_trees(s: Settings, facts: Facts) -> Why:
    topk, page = topk_as_run(s, facts) or 1, page_as_run(s, facts) or 1
    if topk == 1 or page == 1 or s.attention_backend in (None, *PAGED_TREE_BACKENDS):
        return None
    return f"eagle_topk {topk} with page_size {page} needs one of {listed(PAGED_TREE_BACKENDS)}"


@into(
    BACKEND_REFUSALS, *BACKENDS, given=BACKENDS, v17="layers/attention/attention_registry.py:215, arg_groups/overrides.py:2060-2110",
    v23="layers/attention/attention_registry.py:244, arg_groups/overrides.py:1200-1256",
)  # fmt: skip
def backend_runs_on_the_gpu(s: Settings, facts: Facts) -> Why:
    for name in sorted(target_backends(s) & GPUS_OF.keys()):
        if facts.gpu is not None and facts.gpu not in GPUS_OF[name]:
            return (
                f"{name} does not run on {facts.gpu}; it runs on {listed(GPUS_OF[name]) or 'hardware of other makers'}"
            )
        if name == "fa3" and facts.attention == "mla" and facts.gpu not in (None, "sm90"):
            return f"fa3 serves an MLA target on sm90 only, not on {facts.gpu}"
    return None


@into(BACKEND_REFUSALS, *BACKENDS, given=BACKENDS, v17="server_args.py:5799-5810")
def trtllm_mha_prefills_on_sm100(s: Settings, facts: Facts) -> Why:
    prefill = arg(s, "prefill_attention_backend") or s.attention_backend
    if prefill != "trtllm_mha" or facts.gpu in (None, "sm100", "sm103"):
        return None
    return f"trtllm_mha prefills on sm100 only, not on {facts.gpu}; give another one as server_args.prefill_attention_backend"


@into(
    BACKEND_REFUSALS, *BACKENDS, given=BACKENDS, v17="layers/attention/attention_registry.py:68-110, 250-270",
    v23="layers/attention/attention_registry.py:90-130, 270-300",
)  # fmt: skip
def backend_serves_the_attention(s: Settings, facts: Facts) -> Why:
    for name in sorted(target_backends(s)):
        if facts.attention == "gqa" and name in MLA_BACKENDS:
            return f"{name} serves MLA targets only; {facts.architecture or 'this target'} is none"
        if facts.attention == "mla" and name in NO_MLA_BACKENDS:
            return f"{name} serves no MLA target; {facts.architecture or 'this target'} is one"
    return None


@into(BACKEND_REFUSALS, *BACKENDS, given=BACKENDS, v17="server_args.py:5850-5854")
def intel_xpu_prefills_no_mla(s: Settings, facts: Facts) -> Why:
    prefill = arg(s, "prefill_attention_backend") or s.attention_backend
    if prefill != "intel_xpu" or facts.attention != "mla":
        return None
    return "intel_xpu decodes MLA targets only; give it as server_args.decode_attention_backend"


@into(
    BACKEND_REFUSALS, *BACKENDS, *args("kv_cache_dtype"), given=args("kv_cache_dtype"),
    v17="arg_groups/overrides.py:2106-2190", v23="arg_groups/overrides.py:1202-1256",
)  # fmt: skip
def backend_reads_the_kv_cache(s: Settings, _: Facts) -> Why:
    kind = arg(s, "kv_cache_dtype")
    for name in sorted(target_backends(s) & KV_TYPES.keys()):
        if kind is not None and kind not in KV_TYPES[name]:
            return f"{name} reads a KV cache of {listed(KV_TYPES[name])}, not of {kind}"
    return None


@into(
    BACKEND_REFUSALS, "algorithm", "attention_backend", "draft_attention_backend",
    given=("attention_backend", "draft_attention_backend"),
    v17="speculative/draft_utils.py:60-125", v23="speculative/draft_utils.py:85-155",
)  # fmt: skip
def backend_drafts(s: Settings, facts: Facts) -> Why:
    """On a GPU: CPU builds differ in what can draft."""
    drafting = s.draft_attention_backend or s.attention_backend
    if s.algorithm not in TREE_ALGORITHMS or facts.gpu is None or drafting in (None, *DRAFT_BACKENDS):
        return None
    return f"{drafting} cannot run a drafter; give another draft_attention_backend, e.g. flashinfer or triton"
