"""The command line: SGLang 0.5.17's flags, parsed and rewritten as SGLang does before a GPU is touched.

Not here: what a launch's values cost or gain (model.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.simulator.model import Launch
from orchestrator.simulator.profile import Profile

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
LLAMA_LIKE = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")
"""Targets for which SGLang's automatic triple is (5, 4, 8); for all others it is (3, 1, 4).

Not taken from `sweeps` on purpose: two readings of SGLang, each a witness against the other.
"""
TREE_PAGE_BACKENDS = ("flashinfer", "fa3", "triton")
DEFAULT_RUNNING_REQUESTS = 48
"""What SGLang sets with speculation when --max-running-requests is not given."""

_TEXT = (
    "model_path", "tokenizer_path", "served_model_name", "load_format", "quantization", "kv_cache_dtype", "revision",
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend",
    "grammar_backend", "schedule_policy", "log_level_http", "chat_template", "download_dir", "device",
    "speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision",
    "speculative_draft_load_format", "speculative_draft_attention_backend", "speculative_draft_model_quantization",
    "speculative_token_map", "json_model_override_args", "dist_init_addr", "moe_runner_backend",
)  # fmt: skip
_WHOLE = (
    "context_length", "max_running_requests", "max_total_tokens", "cuda_graph_max_bs_decode", "nccl_port",
    "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "random_seed",
    "prefill_max_requests", "dist_timeout", "soft_watchdog_timeout", "speculative_draft_window_size",
)  # fmt: skip
_SWITCHES = (
    "trust_remote_code", "skip_tokenizer_init", "disable_cuda_graph", "disable_decode_cuda_graph",
    "disable_prefill_cuda_graph", "disable_cuda_graph_padding", "enable_metrics", "disable_radix_cache",
    "incremental_streaming_output", "skip_server_warmup", "disable_overlap_schedule", "enable_mixed_chunk",
    "enable_torch_compile", "disable_custom_all_reduce", "disable_flashinfer_autotune", "log_requests",
    "enable_deterministic_inference", "enable_cache_report", "speculative_use_rejection_sampling",
    "speculative_adaptive", "enable_dp_attention",
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1", "port": 30000, "dtype": "auto", "mem_fraction_static": None, "tp_size": 1, "dp_size": 1,
    "pp_size": 1, "ep_size": 1, "page_size": None, "chunked_prefill_size": 8192, "max_prefill_tokens": 16384,
    "schedule_conservativeness": 1.0, "decode_log_interval": 40, "log_level": "info", "weight_version": "default",
    "sampling_defaults": "model", "stream_interval": 1, "num_continuous_decode_steps": 1, "watchdog_timeout": 300.0,
    "base_gpu_id": 0, "gpu_id_step": 1, "nnodes": 1, "node_rank": 0, "speculative_attention_mode": "prefill",
    "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0,
    "speculative_ngram_min_bfs_breadth": 1, "speculative_ngram_max_bfs_breadth": 10,
    "speculative_ngram_match_type": "BFS", "speculative_ngram_max_trie_depth": 18,
    "speculative_ngram_capacity": 10_000_000, "torch_compile_max_bs": 32,
}  # fmt: skip
_TYPES = {"mem_fraction_static": float, "page_size": int}
_ALIASES = {
    "model_path": ("--model",),
    "tp_size": ("--tensor-parallel-size", "--tp"),
    "speculative_draft_model_path": ("--speculative-draft-model",),
    "cuda_graph_max_bs_decode": ("--cuda-graph-max-bs",),
}


class LaunchRefused(Exception):  # noqa: N818 - not an error of ours: what SGLang would say
    """SGLang would stop before any GPU work, exit code 1; `cause` is the class it raises, e.g. ValueError."""

    def __init__(self, cause: str, message: str = "") -> None:
        self.cause = cause
        super().__init__(f"{cause}: {message}" if message else cause)


@dataclass(frozen=True)
class ServerArgs:
    """Resolved arguments by SGLang's own names, and the simulator's own."""

    values: Mapping[str, Any]
    launch: Launch
    faults: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __str__(self) -> str:
        return "ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in self.values.items()) + ")"


def parser() -> argparse.ArgumentParser:
    """Unknown flags end the process with code 2; unambiguous abbreviations are taken, as SGLang's own parser does."""
    flags = argparse.ArgumentParser(prog="sglang serve", description="A simulated server with SGLang's words.")
    for name in _TEXT:
        flags.add_argument(*_names(name), required=name == "model_path")
    for name in _WHOLE:
        flags.add_argument(*_names(name), type=int)
    for name in _SWITCHES:
        flags.add_argument(*_names(name), action="store_true")
    for name, default in _DEFAULTS.items():
        flags.add_argument(*_names(name), type=_TYPES.get(name, type(default)), default=default)
    flags.add_argument("--sim-profile", required=True, help="a profile of conf/profiles by name, or a file")
    flags.add_argument("--sim-fault", action="append", default=[], help="see orchestrator/simulator/faults.py")
    return flags


def known_arguments() -> frozenset[str]:
    """The names that its parser takes, as `server_args:` writes them."""
    names = (*_TEXT, *_WHOLE, *_SWITCHES, *_DEFAULTS)
    aliases = (flag.removeprefix("--").replace("-", "_") for flags in _ALIASES.values() for flag in flags)
    return frozenset((*names, *aliases, "sim_fault"))


def _names(name: str) -> list[str]:
    return ["--" + name.replace("_", "-"), *_ALIASES.get(name, ())]


def resolve(given: argparse.Namespace, profile: Profile) -> ServerArgs:
    """SGLang's rewrites and refusals (0.5.17, `handle_speculative_decoding` and the backend rules).

    Raises:
        LaunchRefused: SGLang would refuse these values together.
    """
    values = {name: value for name, value in vars(given).items() if not name.startswith("sim_")}
    values["tokenizer_path"] = values["tokenizer_path"] or values["model_path"]
    values["served_model_name"] = values["served_model_name"] or values["model_path"]
    _choose_backend(values, profile)
    values["page_size"] = values["page_size"] or 1
    drafter = None
    if values["speculative_algorithm"] is not None:
        drafter = _speculation(values, profile)
    return ServerArgs(values, _launch(values, drafter), tuple(given.sim_fault))


def _choose_backend(values: dict[str, Any], profile: Profile) -> None:
    topk, page = values["speculative_eagle_topk"], values["page_size"]
    simple = topk is None or (topk == 1 and page in (None, 1))
    chosen = values["attention_backend"] or (
        profile.default_attention_backend if simple else profile.default_tree_attention_backend
    )
    known = ", ".join(profile.attention_backends)
    if chosen not in profile.attention_backends:
        raise LaunchRefused(
            "ValueError",
            f"Attention backend {chosen!r} is not supported on {profile.gpu_name}. Please use one of: {known}.",
        )
    values["attention_backend"] = chosen


def _speculation(values: dict[str, Any], profile: Profile) -> str | None:
    algorithm = values["speculative_algorithm"] = str(values["speculative_algorithm"]).upper()
    if algorithm not in ALGORITHMS:
        raise LaunchRefused("ValueError", f"Unknown speculative algorithm name: {algorithm}")
    if algorithm == "NEXTN":
        values["speculative_algorithm"] = "EAGLE"
    if values["max_running_requests"] is None:
        values["max_running_requests"] = DEFAULT_RUNNING_REQUESTS
    values["enable_mixed_chunk"] = False
    if algorithm == "NGRAM":
        _ngram(values, profile)
        return None
    drafter = _drafter(values, profile)
    _triple(values, profile)
    return drafter


def _ngram(values: dict[str, Any], profile: Profile) -> None:
    if profile.ngram is None:
        raise LaunchRefused("ValueError", f"Profile {profile.name} does not say what NGRAM does.")
    values["speculative_draft_model_path"] = None
    values["speculative_eagle_topk"] = values["speculative_ngram_max_bfs_breadth"]
    if values["speculative_num_draft_tokens"] is None:
        values["speculative_num_draft_tokens"] = 12
    if values["speculative_num_steps"] is None:
        values["speculative_num_steps"] = values["speculative_num_draft_tokens"] // values["speculative_eagle_topk"]
    topk, page, backend = values["speculative_eagle_topk"], values["page_size"], values["attention_backend"]
    if topk > 1 and page > 1 and backend != "flashinfer":
        raise LaunchRefused(
            "ValueError",
            f"speculative_eagle_topk({topk}) > 1 with page_size({page}) > 1 is unstable and produces incorrect results "
            "for paged attention backends. This combination is only supported for the 'flashinfer' backend.",
        )


def _drafter(values: dict[str, Any], profile: Profile) -> str | None:
    path = values["speculative_draft_model_path"]
    if path is None:
        return None
    values["speculative_draft_model_revision"] = values["speculative_draft_model_revision"] or "main"
    name = str(path).rstrip("/").rpartition("/")[2]
    if name not in profile.drafters:
        raise LaunchRefused(
            "OSError",
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. Use `repo_type` argument if "
            f"needed. (Drafters of profile {profile.name}: {', '.join(profile.drafters)}.)",
        )
    return name


def _triple(values: dict[str, Any], profile: Profile) -> None:
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    steps, topk, tokens = (values[name] for name in names)
    if steps is None:
        if topk is not None or tokens is not None:
            raise LaunchRefused("AssertionError")
        llama = profile.target.architecture in LLAMA_LIKE and values["speculative_algorithm"] != "STANDALONE"
        steps, topk, tokens = (5, 4, 8) if llama else (3, 1, 4)
    if topk is None:
        raise LaunchRefused("TypeError", "'>' not supported between instances of 'NoneType' and 'int'")
    if topk == 1:
        tokens = steps + 1
    if topk > 1 and tokens is None:
        raise LaunchRefused("TypeError", "unsupported operand type(s) for -: 'NoneType' and 'int'")
    if min(steps, topk) < 1 or tokens < 2:
        raise LaunchRefused(
            "ValueError", f"steps {steps}, topk {topk}, tokens {tokens}: the simulator needs 1, 1 and 2 at least."
        )
    values.update(zip(names, (steps, topk, tokens), strict=True))
    _tree_backend(values, profile)


def _tree_backend(values: dict[str, Any], profile: Profile) -> None:
    backend = values["attention_backend"]
    if values["speculative_eagle_topk"] == 1:
        return
    if not profile.attention_backends[backend].trees:
        raise LaunchRefused("ValueError", f"{backend} backend only supports topk = 1 for speculative decoding.")
    if values["page_size"] > 1 and backend not in TREE_PAGE_BACKENDS:
        raise LaunchRefused(
            "ValueError",
            f"speculative_eagle_topk > 1 with page_size > 1 is only supported on {TREE_PAGE_BACKENDS}; "
            f"got attention_backend='{backend}'. Use page_size == 1 or one of those backends.",
        )


def _launch(values: Mapping[str, Any], drafter: str | None) -> Launch:
    graph = not (values["disable_cuda_graph"] or values["disable_decode_cuda_graph"])
    common: dict[str, Any] = {
        "attention_backend": values["attention_backend"],
        "cuda_graph": graph,
        "tp_size": values["tp_size"],
    }
    if values["speculative_algorithm"] is None:
        return Launch(**common)
    return Launch(
        algorithm=values["speculative_algorithm"],
        drafter=drafter,
        num_steps=values["speculative_num_steps"],
        eagle_topk=values["speculative_eagle_topk"],
        num_draft_tokens=values["speculative_num_draft_tokens"],
        **common,
    )
