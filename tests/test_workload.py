"""Every trial asks the same prompts at the same point, and other prompts at other points."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfError
from orchestrator.measuring.chat_template import ChatTemplate
from orchestrator.measuring.workload import PromptBook, load_prompts, workload_key
from orchestrator.plan import Workload
from sweeps.trial import LoadPoint

CHAT_MIX = load_prompts(Workload(), None)


def written(path: Path, *lines: Any, **more: Any) -> Workload:
    """A workload of a prompt file with these lines (text, or what is to be JSON)."""
    file = path / "own.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return Workload(prompts=str(file), **more)


def mistakes_of(workload: Workload) -> list[str]:
    with pytest.raises(ConfError) as caught:
        load_prompts(workload, None)
    return caught.value.mistakes


def book(concurrency: list[int], repeats: int = 1, **more: Any) -> PromptBook:
    """The prompts of chat-mix for other load points."""
    return dataclasses.replace(CHAT_MIX, workload=Workload(concurrency=concurrency, repeats=repeats, **more))


def points(of: PromptBook) -> list[LoadPoint]:
    workload = of.workload
    return [LoadPoint(c, r) for c, r in itertools.product(workload.concurrency, range(workload.repeats))]


# What is shipped


def test_chat_mix_is_large_and_varied() -> None:
    """The shipped prompts are well over 800 distinct ones of six categories, none much rarer than another."""
    workload = Workload()
    everything = CHAT_MIX.warm_up + CHAT_MIX.measured
    kinds = Counter(prompt.category for prompt in everything)

    assert len({prompt.messages[0]["content"] for prompt in everything}) == len(everything) > 2500
    assert set(kinds) == {"chat", "code", "maths", "summarising", "translation", "extraction"}
    assert max(kinds.values()) < 1.5 * min(kinds.values())
    assert workload.prompts == "chat-mix"


def test_chat_mix_passages_are_of_real_length() -> None:
    """Prompts for summarising and extraction carry a passage of 100 to 400 words."""
    lengths = [
        len(prompt.messages[0]["content"].split())
        for prompt in CHAT_MIX.measured
        if prompt.category in ("summarising", "extraction")
    ]

    assert 100 <= min(lengths) <= max(lengths) <= 400


# Points


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 48), min_size=1, max_size=5, unique=True), st.integers(1, 3), st.integers(1, 5))
def test_points_do_not_share_prompts_while_there_are_enough(ladder: list[int], repeats: int, per_stream: int) -> None:
    """Whatever the loads, no prompt is asked at two points or also in a warm-up, or every point says so."""
    prompts = book(ladder, repeats, requests_per_stream=per_stream)
    draws = [prompts.for_point(point) for point in points(prompts)]
    asked = [text for draw in draws for text in draw.measured]
    warm = {text for draw in draws for passed in draw.warm_up for text in passed}

    assert [len(draw.measured) for draw in draws] == [max(6, p.concurrency * per_stream) for p in points(prompts)]
    assert not warm & set(asked)
    if len(asked) <= len(prompts.measured):
        assert len(set(asked)) == len(asked)
        assert not any(draw.reused for draw in draws)
    else:
        assert any(draw.reused for draw in draws)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 8, 32]))
def test_the_same_point_asks_the_same_in_every_trial(seed: int, concurrency: int) -> None:
    """A point's prompts follow from the workload alone; another seed gives another order."""
    point = LoadPoint(concurrency, 0)
    first = load_prompts(Workload(seed=seed), None).for_point(point)
    again = load_prompts(Workload(seed=seed), None).for_point(point)
    other = load_prompts(Workload(seed=seed + 1), None).for_point(point)

    assert first == again
    assert first.measured != other.measured


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True))
def test_every_level_has_the_same_mix(ladder: list[int]) -> None:
    """Each category's share at a level is its share of the file, to within two prompts."""
    prompts = book(ladder)
    category = {p.messages[0]["content"]: p.category for p in prompts.measured}
    shares = {kind: n / len(prompts.measured) for kind, n in Counter(category.values()).items()}

    for point in points(prompts):
        texts = prompts.for_point(point).measured
        counts = Counter(category[text] for text in texts)
        assert all(abs(counts[kind] - share * len(texts)) <= 2 for kind, share in shares.items())


def test_a_single_stream_meets_every_category() -> None:
    """Six requests of one stream are of six categories."""
    category = {p.messages[0]["content"]: p.category for p in CHAT_MIX.measured}

    assert len({category[text] for text in CHAT_MIX.for_point(LoadPoint(1, 0)).measured}) == 6


def test_a_point_of_few_streams_measures_six_requests_all_the_same() -> None:
    """Two requests say nothing of a mean; where the streams' own share is more, it is left at that."""
    prompts = book([1, 2, 4], requests_per_stream=2)

    assert [len(prompts.for_point(point).measured) for point in points(prompts)] == [6, 6, 8]


def test_order_of_levels_does_not_matter() -> None:
    """[32, 1, 8] asks the same at each level as [1, 8, 32]."""
    drawn = [book(ladder).for_point(LoadPoint(8, 0)) for ladder in ([1, 8, 32], [32, 1, 8])]

    assert drawn[0] == drawn[1]


def test_too_few_prompts_are_asked_again_and_said_so(tmp_path: Path) -> None:
    """24 prompts for 36 requests: the last level asks those of the first ones again, and all are flagged."""
    workload = written(
        tmp_path, *({"prompt": f"question {n}"} for n in range(32)), concurrency=[2, 4, 6], requests_per_stream=3
    )
    prompts = load_prompts(workload, None)
    draws = {c: prompts.for_point(LoadPoint(c, 0)) for c in (2, 4, 6)}

    assert len(prompts.measured) == 24
    assert {c: draw.reused for c, draw in draws.items()} == {2: True, 4: True, 6: True}
    assert draws[6].measured[6:12] == draws[2].measured
    assert not set(draws[2].measured) & {text for passed in draws[2].warm_up for text in passed}


def test_a_level_the_workload_lacks() -> None:
    """Asking for a concurrency that is not in the workload is a bug and says so."""
    with pytest.raises(ValueError, match="concurrency 5"):
        CHAT_MIX.for_point(LoadPoint(5, 0))


def test_prompts_stay_private(tmp_path: Path) -> None:
    """What is printed of a book or a draw shows no prompt."""
    prompts = load_prompts(written(tmp_path, {"prompt": "secret plan"}, {"prompt": "secret diary"}), None)

    assert "secret" not in repr(prompts) + repr(prompts.for_point(LoadPoint(8, 0)))


# Files


def test_messages_go_through_the_targets_template(tmp_path: Path) -> None:
    """Messages are rendered, a plain prompt as one user message."""
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    workload = written(tmp_path, {"messages": messages}, {"prompt": "How?"}, concurrency=[1])
    draw = load_prompts(workload, template).for_point(LoadPoint(1, 0))

    assert {*draw.measured, *draw.warm_up[0]} == {"[system] Be brief. [user] Why? ", "[user] How? "}


def test_without_a_template_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    """A base model gets the bare text."""
    workload = written(tmp_path, {"prompt": "Once upon a time"}, concurrency=[1])

    assert load_prompts(workload, None).for_point(LoadPoint(1, 0)).measured[0] == "Once upon a time"


def test_fills_combine(tmp_path: Path) -> None:
    """A line with slots stands for every combination of its fills; other braces stay as they are."""
    line = {"prompt": "{a} {b} { } {Other}", "fill": {"a": ["1", "2"], "b": ["x", "{a}"]}}
    prompts = load_prompts(written(tmp_path, line), None)

    assert {p.messages[0]["content"] for p in prompts.warm_up + prompts.measured} == {
        "1 x { } {Other}", "2 x { } {Other}", "1 {a} { } {Other}", "2 {a} { } {Other}",
    }  # fmt: skip


def test_equal_prompts_count_once(tmp_path: Path) -> None:
    """A prompt that stands in the file twice is one prompt."""
    prompts = load_prompts(written(tmp_path, *[{"prompt": "again"}] * 3, {"prompt": "new"}), None)

    assert len(prompts.warm_up + prompts.measured) == 2


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{prompt: secret}", "not JSON"),
        (["secret"], "not an object"),
        ({"prompt": " "}, "empty"),
        ({"prompt": 3}, "not text"),
        ({"prompt": "secret", "messages": []}, "either prompt or messages"),
        ({"category": "chat"}, "either prompt or messages"),
        ({"promt": "secret"}, "no such key 'promt'. Did you mean 'prompt'?"),
        ({"prompt": "secret", "category": 1}, "category"),
        ({"messages": "secret"}, "not a list"),
        ({"messages": [{"role": "robot", "content": "secret"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"text": "secret"}]}]}, "content that is text"),
        (
            {"messages": [{"role": "user", "content": "secret"}, {"role": "assistant", "content": "secret"}]},
            "last message",
        ),
        ({"messages": [{"role": "user", "content": "secret"}], "fill": {}}, "fill goes with prompt"),
        ({"prompt": "secret {a}", "fill": {"b": ["1"]}}, "do not match: a, b"),
        ({"prompt": "secret {a}", "fill": {"a": []}}, "fill is not"),
    ],
)
def test_a_line_that_is_no_prompt(tmp_path: Path, line: Any, what: str) -> None:
    """Each bad line is named by file and number with what is wrong, never with its text."""
    workload = written(tmp_path, {"prompt": "fine"}, line)
    [mistake] = mistakes_of(workload)

    assert mistake.startswith(f"{workload.prompts}:2: ")
    assert what in mistake
    assert "secret" not in mistake


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    """A file with three mistakes is corrected in one go."""
    assert len(mistakes_of(written(tmp_path, "x", {"prompt": "fine"}, "y", "{}"))) == 3


def test_no_prompts(tmp_path: Path) -> None:
    """An empty file, and one that is not there, are mistakes of the config."""
    assert "no prompts" in mistakes_of(written(tmp_path))[0]
    assert "chat-mix" in mistakes_of(Workload(prompts="chat-mixx"))[0]


def test_a_template_that_refuses_is_found_when_loading(tmp_path: Path) -> None:
    """The person hears of a refusing template before any server is launched, with the line that met it."""
    refusing = ChatTemplate("{{ raise_exception('no') }}", path="chat_template.jinja")
    workload = written(tmp_path, "", {"prompt": "secret"})

    with pytest.raises(ConfError, match=r"own\.jsonl:2: chat_template\.jinja: .*no"):
        load_prompts(workload, refusing)


# The key


@pytest.mark.parametrize(
    "change",
    [{"output_tokens": 64}, {"temperature": 0.7}, {"requests_per_stream": 3}, {"prefix_cache": "kept"}, {"ignore_eos": True}, {"seed": 1}, {"input_tokens": 500}, {"prompts": "random"}, {"client": "bench_serving"}, {"arrival": "poisson", "request_rate": 2.0}],
)  # fmt: skip
def test_what_changes_a_measurement_changes_the_key(change: dict[str, Any]) -> None:
    """Two workloads that would measure different things never share a key."""
    assert workload_key(Workload(**change)) != workload_key(Workload())


def test_levels_and_repeats_do_not_change_the_key() -> None:
    """A level measured in a sweep of three levels can be compared with the same level in a sweep of one."""
    key = workload_key(Workload())

    assert key == workload_key(Workload(concurrency=[4], repeats=3))
    assert key.startswith("chat-mix-")


def test_the_key_follows_the_prompts_not_their_place(tmp_path: Path) -> None:
    """The same file elsewhere has the same key; another word in it gives another."""
    (tmp_path / "sub").mkdir()
    first, moved = written(tmp_path, {"prompt": "a"}), written(tmp_path / "sub", {"prompt": "a"})
    key = workload_key(first)

    assert key == workload_key(moved)
    assert key != workload_key(written(tmp_path, {"prompt": "b"}))


def test_keys_that_came_later_leave_the_key_as_it_was() -> None:
    """Rows measured before there was a rate, a client or a forced random prompt are of the same workload still."""
    assert workload_key(Workload()) == "chat-mix-890f7e8a"


# Length, and words of no language


@pytest.mark.parametrize("tokens", [10, 300, 3000])
def test_prompts_of_a_length(tokens: int) -> None:
    """Other prompts come before a short one, whose own words stay last; a long one is cut; no two begin alike."""
    workload = Workload(concurrency=[8], input_tokens=tokens)
    texts = load_prompts(workload, None).for_point(LoadPoint(8, 0)).measured
    natural = load_prompts(Workload(concurrency=[8]), None).for_point(LoadPoint(8, 0)).measured

    assert all(0.95 <= len(text) / (4 * tokens) <= 1.05 for text in texts)
    assert all(text.endswith(own) or own.startswith(text) for text, own in zip(texts, natural, strict=True))
    assert len({text[:40] for text in texts}) > len(texts) // 2


def test_random_prompts_are_the_same_each_time_and_never_twice() -> None:
    """As many as all points ask for, with the warm-ups; the seed decides which."""
    workload = Workload(prompts="random", concurrency=[4, 16], repeats=2)
    points = [LoadPoint(streams, repeat) for streams in (4, 16) for repeat in (0, 1)]
    draws = [load_prompts(workload, None).for_point(point) for point in points]
    asked = [text for draw in draws for text in draw.measured]

    assert draws == [load_prompts(workload, None).for_point(point) for point in points]
    assert len(set(asked)) == len(asked) == 2 * (24 + 96)
    assert not any(draw.reused for draw in draws)
    assert not set(asked) & {text for draw in draws for one_pass in draw.warm_up for text in one_pass}
