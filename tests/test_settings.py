"""Settings: one launch, one key; a knob is declared once and found everywhere."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.sglang import SGLang
from results.record import schema
from sweeps import settings as declared
from sweeps.rules import settle
from sweeps.settings import ALGORITHMS, Settings, knobs
from tests.fakes.plans import plan

SETTINGS = st.builds(
    Settings,
    algorithm=st.sampled_from(ALGORITHMS),
    drafter=st.none() | st.sampled_from(["own", "public"]),
    num_steps=st.none() | st.integers(1, 8),
    eagle_topk=st.none() | st.integers(1, 8),
    num_draft_tokens=st.none() | st.integers(2, 64),
    attention_backend=st.none() | st.sampled_from(["fa3", "flashinfer", "triton", "trtllm_mha"]),
    cuda_graph=st.booleans(),
    page_size=st.none() | st.sampled_from([1, 16, 64]),
    max_running_requests=st.none() | st.integers(1, 256),
    server_args=st.sampled_from([(), (("chunked_prefill_size", 2048),), (("cuda_graph_bs_decode", (1, 2)),)]),
)


@given(SETTINGS)
def test_settings_survive_the_way_through_plain_values(settings: Settings) -> None:
    """What YAML, JSON and Parquet hold of settings is all there is to them."""
    assert Settings.from_dict(settings.as_dict()) == settings
    stored = Settings.from_dict(json.loads(json.dumps(settings.as_dict())))
    assert (stored, stored.key, hash(stored)) == (settings, settings.key, hash(settings))


@given(SETTINGS, SETTINGS)
def test_keys_are_equal_exactly_when_settings_are(one: Settings, other: Settings) -> None:
    """The key stands for the launch: no twin has another, no two launches share one."""
    assert (one.key == other.key) == (one == other)


@given(SETTINGS)
def test_the_plain_server_has_no_speculation_and_all_the_rest(settings: Settings) -> None:
    """plain() clears every speculation knob and keeps every server knob."""
    plain = settings.plain()
    assert not plain.speculative
    for knob in knobs().values():
        expected = (
            getattr(settings, knob.name) if knob.scope == "server" else ("none" if knob.name == "algorithm" else None)
        )
        assert getattr(plain, knob.name) == expected
    assert plain.server_args == settings.server_args


@pytest.mark.parametrize(
    ("knob", "value", "says"),
    [
        ("algorithm", False, "quote it, or write none"),
        ("algorithm", "EAGLE4", "not one of none, EAGLE3"),
        ("num_steps", 0, "below 1"),
        ("num_steps", "3", "'3' is not a whole number"),
        ("num_steps", True, "is a boolean"),
        ("mem_fraction_static", 1.5, "above 1"),
        ("attention_backend", 3, "3 is not text"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_meant(knob: str, value: object, says: str) -> None:
    """A knob refuses what it cannot be, in words for a person."""
    assert says in (knobs()[knob].mistake(value) or "")


def test_a_whole_number_may_stand_where_a_number_is_meant() -> None:
    """1 is a number."""
    assert knobs()["mem_fraction_static"].mistake(1) is None


def test_a_knob_added_in_one_line_is_found_at_every_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One declared field reaches the check, the argument, the server's info and the Parquet column; speculation's are cleared with it."""
    lines = [
        ("kv_cache_dtype", "str | None", declared._knob(None, "Type of the KV cache.", "server", "kv_cache_dtype")),
        ("draft_window", "int", declared._knob(0, "Tokens the drafter sees.", "speculation", "speculative_draft_window_size")),
    ]  # fmt: skip
    grown = dataclasses.make_dataclass("Grown", lines, bases=(Settings,), frozen=True)
    monkeypatch.setattr(declared, "Settings", grown)
    monkeypatch.setattr("orchestrator.engines.sglang.Settings", grown)
    declared.knobs.cache_clear()
    schema.cache_clear()
    try:
        knob = knobs()["kv_cache_dtype"]
        assert knob.mistake(8) == "8 is not text"
        settings = grown(kv_cache_dtype="fp8_e5m2")
        dialect = SGLang(plan())
        assert dialect._knob_words("kv_cache_dtype", settings) == ["--kv-cache-dtype", "fp8_e5m2"]
        assert dialect.as_run({"kv_cache_dtype": "auto"}, settings) == grown(kv_cache_dtype="auto")
        assert schema().field("kv_cache_dtype").metadata[b"doc"] == b"Type of the KV cache."
        assert settings.key != grown().key
        for algorithm in ("none", "NGRAM"):
            assert settle(grown(algorithm=algorithm, draft_window=512)).settings == grown(algorithm=algorithm)
        assert settle(grown(algorithm="DFLASH", draft_window=512)).settings.draft_window == 512
    finally:
        monkeypatch.undo()
        declared.knobs.cache_clear()
        schema.cache_clear()
