"""The settings that are asked about: products over the knobs, on pretended GPUs, for targets of both kinds of attention."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sweeps.settings import Settings

GPUS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120")
PAIRS = (("gqa", "gqa"), ("mla", "gqa"), ("mla", "mla"))
"""Attention of the target and of the drafter."""
BACKENDS = (
    None, "triton", "torch_native", "flex_attention", "dsa", "dsv4", "cutlass_mla", "fa3", "fa4", "flashinfer",
    "flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "trtllm_mha", "dual_chunk_flash_attn", "hpc_ops",
    "aiter", "wave", "intel_amx", "ascend", "intel_xpu", "made_up",
)  # fmt: skip
"""All of 0.5.17's, and one that no version has."""
COMMON_BACKENDS = (None, "fa3", "fa4", "flashinfer", "triton", "trtllm_mha", "trtllm_mla")
DRAFT_BACKENDS = (None, "fa3", "fa4", "flashinfer", "triton", "trtllm_mha", "torch_native", "flex_attention", "wave")
SHAPES = ((None, None, None), (3, 1, 4), (1, 1, 2), (3, 4, 8), (1, 4, 4))
TREES = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE")

ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"enable_mixed_chunk": True},
    {"disable_overlap_schedule": True},
    {"disable_radix_cache": True},
    {"chunked_prefill_size": 2048},
    {"chunked_prefill_size": 100},
    {"chunked_prefill_size": -1},
    {"kv_cache_dtype": "fp8_e4m3"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"prefill_attention_backend": "fa3"},
    {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "triton"},
    {"decode_attention_backend": "trtllm_mha"},
    {"speculative_attention_mode": "decode"},
    {"speculative_adaptive": True},
    {"speculative_use_rejection_sampling": True},
    {"speculative_use_rejection_sampling": True, "speculative_accept_threshold_acc": 0.9},
    {"speculative_use_rejection_sampling": True, "enable_deterministic_inference": True},
    {"speculative_accept_threshold_single": 0.9},
    {"speculative_ngram_max_bfs_breadth": 1},
    {"speculative_ngram_max_bfs_breadth": 4},
    {"speculative_dflash_block_size": 8},
    {"speculative_dflash_block_size": -1},
    {"speculative_draft_window_size": 4},
    {"speculative_draft_window_size": -1},
    {"speculative_use_block_verification": True},
    {"speculative_skip_dp_mlp_sync": True},
    {"speculative_token_map": "/nowhere/map.pt"},
    {"enable_dp_attention": True, "dp_size": 2},
    {"pp_size": 2},
    {"pp_size": 2, "disable_overlap_schedule": True},
    {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": "all"},
    {"enable_multi_layer_eagle": True},
    {"enable_torch_compile": True, "disable_cuda_graph_padding": True},
    {"cuda_graph_max_bs": 16},
    {"cuda_graph_max_bs_decode": 16},
    {"enable_unified_memory": True},
    {"num_continuous_decode_steps": 2},
    {"schedule_policy": "lpm"},
    {"stream_interval": 8},
)
"""Passed through under SGLang's own names."""


@dataclass(frozen=True)
class Case:
    """Settings of a launch on a kind of GPU; `target` names the target's kind of attention."""

    gpu: str
    target: str
    settings: Settings

    @property
    def drafter(self) -> str | None:
        return self.settings.drafter


def case(gpu: str, target: str, drafter: str, algorithm: str, shape: tuple[Any, Any, Any], **knobs: Any) -> Case:
    """For STANDALONE and DFLASH the drafter is the small language model: only its config is read."""
    steps, topk, tokens = shape
    if algorithm in ("STANDALONE", "DFLASH"):
        drafter = "small"
    values = {
        "algorithm": algorithm, "drafter": None if algorithm in ("none", "NGRAM") else drafter, "num_steps": steps,
        "eagle_topk": topk, "num_draft_tokens": tokens, **knobs,
    }  # fmt: skip
    if algorithm == "none":
        values |= {"num_steps": None, "eagle_topk": None, "num_draft_tokens": None}
    return Case(gpu, target, Settings.from_dict(values))


def common_grid() -> Iterator[Case]:
    """The 192 points of steps 1–8 × topk 1, 2, 4, 8 × tokens 2 … 64."""
    for shape in itertools.product(range(1, 9), (1, 2, 4, 8), (2, 4, 8, 16, 32, 64)):
        yield case("sm90", "gqa", "gqa", "EAGLE3", shape, attention_backend="flashinfer", page_size=1)


def triples() -> Iterator[Case]:
    """Whole, partial and absent triples of every algorithm."""
    shapes = list(itertools.product((None, 1, 3, 7), (None, 1, 2, 8), (None, 2, 4, 9, 64)))
    for gpu, (target, drafter), algorithm, shape in itertools.product(
        ("sm90", "sm100"), PAIRS, (*TREES, "NGRAM", "DFLASH", "none"), shapes
    ):
        yield case(gpu, target, drafter, algorithm, shape)


def without_drafter() -> Iterator[Case]:
    for target, algorithm, shape in itertools.product(("gqa", "mla"), (*TREES, "DFLASH"), SHAPES):
        given = case("sm90", target, "gqa", algorithm, shape)
        yield Case(given.gpu, given.target, given.settings.replace(drafter=None))


def backends() -> Iterator[Case]:
    """Every attention backend on every kind of GPU, plain and with chains and trees."""
    for gpu, (target, drafter), backend, page in itertools.product(GPUS, PAIRS, BACKENDS, (None, 1, 16, 64, 128)):
        knobs = {"attention_backend": backend, "page_size": page}
        for shape in SHAPES:
            yield case(gpu, target, drafter, "EAGLE3", shape, **knobs)
        for algorithm, shape in (("none", SHAPES[0]), ("NGRAM", SHAPES[0]), ("DFLASH", (None, None, 8))):
            yield case(gpu, target, drafter, algorithm, shape, **knobs)


def draft_backends() -> Iterator[Case]:
    for gpu, (target, drafter), backend, of_draft, page, shape in itertools.product(
        GPUS, PAIRS, COMMON_BACKENDS, DRAFT_BACKENDS, (None, 64), SHAPES[1:]
    ):
        knobs = {"attention_backend": backend, "draft_attention_backend": of_draft, "page_size": page}
        yield case(gpu, target, drafter, "EAGLE3", shape, **knobs)


def arguments() -> Iterator[Case]:
    """Arguments that are passed through, one group at a time."""
    for gpu, (target, drafter), given, algorithm, page in itertools.product(
        ("sm90", "sm120"), PAIRS[::2], ARGUMENTS, (*TREES, "NGRAM", "DFLASH", "none"), (None, 64)
    ):
        for shape in SHAPES if algorithm in TREES else SHAPES[:1]:
            yield case(gpu, target, drafter, algorithm, shape, page_size=page, server_args=given, tp_size=2)


def limits() -> Iterator[Case]:
    """What the target's geometry and the load have to do with it."""
    for tp, running, graphs, target in itertools.product((1, 2, 3, 4, 8), (None, 1, 32), (True, False), ("gqa", "mla")):
        for algorithm in ("none", "EAGLE3", "NGRAM", "STANDALONE"):
            knobs = {"tp_size": tp, "max_running_requests": running, "cuda_graph": graphs}
            yield case("sm90", target, target, algorithm, (3, 1, 4) if algorithm in TREES else SHAPES[0], **knobs)


FAMILIES = (common_grid, triples, without_drafter, limits, draft_backends, arguments, backends)


def all_cases() -> list[Case]:
    return list(dict.fromkeys(one for family in FAMILIES for one in family()))


def some_cases(count: int, seed: int = 20261129) -> list[Case]:
    """The common grid, and of each other family as many as share `count`; always the same ones."""
    draw = random.Random(seed)  # noqa: S311
    share = (count - 192) // (len(FAMILIES) - 1)
    drawn = list(common_grid())
    for family in FAMILIES[1:]:
        members = list(dict.fromkeys(family()))
        drawn += draw.sample(members, min(len(members), share))
    return list(dict.fromkeys(drawn))
