"""A sweep of a real target with a real trained drafter, on the real SGLang: slow, and only where the drafter is at hand.

make test-sglang-full DRAFTERS=folder      `folder/full` is an EAGLE-3 head for SmolLM2-135M-Instruct
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.fakes.processes import marked
from tests.sglang_cpu.product import CONF, ENGINES, finished, rows_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1500)]

SMOLLM2 = ENGINES / "smollm2"


@pytest.fixture
def trained_drafter() -> Path:
    folder = os.environ.get("DRAFTERS")
    if not folder or not SMOLLM2.exists():
        pytest.skip("needs trained drafters: make test-sglang-full DRAFTERS=folder that holds full/")
    return Path(folder) / "full"


def test_the_eagle_for_eagle3_mistake_is_found_by_its_acceptance(
    engine_python: Path, trained_drafter: Path, run_dir: Path
) -> None:
    """One trained EAGLE-3 head, launched rightly and as EAGLE: both serve, both look well, and one of them guesses nothing."""
    words = [
        f"target.path={SMOLLM2}", "target.dtype=float32", f"drafters.full={trained_drafter}",
        "space.algorithm=[none,EAGLE3,EAGLE]", "space.drafter=full", "space.eagle_topk=1",
        "server_args.disable_radix_cache=true",
        "workload.prompts=chat-mix", "workload.concurrency=[2]", "workload.output_tokens=48",
    ]  # fmt: skip

    ended = finished(["sweep", f"conf={CONF}", f"out={run_dir}", *words], timeout_s=1200)

    assert ended.returncode == 0, ended.stderr
    rows = rows_of(run_dir).set_index("algorithm")
    assert rows.acceptance_length["EAGLE3"] > 1.2
    assert rows.acceptance_length["EAGLE"] < 1.06
    assert "drafter_ineffective" in rows["flags"]["EAGLE"]
    assert "drafter_ineffective" not in rows["flags"]["EAGLE3"]
    (answer,) = yaml.safe_load((run_dir / "best.yaml").read_text())["answers"]
    assert answer["settings"] == "baseline" or answer["settings"]["algorithm"] == "EAGLE3"
    assert marked(run_dir) == []
