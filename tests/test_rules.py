"""Rules: SGLang's silent rewrites are made before the launch, and what cannot run never gets there."""

import pytest
from hypothesis import given

from sweeps.rules import problems, settle, tree_capacity
from sweeps.settings import Settings
from tests.test_settings import SETTINGS


def eagle3(steps: int | None, topk: int | None, tokens: int | None, **more: object) -> Settings:
    return Settings(algorithm="EAGLE3", drafter="own", num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens).replace(**more)  # fmt: skip


@given(SETTINGS)
def test_settling_settled_settings_changes_nothing(settings: Settings) -> None:
    """settle() is total and idempotent over the whole domain."""
    once = settle(settings)
    again = settle(once.settings)
    assert again.settings == once.settings
    assert again.changes == ()


@given(SETTINGS)
def test_every_change_says_what_it_was_and_what_it_is_now(settings: Settings) -> None:
    """The changes, applied one by one, lead from the asked to the settled settings."""
    settled = settle(settings)
    for change in settled.changes:
        assert getattr(settings, change.knob) == change.was
        settings = settings.replace(**{change.knob: change.now})
    assert settings == settled.settings


def test_a_chain_always_verifies_steps_plus_one_tokens() -> None:
    """With topk 1 every num_draft_tokens is the same launch."""
    keys = {settle(eagle3(3, 1, tokens)).settings.key for tokens in (2, 4, 8, 64)}
    assert keys == {eagle3(3, 1, 4).key}


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "runs_with"),
    [(1, 2, 8, 3), (2, 2, 7, 7), (2, 2, 8, 7), (3, 4, 64, 37), (1, 4, 6, 5), (1, 2, 3, 3)],
)
def test_a_tree_is_cut_to_what_it_can_hold(steps: int, topk: int, tokens: int, runs_with: int) -> None:
    """More draft tokens than the tree has nodes die in graph capture: they are settled to the capacity."""
    assert settle(eagle3(steps, topk, tokens)).settings.num_draft_tokens == runs_with
    assert runs_with <= tree_capacity(steps, topk)


def test_the_plain_server_has_one_key_whatever_was_drawn_beside_it() -> None:
    """algorithm none clears every speculation knob, so a grid measures the plain server once."""
    assert settle(eagle3(5, 4, 16, algorithm="none")).settings == Settings()


def test_ngram_takes_neither_drafter_nor_topk() -> None:
    """NGRAM sets its topk itself, whatever is given: those knobs are cleared."""
    settled = settle(eagle3(5, 4, 16, algorithm="NGRAM")).settings
    assert (settled.drafter, settled.num_steps, settled.eagle_topk, settled.num_draft_tokens) == (None, None, None, 16)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (eagle3(None, 4, 8), "missing: num_steps"),
        (eagle3(3, None, None), "missing: eagle_topk, num_draft_tokens"),
        (eagle3(3, 1, 4, drafter=None), "EAGLE3 needs a drafter"),
        (eagle3(3, 4, 8, attention_backend="trtllm_mha"), "trtllm_mha takes eagle_topk 1 only"),
        (eagle3(3, 4, 8, page_size=16, attention_backend="fa4"), "needs one of flashinfer, fa3, triton"),
        (eagle3(3, 1, 4, attention_backend="flex_attention"), "refuses every speculative algorithm"),
    ],
)
def test_what_cannot_run_is_named_before_a_gpu_is_touched(settings: Settings, says: str) -> None:
    """Each problem says what is missing or refused."""
    assert any(says in problem for problem in problems(settings))


@pytest.mark.parametrize("settings", [eagle3(3, 1, 4), eagle3(None, None, None), eagle3(3, 4, 8, page_size=64, attention_backend="fa3"), Settings()])  # fmt: skip
def test_nothing_is_said_against_settings_that_run(settings: Settings) -> None:
    """The triple whole, the triple left out, a paged tree on fa3, the plain server."""
    assert problems(settings) == []
