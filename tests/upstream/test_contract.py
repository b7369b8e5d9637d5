"""The rules against SGLang itself: each difference has a name here and a reason, or the test fails.

Asked are SGLang's own parser, its resolution of arguments and the guards that follow (resolve.py), on GPUs that are
pretended.  Not here: what only weights, kernels or memory can refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.upstream.cases import common_grid
from tests.upstream.conftest import EXHAUSTIVE
from tests.upstream.contract import Compared, Kind

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(7200 if EXHAUSTIVE else 300)]

CONFS = sorted((Path(__file__).parents[2] / "conf").glob("*.yaml"))

DIES_LATER = {
    "heads_divide_among_gpus": "an assertion of the model, while its layers are made",
    "backend_serves_the_attention": "kernels of MLA given another cache: only some backends have a guard",
    "backend_runs_on_the_gpu": "kernels that are not built for the GPU: only some backends have a guard",
    "backend_takes_chains_only": "kernels without a tree mask: dsa, dsv4, aiter and intel_amx say so when they draft",
    "flashinfer_drafts_no_trees_on_mla": "says so of MLA drafters only; the target's verification has no tree mask",
    "tree_depth": "the first step: a path of num_steps + 1 tokens does not fit into a tree of fewer nodes",
    "drafter_is_given": "the target is loaded a second time as its own drafter",
}
"""Rules that refuse what SGLang's arguments and guards let pass, and what happens then."""

BACKEND = "backend left to SGLang: "
LET_RUN = {
    "draft: ValueError: trtllm_mla backend requires MLA model": "a drafter without MLA beside an MLA target: the rules do not know the drafter",
    "draft: ValueError: cutedsl_mla backend requires MLA model": "the same",
    BACKEND
    + "draft: ValueError: trtllm_mla backend requires MLA model": "the same, where SGLang takes trtllm_mla itself",
    "draft: ValueError: Currently Flashinfer MLA only": "flashinfer for the drafter alone, and a drafter with MLA: not known either",
    BACKEND + "draft: ValueError: Currently Flashinfer MLA only": "the same",
    BACKEND
    + "resolution: ValueError: --speculative-draft-window-size": "without num_draft_tokens the block is the drafter's, or 16",
}
"""What SGLang refuses and no rule does, and why it is left to the server."""
LET_RUN_OF = {
    "0.5.17": {
        "resolution: ValueError: tokenspeed_mla backend requires kv-cache-dtype": "a backend that later versions have only by name",
        BACKEND + "resolution: AssertionError: --enable-page-major-kv-layout": "unified memory is its own subject",
    },
    "0.5.23": {
        "resolution: ValueError: CuteDSL MLA backend is only supported": "tokenspeed_mla, here another name of cutedsl_mla",
        BACKEND + "check: AssertionError: PP + speculative decoding": "SGLANG_ENABLE_PP_SPEC allows it",
        BACKEND + "resolution: AssertionError: --enable-unified-memory": "unified memory is its own subject",
        BACKEND + "resolution: ValueError: DFLASH with dp attention": "needs enable_dp_lm_head beside it",
    },
}

OTHER_VALUE = {
    BACKEND + "page_size": "SM100's own choice, trtllm_mha or trtllm_mla, has pages of its own size",
}
OTHER_VALUE_OF = {
    "0.5.17": {},
    "0.5.23": {
        BACKEND + "dp_size: 2 settled, 1 runs": "enable_dp_attention with dp_size is another way to write attn_dp_size",
        "attention_backend: tokenspeed_mla settled, cutedsl_mla runs": "another name of it",
    },
}
"""Values that SGLang replaces and settle() does not: the row says what ran (`/server_info`)."""

OTHER_LAUNCH = {
    "NGRAM: speculative_num_steps": "kept as given, else tokens over branches; sizes a reserve of KV slots",
    "NGRAM: attention_backend": "a topk that is given, though not used, counts when SGLang chooses the backend",
    "DFLASH: speculative_draft_attention_backend, attention_backend": "the same",
    "DFLASH: speculative_dflash_block_size": "another name of num_draft_tokens",
    "EAGLE3: speculative_token_map": "not read: an EAGLE-3 head brings its own d2t",
    "EAGLE: attention_backend": "adapting fills topk in after the backend was chosen; settled, it is given",
    "EAGLE3: attention_backend": "the same",
    "none: mem_fraction_static, disable_cuda_graph": "graphs that torch_native would not capture still had memory set aside",
    "NGRAM: mem_fraction_static, disable_cuda_graph": "the same",
    "DFLASH: mem_fraction_static, disable_cuda_graph": "the same",
}
OTHER_LAUNCH_OF = {
    "0.5.17": {"DFLASH: attention_backend, page_size": "a topk that is given counts when SGLang chooses the backend"},
    "0.5.23": {},
}
"""Where what is launched, the settled, differs from what was drawn: in values that the server would not use, or in its own choices."""


def unexplained(upstream: Compared, kind: Kind, explained: Mapping[str, str]) -> str:
    """The differences of this kind that are not listed, as a table; in a whole run, also what is listed and gone."""
    return upstream.differences(kind, explained, gone=EXHAUSTIVE)


def test_every_option_that_is_emitted_exists(upstream: Compared) -> None:
    """Whatever the rules let run is written in words that this version's parser has, in full and not abbreviated."""
    assert upstream.unknown_options() == {}


@pytest.mark.parametrize("conf", CONFS, ids=lambda path: path.stem)
def test_every_argument_of_a_shipped_config_exists(upstream: Compared, conf: Path) -> None:
    """`server_args` of the configs in conf/, held and swept."""
    given = yaml.safe_load(conf.read_text())
    swept = [name.removeprefix("server_args.") for name in given.get("space", {}) if name.startswith("server_args.")]
    options = ["--" + name.replace("_", "-") for name in (*given.get("server_args", {}), *swept)]
    assert set(options) <= upstream.options


def test_sglang_accepts_what_the_rules_let_run(upstream: Compared) -> None:
    """A launch costs minutes: whatever its arguments alone show to be wrong is known before."""
    assert unexplained(upstream, Kind.LAXER, LET_RUN | LET_RUN_OF[upstream.version]) == ""


def test_what_runs_is_what_was_settled(upstream: Compared) -> None:
    """Knobs and arguments that settle() gives a value have that value after SGLang's resolution, too."""
    assert unexplained(upstream, Kind.OTHER_VALUE, OTHER_VALUE | OTHER_VALUE_OF[upstream.version]) == ""


def test_settling_changes_nothing_of_what_runs(upstream: Compared) -> None:
    """SGLang makes the same of the settings as they were drawn and as they were settled."""
    assert unexplained(upstream, Kind.OTHER_LAUNCH, OTHER_LAUNCH | OTHER_LAUNCH_OF[upstream.version]) == ""


def test_what_only_the_rules_refuse_is_known_to_die_later(upstream: Compared) -> None:
    """No rule refuses what SGLang runs: each that goes beyond its arguments says where the launch would end."""
    assert unexplained(upstream, Kind.STRICTER, DIES_LATER) == ""


def test_the_common_grid_has_118_launches(upstream: Compared) -> None:
    """Of 192 points of the usual grid SGLang runs 118 different ones: 34 trees are too large, 40 are the same again."""
    answers = [upstream.asked(case) for case in common_grid()]
    triple = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    distinct = {tuple(answer.ran[name] for name in triple) for answer in answers if answer.accepted}
    assert sum(answer.where == "tree" for answer in answers) == 34
    assert len(distinct) == 118
    assert len(answers) - 34 - len(distinct) == 40
