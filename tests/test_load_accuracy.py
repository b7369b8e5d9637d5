"""What the load generator reads against a server whose every time and count is known, and which says how well it kept them."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from orchestrator.measuring.load import measure
from orchestrator.measuring.workload import Draw
from orchestrator.plan import Workload
from results.measurement import Flag, Measurement
from sweeps.trial import LoadPoint
from tests.fakes.paced import paced

KEPT_WITHIN_MS = 5.0
"""A server that sends its chunks later than this (99th percentile) did not keep its schedule."""


def run(url: str, streams: int, requests: int, **workload: Any) -> tuple[Measurement, tuple[Flag, ...]]:
    warm_up = tuple(tuple(f"warm {n}" for n in range(streams)) for _ in range(2))
    draw = Draw(warm_up, tuple(f"ask {n}" for n in range(requests)))
    return measure(url, draw, Workload(concurrency=[streams], **workload), LoadPoint(streams, 0), 30.0)


def read_right(read_ms: float | None, kept_ms: float, unseen_ms: float = 0.0) -> bool:
    """Within 1 % or 1 ms of what the server did; a request may have lain `unseen_ms` at it before it began to count."""
    assert read_ms is not None
    allowed_ms = max(0.01 * kept_ms, 1.0)
    return kept_ms - allowed_ms <= read_ms <= kept_ms + unseen_ms + allowed_ms


@pytest.mark.parametrize(
    ("streams", "itl_s", "tokens"), [(1, 0.01, [1]), (8, 0.01, [3, 1, 4]), (32, 0.02, [2, 5]), (128, 0.04, [4, 3])]
)
def test_read_as_it_was_or_said_to_be_client_bound(streams: int, itl_s: float, tokens: list[int]) -> None:
    """Times within 1 % or 1 ms of what the server did, several tokens a chunk or one; else the row says client_bound.

    A machine that stands still for a moment between the two is nobody's doing: one of three readings is right.
    """
    assert any(read_as_it_was_or_said(streams, itl_s, tokens) for _ in range(3))


def read_as_it_was_or_said(streams: int, itl_s: float, tokens: list[int]) -> bool:
    with paced(ttft_s=0.05, spread_s=0.1, itl_s=itl_s, chunks=16, tokens_per_chunk=tokens) as server:
        measured, flags = run(server.url, streams, max(6, 4 * streams))
        kept = server.kept()

    assert (measured.output_tokens, measured.requests) == (kept["tokens"], kept["requests"])
    right = (
        read_right(measured.ttft_p50_ms, kept["ttft_p50_ms"], kept["unseen_mean_ms"]),
        read_right(measured.tpot_p50_ms, kept["tpot_p50_ms"]),
        math.isclose(measured.output_tok_s or 0, kept["output_tok_s"], rel_tol=0.01),
    )
    return all(right) or Flag.CLIENT_BOUND in flags or kept["late_p99_ms"] > KEPT_WITHIN_MS


def test_slow_requests_show_at_p99_and_not_in_the_median() -> None:
    """One request of ten takes four times as long: the 99th percentile says so, whatever the client does."""
    with paced(ttft_s=0.05, itl_s=0.005, chunks=8, slow_every=10) as server:
        measured, flags = run(server.url, 10, 40)

    assert (measured.ttft_p99_ms or 0) > 199
    assert (measured.tpot_p99_ms or 0) > 19
    assert (measured.ttft_p50_ms or math.inf) < (measured.ttft_p99_ms or 0) / 2 or Flag.CLIENT_BOUND in flags


def test_refused_requests_are_counted_and_nothing_of_them_is_timed() -> None:
    """One request of twenty is refused at once: no fast TTFT, no tokens, and the success rate says it."""
    with paced(ttft_s=0.05, itl_s=0.002, chunks=8, tokens_per_chunk=[3], fail_every=20) as server:
        measured, flags = run(server.url, 4, 40)
        kept = server.kept()

    assert (kept["refused"], measured.success_rate) == (2, 0.95)
    assert measured.output_tokens == kept["tokens"] == 38 * 22
    assert (measured.ttft_p50_ms or 0) > 49
    assert Flag.REQUESTS_FAILED in flags


def test_acceptance_is_what_the_server_counted() -> None:
    """Chunks of three and one tokens are verify steps of an acceptance length of two."""
    with paced(ttft_s=0.01, itl_s=0.001, chunks=9, tokens_per_chunk=[3, 1]) as server:
        measured, _ = run(server.url, 4, 12)

    assert measured.acceptance_length == 2


def test_a_client_that_cannot_keep_up_says_so() -> None:
    """An event loop that stands still for a tenth of the time: the row says client_bound, with how late it was."""
    with paced(ttft_s=0.05, itl_s=0.01, chunks=30) as server:
        draw = Draw((("warm",),), tuple(f"ask {n}" for n in range(6)))
        workload, point = Workload(concurrency=[1]), LoadPoint(1, 0)
        measured, flags = measure(server.url, draw, workload, point, 30.0, check=lambda: time.sleep(0.05))

    assert Flag.CLIENT_BOUND in flags
    assert (measured.client_lag_p99_ms or 0) > 20
