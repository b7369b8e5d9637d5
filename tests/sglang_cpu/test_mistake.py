"""The classic mistake on the real SGLang: an EAGLE-3 drafter that is launched as EAGLE."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.sglang_cpu.product import CONF, SWEEP_S, finished, rows_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


def test_an_eagle3_drafter_launched_as_eagle_is_found_by_its_acceptance(engine_python: Path, run_dir: Path) -> None:
    """SGLang serves this mistake without a warning; the rows say that the drafter guesses nothing, and it is never best.

    Inspection knows before the launch: the config overrules it, and the rows say that, too.
    """
    space = ["space.algorithm=[none,EAGLE]", "space.drafter=tiny", "space.eagle_topk=1"]

    ended = finished(["sweep", f"conf={CONF}", f"out={run_dir}", *space], SWEEP_S)

    assert ended.returncode == 0, ended.stderr
    mistaken = rows_of(run_dir).query("algorithm == 'EAGLE'")
    assert len(mistaken) == 2
    assert (mistaken.acceptance_length < 1.05).all()
    assert all({"drafter_ineffective", "drafter_unchecked"} <= set(flags) for flags in mistaken["flags"])
    answers = yaml.safe_load((run_dir / "best.yaml").read_text())["answers"]
    assert [answer["settings"] for answer in answers] == ["baseline", "baseline"]
