"""workload.client: bench_serving: SGLang's own benchmark, run from the engine's environment, over our prompts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.measuring.bench_serving import BenchServing
from orchestrator.measuring.faults import MeasureError
from tests.fakes.paced import paced
from tests.sglang_cpu.product import CONF, ENGINES, PROJECT

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

SAMPLING = {"max_new_tokens": 64, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "ignore_eos": False}


@pytest.fixture
def bench(engine_python: Path, monkeypatch: pytest.MonkeyPatch) -> BenchServing:
    monkeypatch.setenv("PWD", str(PROJECT))
    conf: dict[str, Any] = yaml.safe_load(CONF.read_text().replace("${oc.env:PWD}", str(PROJECT)))
    environment = {**os.environ, **conf["engine"]["env"]}
    return BenchServing(str(engine_python), environment, str(ENGINES / "models" / "llama6"))


def test_it_asks_our_prompts_in_our_order_with_our_sampling(bench: BenchServing) -> None:
    """One stream, so that the order is seen; its figures are what the server did, in the columns that mean the same."""
    texts = [f"prompt {number}" for number in range(7)]
    with paced(ttft_s=0.05, itl_s=0.01, chunks=9, tokens_per_chunk=[3, 1]) as server:
        found = asyncio.run(bench.run(server.url, texts, SAMPLING, 1))
        kept = server.kept()

    assert [one["text"] for one in kept["asked"]] == texts
    assert all(one["sampling_params"] == SAMPLING for one in kept["asked"])
    assert (found.requests, found.success_rate, found.output_tokens) == (7, 1, kept["tokens"])
    assert found.output_tok_s == pytest.approx(kept["output_tok_s"], rel=0.25)
    assert (found.tpot_p50_ms or 0) >= kept["tpot_p50_ms"] * 0.8
    assert (found.ttft_p50_ms or 0) >= 50
    assert (found.acceptance_length, found.itl_p50_ms) == (None, None)


def test_what_it_says_is_quoted_when_it_fails(bench: BenchServing) -> None:
    """A program that ends without figures is a measurement that failed, with its own last words."""
    broken = BenchServing(bench.python, bench.environment, "/no/such/tokenizer")
    with (
        paced(chunks=4) as server,
        pytest.raises(MeasureError, match=r"(?s)wrote no figures; it said: .*no/such/tokenizer"),
    ):
        asyncio.run(broken.run(server.url, ["a prompt"], SAMPLING, 1))
