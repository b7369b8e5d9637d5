"""Legal: a whole space counted, and the simulated engine's own checks agree with every count."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator.engines.simulated import Simulated
from orchestrator.simulator.faults import Faults
from orchestrator.simulator.flags import parser, resolve
from orchestrator.simulator.startup import Startup
from sweeps.facts import Facts
from sweeps.legal import TooLarge, legal, sampled
from sweeps.rules import problems, settle
from sweeps.settings import Settings
from sweeps.space import Choice, Domain, Held, Range, SearchSpace
from tests.fakes.plans import plan
from tests.test_rules import FACTS

COMMON_GRID = SearchSpace(
    {
        "algorithm": Held("EAGLE3"),
        "drafter": Held("own"),
        "num_steps": Range(1, 8),
        "eagle_topk": Choice((1, 2, 4, 8)),
        "num_draft_tokens": Choice((2, 4, 8, 16, 32, 64)),
    }
)
MILLION = SearchSpace(
    COMMON_GRID.domains
    | {
        "algorithm": Choice(("none", "EAGLE3")),
        "drafter": Choice(("own", "public")),
        "attention_backend": Choice(("fa3", "flashinfer", "trtllm_mha")),
        "page_size": Choice((1, 16, 64)),
        "mem_fraction_static": Choice(tuple(share / 100 for share in range(70, 90))),
        "max_running_requests": Choice((16, 32, 64)),
        "server_args.schedule_conservativeness": Choice((0.5, 1.0, 1.5)),
    }
)


def chosen(*values: Any) -> st.SearchStrategy[Domain | None]:
    """Not in the space, held, or some values to choose from."""
    several = st.lists(st.sampled_from(values), min_size=2, max_size=3, unique_by=repr).map(lambda v: Choice(tuple(v)))
    return st.none() | st.sampled_from(values).map(Held) | several


SPACES = st.fixed_dictionaries(
    {
        "algorithm": chosen("none", "EAGLE3", "EAGLE", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"),
        "drafter": chosen("own", "public"),
        "num_steps": chosen(1, 2, 3, 5),
        "eagle_topk": chosen(1, 2, 4),
        "num_draft_tokens": chosen(2, 4, 8, 40),
        "attention_backend": chosen("fa3", "flashinfer", "trtllm_mha", "trtllm_mla", "fa4", "torch_native", "hpc_ops"),
        "draft_attention_backend": chosen("fa3", "trtllm_mha"),
        "page_size": chosen(1, 16, 64),
        "cuda_graph": chosen(True, False),
        "max_running_requests": chosen(8, 64),
        "tp_size": chosen(1, 3),
        "server_args.cuda_graph_max_bs": chosen(8, 64),
        "server_args.enable-mixed-chunk": chosen(True, False),
        "server_args.speculative_adaptive": chosen(True, False),
        "server_args.--chunked-prefill-size": chosen(2000, 2048, "2048"),
        "server_args.speculative_dflash_block_size": chosen(4, 8),
        "server_args.attn_dp_size": chosen(1, 2),
    }
).map(lambda drawn: SearchSpace({name: domain for name, domain in drawn.items() if domain is not None}))


@given(SPACES.filter(lambda space: space.size <= 400), FACTS)
@hypothesis_settings(max_examples=150, deadline=None)
def test_counting_by_parts_is_counting_point_by_point(space: SearchSpace, facts: Facts) -> None:
    """Distinct settings, twins and refused points are those of a walk over the whole grid."""
    walked = [settle(point, facts).settings for point in space.grid()]
    against = [{problem.rule for problem in problems(settings, facts)} for settings in walked]
    runs = [settings for settings, rules in zip(walked, against, strict=True) if not rules]
    counted = legal(space, facts)
    assert len({s.key for s in counted.settings}) == len(counted.settings)
    assert {s.key for s in counted.settings} == {s.key for s in runs}
    assert counted.total == len(walked) == len(counted.settings) + counted.collapsed + sum(counted.refused.values())
    for rule, points in counted.refused.items():
        assert 0 < points <= sum(rule in rules for rules in against)


@given(SPACES.filter(lambda space: space.size <= 200), FACTS)
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_legal_setting_knows_what_to_ask_for(space: SearchSpace, facts: Facts) -> None:
    """The free knobs' values that are given for it settle into it; other settings are unknown."""
    counted = legal(space, facts)
    for index, settings in enumerate(counted.settings):
        asked = counted.asked(settings)
        assert asked is not None
        assert asked.keys() == space.free.keys()
        assert settle(space.settings(asked), facts).settings == settings == counted.settings[index]
        assert counted.asked(settings.replace(tp_size=7)) is None


@given(SPACES.filter(lambda space: space.size <= 200), FACTS)
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_plain_servers_are_those_that_legal_settings_are_compared_with(space: SearchSpace, facts: Facts) -> None:
    """Each once, and none for settings that cannot run."""
    counted = legal(space, facts)
    expected = {settle(settings.plain(), facts).settings.key for settings in counted.settings}
    found = [settings.key for settings in counted.plain_servers(facts)]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_the_common_grid_has_79_settings_in_192_points() -> None:
    """Steps 1–8 × topk 1, 2, 4, 8 × 2 to 64 tokens: 40 are twins, 34 larger than their tree, 39 smaller than a path in it."""
    counted = legal(COMMON_GRID)
    assert (counted.total, len(counted.settings), counted.collapsed) == (192, 79, 40)
    assert counted.refused == {"tree_capacity": 34, "tree_depth": 39}
    assert counted.reasons == {
        "tree_capacity": "a tree of 1 steps and topk 2 holds at most 3 tokens, not 4",
        "tree_depth": "a tree of 2 steps needs room for a path of 3 tokens, not 2",
    }


DIALECT = Simulated(plan())


def started(settings: Settings) -> Startup:
    """The simulated server's start with these settings' own command line, as far as it goes without starting."""
    words = DIALECT.argv(settings, 30000, "marker")
    return Startup(resolve(parser().parse_args(words[3:]), DIALECT.profile), DIALECT.profile, Faults())


def test_none_of_the_79_is_refused_or_run_otherwise_by_the_simulated_engine() -> None:
    """Its argument checks pass each, change no value, and build each tree."""
    resolved = []
    for settings in legal(COMMON_GRID).settings:
        start = started(settings)
        launch = start.args.launch
        resolved.append((launch.num_steps, launch.eagle_topk, launch.num_draft_tokens))
        assert resolved[-1] == (settings.num_steps, settings.eagle_topk, settings.num_draft_tokens)
        assert start.first_step_fails() is None
    assert len(set(resolved)) == 79


def test_each_of_the_73_would_die_on_the_simulated_engine() -> None:
    """What the rules refuse has no tree there either, or one too small for its paths."""
    refused = [s for s in (settle(point).settings for point in COMMON_GRID.grid()) if problems(s)]
    assert len(refused) == 73
    assert all(started(settings).first_step_fails() for settings in refused)


def test_a_space_of_a_million_points_is_counted_whole() -> None:
    """Its parts are small: what no rule ties together is multiplied, and settings are made when they are looked at."""
    counted = legal(MILLION, Facts(largest_concurrency=32))
    assert counted.total == math.prod(len(domain.values()) for domain in MILLION.domains.values()) > 1_000_000
    assert counted.total == len(counted.settings) + counted.collapsed + sum(counted.refused.values())
    assert counted.refused["requests_have_room"] > 0
    some = [counted.settings[place] for place in range(0, len(counted.settings), 40_009)]
    assert len({settings.key for settings in some}) == len(some)
    assert all(settle(settings).settings == settings and not problems(settings) for settings in some)


def test_a_part_too_large_to_look_at_is_said_and_can_be_sampled() -> None:
    """Knobs that rules tie together, a thousand values each: random points give the shares."""
    space = SearchSpace(COMMON_GRID.domains | {"num_steps": Range(1, 64), "eagle_topk": Range(1, 64), "num_draft_tokens": Range(2, 512)})  # fmt: skip
    with pytest.raises(TooLarge):
        legal(space)
    points = [space.settings({"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": tokens}) for tokens in (4, 4, 400)]
    shares = sampled(points, Facts())
    assert (shares.total, len(shares.settings), shares.collapsed, shares.exact) == (3, 1, 1, False)
    assert shares.refused == {"tree_capacity": 1}


def test_where_a_held_value_is_refused_nothing_is_legal() -> None:
    """Every point counts for that rule."""
    counted = legal(SearchSpace(COMMON_GRID.domains | {"attention_backend": Held("hpc_ops")}))
    assert (len(counted.settings), counted.collapsed) == (0, 0)
    assert counted.refused["backend_speculates"] >= 158
    assert sum(counted.refused.values()) == 192
    assert counted.plain_servers() == []
