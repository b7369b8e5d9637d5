"""The scripts of tests/gpu that say what was measured on real cards, as far as they run without one."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from results.ledger import read_records
from tests.gpu import clients, landscape

LOG = """Cache flushed successfully!
Decode batch, #running-req: 64, accept len: 2.00, gen throughput (token/s): 9000.00
Cache flushed successfully!
Decode batch, #running-req: 60, accept len: 2.00, gen throughput (token/s): 100.00
Decode batch, #running-req: 64, accept len: 2.00, gen throughput (token/s): 8000.00
Decode batch, #running-req: 64, accept len: 3.00, gen throughput (token/s): 6000.00
Decode batch, #running-req: 5, accept len: 2.00, gen throughput (token/s): 700.00
"""


def test_a_servers_own_pace_is_tokens_over_time_at_full_load_since_its_last_flush() -> None:
    """Two full lines of as many steps: 64 × 2 and 64 × 3 tokens a step; the first line and the emptying server say nothing."""
    assert clients.pace_tok_s(LOG) == pytest.approx(320 / (128 / 8000 + 192 / 6000))


def test_a_log_without_decoding_has_no_pace() -> None:
    assert clients.pace_tok_s("Cache flushed successfully!\n") is None


def test_servers_of_a_landscape_boot_together_and_are_measured_one_at_a_time(tmp_path: Path) -> None:
    """One round of three on one card: the plain server and two settings, and no load point begins while another is measured."""
    words = [
        "conf=demo", "space.num_steps=[1, 3]", "space.eagle_topk=[1]", "workload.concurrency=[1, 2]", "workload.output_tokens=16",
        "workload.requests_per_stream=2",
    ]  # fmt: skip
    assert landscape.main([f"out={tmp_path / 'run'}", "at_once=3", "seconds=1", *words]) == 0
    rows = sorted(read_records(tmp_path / "run"), key=lambda row: row.started_at)
    assert [row.kind for row in rows].count("baseline") == 2
    assert len({row.asked.key for row in rows}) == 3
    assert len(rows) == 6
    for row, following in pairwise(rows):
        assert row.measurement
        assert row.measurement.measure_s
        assert following.started_at >= row.started_at + timedelta(seconds=row.measurement.measure_s)
