"""Rules: SGLang's silent rewrites are made before the launch, and what cannot run never gets there."""

from __future__ import annotations

from itertools import groupby
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator.engines.sglang import SGLang
from sweeps.facts import KNOWN_VERSIONS, Facts, unknown_version
from sweeps.rewrites import RENAMED
from sweeps.rule import Rule, tree_capacity
from sweeps.rules import NOTES, REFUSALS, REWRITES, notes, problems, refusals, rewrites, settle
from sweeps.server_refusals import ONLY_IN
from sweeps.settings import ALGORITHMS, ARGS, Settings, knobs
from tests.fakes.plans import plan

BACKENDS = (
    "fa3", "fa4", "flashinfer", "triton", "trtllm_mha", "trtllm_mla", "cutedsl_mla", "flashmla", "flex_attention", "hpc_ops",
    "torch_native", "aiter", "cutlass_mla", "flashinfr",
)  # fmt: skip
SWITCHES = (
    "enable_mixed_chunk", "speculative_adaptive", "speculative_use_rejection_sampling", "enable_dp_attention",
    "enable_lora", "enable_unified_memory", "enable_torch_compile", "disable_cuda_graph_padding", "stream_output",
    "speculative_use_block_verification", "speculative_skip_dp_mlp_sync", "enable_deterministic_inference",
)  # fmt: skip
NUMBERS = (
    "cuda_graph_max_bs", "cuda_graph_max_bs_decode", "cuda_graph_bs_decode", "chunked_prefill_size", "pp_size",
    "attn_dp_size", "speculative_ngram_max_bfs_breadth", "speculative_ngram_external_sam_budget",
    "speculative_dflash_block_size", "speculative_draft_window_size", "speculative_draft_sink_size",
    "speculative_accept_threshold_single",
)  # fmt: skip
TEXTS = (
    "kv_cache_dtype", "prefill_attention_backend", "decode_attention_backend", "speculative_adaptive_config",
    "speculative_token_map", "quantization", "weight_cache_mode", "speculative_ngram_external_corpus_path",
)  # fmt: skip
WORDS = st.sampled_from(["fp8_e5m2", "fp8_e4m3", "off", "own.json", *BACKENDS])
ONE_WORD = st.integers(-1, 70) | st.floats(-1, 70, allow_nan=False) | WORDS
ANYTHING = st.booleans() | ONE_WORD | st.lists(ONE_WORD, min_size=1, max_size=3)
"""Arguments are passed through unchecked: a rule meets whatever somebody wrote."""
ARGUMENTS = st.dictionaries(st.sampled_from([*SWITCHES, *NUMBERS, *TEXTS]), ANYTHING, max_size=2) | st.builds(
    dict,
    st.dictionaries(st.sampled_from(SWITCHES), st.just(True), max_size=2),
    speculative_dflash_block_size=st.integers(1, 8),
    attn_dp_size=st.integers(1, 2),
)


def some(values: Any) -> st.SearchStrategy[Any]:
    return st.none() | values


ANY = st.builds(
    lambda arguments, **values: Settings.from_dict({**values, "server_args": arguments}),
    ARGUMENTS,
    algorithm=st.sampled_from(ALGORITHMS),
    drafter=some(st.sampled_from(["own", "public"])),
    num_steps=some(st.integers(1, 8)),
    eagle_topk=some(st.integers(1, 8)),
    num_draft_tokens=some(st.integers(2, 64)),
    attention_backend=some(st.sampled_from(BACKENDS)),
    draft_attention_backend=some(st.sampled_from(BACKENDS)),
    cuda_graph=st.booleans(),
    page_size=some(st.sampled_from([1, 16, 32, 64, 128])),
    max_running_requests=some(st.sampled_from([1, 8, 64])),
    mem_fraction_static=some(st.sampled_from([0.1, 0.5, 0.9])),
    tp_size=st.sampled_from([1, 2, 3, 8]),
)
FACTS = st.builds(
    Facts,
    version=some(st.sampled_from([*KNOWN_VERSIONS, "0.5.17+cpu", "0.6.0"])),
    gpu=some(st.sampled_from(["sm80", "sm89", "sm90", "sm100", "sm120"])),
    memory_gib=some(st.just(80.0)),
    architecture=some(st.sampled_from(["LlamaForCausalLM", "DeepseekV3ForCausalLM"])),
    attention=some(st.sampled_from(["mla", "gqa"])),
    num_attention_heads=some(st.just(32)),
    num_kv_heads=some(st.sampled_from([1, 6, 8])),
    weights_gib=some(st.sampled_from([15.0, 200.0])),
    bundles_mtp=some(st.booleans()),
    largest_concurrency=some(st.sampled_from([1, 32, 128])),
)
TABLE: list[Rule[Any]] = [*REWRITES, *REFUSALS, *NOTES]
EVERY_RULE = pytest.mark.parametrize("rule", TABLE, ids=[rule.name for rule in TABLE])


def eagle3(steps: int | None, topk: int | None, tokens: int | None, **more: Any) -> Settings:
    given = {
        "algorithm": "EAGLE3",
        "drafter": "own",
        "num_steps": steps,
        "eagle_topk": topk,
        "num_draft_tokens": tokens,
    }
    return Settings.from_dict(given | more)


def refused(settings: Settings, **known: Any) -> list[str]:
    facts = Facts(**known)
    return [problem.rule for problem in problems(settle(settings, facts).settings, facts)]


@given(ANY, FACTS)
@hypothesis_settings(max_examples=400, deadline=None)
def test_settling_settled_settings_changes_nothing(settings: Settings, facts: Facts) -> None:
    """settle() is total and idempotent over the whole domain, whatever is known."""
    once = settle(settings, facts)
    again = settle(once.settings, facts)
    assert again.settings == once.settings
    assert again.changes == ()


@given(ANY, FACTS)
@hypothesis_settings(max_examples=200, deadline=None)
def test_every_change_says_what_it_was_and_what_it_is_now(settings: Settings, facts: Facts) -> None:
    """The changes, applied one by one, lead from the asked to the settled settings, each with a reason."""
    settled = settle(settings, facts)
    for change in settled.changes:
        assert getattr(settings, change.knob) == change.was != change.now
        assert change.why
        settings = settings.replace(**{change.knob: change.now})
    assert settings == settled.settings


@given(ANY, FACTS)
@hypothesis_settings(max_examples=400, deadline=None)
def test_every_settings_has_an_answer(settings: Settings, facts: Facts) -> None:
    """problems() and notes() are total; each finding names a rule of the table and says why."""
    settled = settle(settings, facts).settings
    names = {rule.name for rule in TABLE}
    for found in (*problems(settled, facts), *notes(settled, facts)):
        assert found.rule in names
        assert str(found)


def arguments_of(argv: list[str]) -> list[tuple[str, ...]]:
    """Flags with their values, sorted."""
    marks = [index for index, word in enumerate(argv) if word.startswith("--")]
    return sorted(tuple(argv[a:b]) for a, b in zip(marks, [*marks[1:], len(argv)], strict=True))


SGLANG = SGLang(plan(drafters={"own": "/models/own", "public": "/models/public"}))


def command(settings: Settings) -> list[tuple[str, ...]]:
    with patch("orchestrator.engines.sglang.free_port", return_value=1):
        return arguments_of(SGLANG.argv(settings, 30000, "marker"))


@given(ANY, ANY, st.sets(st.sampled_from([*knobs(), "server_args"])))
@hypothesis_settings(max_examples=400, deadline=None)
def test_two_settings_have_one_key_exactly_when_their_command_lines_are_the_same(
    one: Settings, other: Settings, differing: set[str]
) -> None:
    """Apart from ports and the marker, which are each launch's own.  `other` is `one` but for some knobs."""
    other = one.replace(**{name: getattr(other, name) for name in differing})
    one, other = settle(one).settings, settle(other).settings
    assert (one.key == other.key) == (command(one) == command(other))


@pytest.mark.parametrize(
    ("given_args", "means"),
    [
        ({"enable_metrics": False}, {}),
        ({"chunked-prefill-size": "2048"}, {"chunked_prefill_size": 2048}),
        ({"cuda_graph_max_bs": 16}, {"cuda_graph_max_bs_decode": 16}),
        ({"cuda_graph_max_bs": 16, "cuda_graph_max_bs_decode": 8}, {"cuda_graph_max_bs_decode": 8}),
    ],
)
def test_arguments_that_mean_the_same_are_the_same(given_args: dict[str, Any], means: dict[str, Any]) -> None:
    """A false flag is left out, dashes and quoted numbers are only spelling, an old name is its new one."""
    assert dict(settle(Settings.from_dict({"server_args": given_args})).settings.server_args) == means


@EVERY_RULE
@given(one=ANY, other=ANY, facts=FACTS)
@hypothesis_settings(max_examples=40, deadline=None)
def test_a_rule_looks_at_what_it_declares_and_at_nothing_else(rule: Rule[Any], one: Settings, other: Settings, facts: Facts) -> None:  # fmt: skip
    """Its answer is the same when every other knob and argument is another's: the space is cut into parts by that."""
    kept = {name: getattr(one if rule.among([name]) else other, name) for name in knobs()}
    args = {n: v for n, v in other.server_args if not rule.among([ARGS + n])} | {n: v for n, v in one.server_args if rule.among([ARGS + n])}  # fmt: skip
    hybrid = Settings.from_dict({**kept, "server_args": args})
    assert in_words(rule.says(one, facts)) == in_words(rule.says(hybrid, facts))


def in_words(said: Any) -> Any:
    """What a rule says, but for the arguments that happen to stand beside those it changes."""
    return [(change.knob, change.why) for change in said] if isinstance(said, tuple) else said


@EVERY_RULE
@given(settings=ANY, facts=FACTS)
@hypothesis_settings(max_examples=30, deadline=None)
def test_a_rule_says_nothing_where_nothing_it_needs_is_given(rule: Rule[Any], settings: Settings, facts: Facts) -> None:
    """That is why the rules about arguments nobody passes cost nothing."""
    names = {name for name in knobs() if getattr(settings, name) is not None} | {ARGS + n for n, _ in settings.server_args}  # fmt: skip
    if not rule.awake(names):
        assert not rule.says(settings, facts)


@given(ANY, FACTS)
@hypothesis_settings(max_examples=150, deadline=None)
def test_a_rewrite_changes_only_what_it_declares(settings: Settings, facts: Facts) -> None:
    """Knobs by name; of the arguments those that differ."""
    for rule in REWRITES:
        for change in rule.says(settings, facts):
            was, now = (dict(v) for v in (change.was, change.now)) if change.knob == "server_args" else ({}, {})  # type: ignore[call-overload]
            touched = {
                ARGS + n for n in was.keys() | now.keys() if was.get(n) != now.get(n) or (n in was) != (n in now)
            }
            assert rule.written(touched or {change.knob}) == (touched or {change.knob})


def test_every_rule_has_a_name_of_its_own_and_a_source() -> None:
    """`plan` counts by name; the source says for which versions it was read and where."""
    names = [rule.name for rule in TABLE]
    assert [name for name, several in groupby(sorted(names)) if len(list(several)) > 1] == []
    for rule in TABLE:
        assert rule.sources
        assert set(rule.sources) <= set(KNOWN_VERSIONS)


def test_of_an_unknown_version_only_what_all_known_ones_do_is_taken_for_certain() -> None:
    """The rest is the server's to decide, and a person is told so."""
    for table in (rewrites, refusals):
        certain = {rule.name for rule in table(None)}
        assert certain == {rule.name for rule in table("0.5.17")} & {rule.name for rule in table("0.5.23")}
    assert "0.6.0 is not one of 0.5.17, 0.5.23" in (unknown_version("0.6.0") or "")
    assert [unknown_version(version) for version in (None, "0.5.17", "0.5.23+cu130", "0.5.17 (demo)")] == [None] * 4


def test_a_chain_always_verifies_steps_plus_one_tokens() -> None:
    """With topk 1 every num_draft_tokens is the same launch, 4 steps with 5, 8, 16 and 24 tokens too."""
    keys = {settle(eagle3(4, 1, tokens)).settings.key for tokens in (5, 8, 16, 24)}
    assert keys == {eagle3(4, 1, 5).key}


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "runs"),
    [(1, 2, 8, False), (2, 2, 7, True), (2, 2, 8, False), (3, 4, 37, True), (3, 4, 38, False), (1, 4, 6, False)],
)
def test_a_tree_larger_than_it_can_be_reaches_no_server(steps: int, topk: int, tokens: int, runs: bool) -> None:
    """SGLang checks nothing and dies in graph capture: it is refused, and says how many tokens there is room for."""
    asked = eagle3(steps, topk, tokens)
    assert settle(asked).settings == asked
    assert refused(asked) == ([] if runs else ["tree_capacity"])
    assert runs or f"at most {tree_capacity(steps, topk)} tokens" in str(problems(asked)[0])


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "runs"),
    [(5, 4, 4, False), (5, 2, 5, False), (5, 2, 6, True), (2, 8, 2, False), (7, 4, 4, False), (1, 2, 2, True), (5, 1, 4, True)],
)  # fmt: skip
def test_a_tree_smaller_than_a_path_in_it_reaches_no_server(steps: int, topk: int, tokens: int, runs: bool) -> None:
    """Seen on SGLang 0.5.17, on an H200 and on a CPU: all of it is loaded and the first step dies.  A chain is made to fit."""
    settled = settle(eagle3(steps, topk, tokens)).settings
    assert refused(settled) == ([] if runs else ["tree_depth"])
    assert runs or f"a path of {steps + 1} tokens, not {tokens}" in str(problems(settled)[0])


def test_the_plain_server_has_one_key_whatever_was_drawn_beside_it() -> None:
    """algorithm none clears every speculation knob and argument, so a grid measures the plain server once."""
    drawn = eagle3(5, 4, 16, algorithm="none", server_args={"speculative_adaptive": True})
    assert settle(drawn).settings == Settings()


def test_ngram_takes_neither_drafter_nor_topk() -> None:
    """NGRAM sets its topk itself, whatever is given: those knobs are cleared."""
    settled = settle(eagle3(5, 4, 16, algorithm="NGRAM")).settings
    assert (settled.drafter, settled.num_steps, settled.eagle_topk, settled.num_draft_tokens) == (None, None, None, 16)


@pytest.mark.parametrize(
    ("asked", "knob", "runs_with"),
    [
        (eagle3(3, 1, 4, algorithm="NEXTN"), "algorithm", "EAGLE"),
        (eagle3(3, 1, 4, attention_backend="trtllm_mha", page_size=1), "page_size", 64),
        (eagle3(3, 1, 4, attention_backend="trtllm_mha", page_size=16), "page_size", 16),
        (eagle3(3, 1, 4, attention_backend="flashmla", page_size=16), "page_size", 64),
        (eagle3(3, 1, 4, draft_attention_backend="trtllm_mha", page_size=1), "page_size", 64),
        (Settings(attention_backend="torch_native"), "cuda_graph", False),
        (Settings.from_dict({"attention_backend": "fa3", "server_args": {"kv_cache_dtype": "fp8_e5m2"}}), "attention_backend", "triton"),
        (eagle3(None, None, 8, algorithm="DFLASH", server_args={"speculative_dflash_block_size": 8}), "server_args", ()),
        (eagle3(3, 4, 8, server_args={"speculative_adaptive": True}), "server_args", ()),
        (eagle3(3, 1, 4, algorithm="STANDALONE", server_args={"speculative_adaptive": True}), "server_args", ()),
        (eagle3(None, None, None, server_args={"speculative_adaptive": True}), "num_draft_tokens", 4),
        (eagle3(3, 1, 4, algorithm="STANDALONE", server_args={"enable_mixed_chunk": True}), "server_args", ()),
        (eagle3(3, 1, 4, server_args={"speculative_token_map": "hot.pt"}), "server_args", ()),
        (Settings.from_dict({"max_running_requests": 8, "server_args": {"cuda_graph_max_bs": 8}}), "server_args", ()),
    ],
)  # fmt: skip
def test_what_the_server_makes_of_settings_is_made_before_the_launch(asked: Settings, knob: str, runs_with: object) -> None:  # fmt: skip
    """Each of these is a twin of another command line."""
    assert getattr(settle(asked).settings, knob) == runs_with


def test_mixed_chunks_stay_where_the_version_keeps_them() -> None:
    """0.5.17 switches them off beside any speculation, 0.5.23 beside some algorithms; unknown versions decide themselves."""
    asked = eagle3(3, 1, 4, server_args={"enable_mixed_chunk": True})
    kept = {version: bool(settle(asked, Facts(version=version)).settings.server_args) for version in ("0.5.17", "0.5.23", None)}  # fmt: skip
    assert kept == {"0.5.17": False, "0.5.23": True, None: True}


def test_fa4_has_its_own_pages_on_sm100_unless_a_tree_is_drafted() -> None:
    """Only where the GPU and the attention are known."""
    chain, tree = (eagle3(3, topk, 4, attention_backend="fa4", page_size=1) for topk in (1, 4))
    known = Facts(gpu="sm100", attention="gqa")
    assert [settle(s, known).settings.page_size for s in (chain, tree)] == [128, 1]
    assert settle(chain).settings.page_size == 1


@pytest.mark.parametrize(
    ("settings", "rule", "says"),
    [
        (eagle3(None, 4, 8), "triple_is_whole", "missing: num_steps"),
        (eagle3(3, None, None), "triple_is_whole", "missing: eagle_topk, num_draft_tokens"),
        (eagle3(3, 1, 4, drafter=None), "drafter_is_given", "EAGLE3 needs a drafter"),
        (eagle3(3, 4, 8, attention_backend="trtllm_mha"), "backend_takes_chains_only", "trtllm_mha takes eagle_topk 1 only"),
        (eagle3(3, 4, 8, page_size=16, attention_backend="fa4"), "backend_takes_paged_trees", "needs one of flashinfer, fa3, triton"),
        (eagle3(3, 1, 4, attention_backend="flex_attention"), "backend_speculates", "refuses every speculative algorithm"),
        (eagle3(3, 4, 8, server_args={"speculative_use_rejection_sampling": True}), "rejection_sampling_is_for_chains", "eagle_topk 1 only, not 4"),
        (eagle3(3, 1, 4, server_args={"speculative_use_rejection_sampling": True, "speculative_accept_threshold_acc": 0.9}), "rejection_sampling_is_for_chains", "takes no thresholds"),
        (eagle3(4, 1, 5, server_args={"speculative_adaptive": True}), "adapting_starts_at_a_candidate", "num_steps 4 is none of them"),
        (Settings.from_dict({"algorithm": "NGRAM", "page_size": 16, "attention_backend": "fa3"}), "ngram_branches_over_pages", "needs flashinfer"),
        (Settings.from_dict({"algorithm": "NGRAM", "server_args": {"enable_dp_attention": True}}), "drafts_beside_dp_attention", "data-parallel"),
        (eagle3(None, None, 8, algorithm="DFLASH", server_args={"speculative_dflash_block_size": 16}), "dflash_has_one_block", "is 16"),
        (eagle3(3, 1, 4, server_args={"pp_size": 2}), "pipeline_does_not_speculate", "pp_size is 2"),
        (Settings.from_dict({"page_size": 64, "server_args": {"chunked_prefill_size": 2000}}), "chunks_are_whole_pages", "no multiple of page_size 64"),
        (Settings.from_dict({"attention_backend": "flashmla", "server_args": {"chunked_prefill_size": 2000}}), "chunks_are_whole_pages", "page_size 64"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_named_before_a_gpu_is_touched(settings: Settings, rule: str, says: str) -> None:
    """Each problem has its rule and says what is missing or refused."""
    found = {problem.rule: problem.why for problem in problems(settle(settings).settings)}
    assert says in found.get(rule, ""), found


@pytest.mark.parametrize(
    ("settings", "known", "rule"),
    [
        (eagle3(3, 4, 8, attention_backend="flashinfer"), {"attention": "mla"}, "flashinfer_drafts_no_trees_on_mla"),
        (eagle3(3, 1, 4, attention_backend="fa3"), {"gpu": "sm120"}, "backend_runs_on_the_gpu"),
        (eagle3(3, 1, 4, attention_backend="fa3"), {"gpu": "sm80", "attention": "mla"}, "backend_runs_on_the_gpu"),
        (Settings(attention_backend="cutedsl_mla"), {"gpu": "sm120"}, "backend_runs_on_the_gpu"),
        (Settings(attention_backend="trtllm_mha"), {"gpu": "sm120", "version": "0.5.17"}, "trtllm_mha_prefills_on_sm100"),
        (Settings(attention_backend="trtllm_mla"), {"attention": "gqa"}, "backend_serves_the_attention"),
        (Settings(attention_backend="trtllm_mha"), {"attention": "mla"}, "backend_serves_the_attention"),
        (Settings(attention_backend="cutlass_mla"), {"version": "0.5.23"}, "unknown_backend"),
        (eagle3(3, 4, 8), {"gpu": "sm100", "attention": "mla"}, "sm100_drafts_no_trees_on_mla_unless_told_how"),
        (Settings(algorithm="NGRAM"), {"gpu": "sm100", "attention": "mla", "architecture": "DeepseekV3ForCausalLM"}, "sm100_drafts_no_trees_on_mla_unless_told_how"),
        (eagle3(3, 1, 4, attention_backend="torch_native"), {"gpu": "sm90"}, "backend_drafts"),
        (eagle3(3, 1, 4, algorithm="EAGLE", drafter=None), {"bundles_mtp": False}, "drafter_is_given"),
        (eagle3(None, None, None, attention_backend="trtllm_mha"), {"architecture": "LlamaForCausalLM"}, "backend_takes_chains_only"),
        (eagle3(5, 1, 6, server_args={"speculative_adaptive": True}), {"version": "0.5.17"}, "adapting_starts_at_a_candidate"),
        (Settings.from_dict({"server_args": {"torchao_config": "int4wo"}}), {"version": "0.5.23"}, "argument_of_another_version"),
        (Settings.from_dict({"server_args": {"attn_dp_size": 2}}), {"version": "0.5.17"}, "argument_of_another_version"),
        (Settings(tp_size=8), {"num_attention_heads": 36}, "heads_divide_among_gpus"),
        (Settings(tp_size=8), {"attention": "gqa", "num_kv_heads": 6}, "heads_divide_among_gpus"),
        (Settings.from_dict({"tp_size": 8, "server_args": {"attn_dp_size": 1}}), {"num_attention_heads": 36}, "heads_divide_among_gpus"),
        (Settings(mem_fraction_static=0.1), {"weights_gib": 15.0, "memory_gib": 80.0}, "weights_fit_their_share"),
        (Settings(max_running_requests=8), {"largest_concurrency": 32}, "requests_have_room"),
        (eagle3(3, 1, 4, server_args={"enable_lora": True}), {"version": "0.5.17"}, "lora_speculates_by_ngram_only"),
    ],
)  # fmt: skip
def test_a_rule_that_needs_a_fact_waits_for_it(settings: Settings, known: dict[str, Any], rule: str) -> None:
    """Unknown, the server decides; known, it is refused."""
    assert rule not in refused(settings)
    assert rule in refused(settings, **known)


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        (eagle3(3, 1, 4), {}),
        (eagle3(None, None, None), {}),
        (eagle3(3, 4, 8, page_size=64, attention_backend="fa3"), {"gpu": "sm90", "attention": "gqa"}),
        (Settings(), {}),
        (eagle3(3, 1, 4, algorithm="NEXTN", drafter=None), {"bundles_mtp": True, "architecture": "DeepseekV3ForCausalLM"}),
        (eagle3(3, 1, 4, attention_backend="flashinfer"), {"attention": "mla"}),
        (eagle3(3, 1, 4, attention_backend="torch_native"), {}),
        (eagle3(5, 1, 6, server_args={"speculative_adaptive": True}), {"version": "0.5.23"}),
        (Settings(tp_size=8), {"attention": "gqa", "num_kv_heads": 4, "num_attention_heads": 32}),
        (Settings.from_dict({"tp_size": 8, "server_args": {"attn_dp_size": 2}}), {"num_attention_heads": 36}),
        (Settings(mem_fraction_static=0.1, tp_size=2), {"weights_gib": 15.0, "memory_gib": 80.0}),
    ],
)  # fmt: skip
def test_nothing_is_said_against_settings_that_run(settings: Settings, known: dict[str, Any]) -> None:
    """The triple whole, the triple left out, a paged tree on fa3, the plain server, MTP without a drafter …"""
    assert refused(settings, **known) == []


@pytest.mark.parametrize(
    ("settings", "known", "says"),
    [
        (eagle3(3, 1, 4), {"largest_concurrency": 128}, "runs 48 requests at once"),
        (eagle3(3, 1, 4, server_args={"cuda_graph_max_bs": 16}), {"largest_concurrency": 32}, "outside CUDA graphs"),
        (eagle3(3, 4, 8, server_args={"speculative_accept_threshold_single": 0.9}), {}, "would not have drawn"),
    ],
)
def test_what_runs_but_should_be_known_is_a_note(settings: Settings, known: dict[str, Any], says: str) -> None:
    """The server's own limit of 48, graphs that end below the load, thresholds that change the output."""
    facts = Facts(**known)
    settled = settle(settings, facts).settings
    assert [says in note.why for note in notes(settled, facts)] == [True]
    assert problems(settled, facts) == []


def test_no_argument_is_both_renamed_and_gone() -> None:
    """An old name that has a successor is translated; one that has none is refused."""
    gone = {name for names in ONLY_IN.values() for name in names}
    assert not gone & (RENAMED.keys() | set(RENAMED.values()))
