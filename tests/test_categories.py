"""Acceptance by category of prompts: which kind of text a drafter guesses well."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.measuring.load import measure
from orchestrator.measuring.workload import load_prompts
from orchestrator.plan import Workload
from results.acceptance import by_category
from results.evidence import Evidence
from results.measurement import Flag
from results.rundir import RunDir
from results.tables import tables
from sweeps.observation import Goal
from sweeps.trial import LoadPoint
from tests.fakes.records import EAGLE3, PUBLIC, measured
from tests.fakes.simulator import CHAIN, serving, speculation


def prompts(folder: Path, *categories: str) -> Path:
    lines = [
        json.dumps({"prompt": f"{category}: tell me of the number {n} in a few words.", "category": category})
        for category in categories
        for n in range(20)
    ]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return path


def seen(tmp_path: Path, *categories: str) -> str | None:
    workload = Workload(prompts=str(prompts(tmp_path, *categories)), concurrency=[4], output_tokens=24)
    point = LoadPoint(4, 0)
    with serving(tmp_path, *speculation(*CHAIN)) as server:
        measurement, _ = measure(server.url, load_prompts(workload, None).for_point(point), workload, point, 20.0)
    whole, told = measurement.acceptance_histogram, measurement.acceptance_by_category
    if told is not None:
        columns = [
            sum(column)
            for column in zip(*(_padded(h, len(whole or [])) for h in json.loads(told).values()), strict=True)
        ]
        assert columns == whole
    return told


def _padded(histogram: list[int], length: int) -> list[int]:
    return histogram + [0] * (length - len(histogram))


def test_a_point_tells_acceptance_of_each_category(tmp_path: Path) -> None:
    """The histograms of all categories add up to the point's own."""
    told = seen(tmp_path, "coding", "chat")
    assert told is not None
    assert set(json.loads(told)) == {"coding", "chat"}


def test_prompts_of_one_category_are_not_told_apart(tmp_path: Path) -> None:
    """There is nothing to compare, and the histogram says it all."""
    assert seen(tmp_path, "coding") is None


def test_rows_are_pooled_by_drafter_and_category(tmp_path: Path) -> None:
    """Over load points and launches; a row that may not win says nothing, nor does one without categories."""
    told = json.dumps({"coding": [10, 0, 30], "chat": [40, 10]})
    rows = [
        measured(EAGLE3, 100.0, trial=1, acceptance_by_category=told), measured(EAGLE3, 90.0, trial=2, acceptance_by_category=told),
        measured(EAGLE3, 80.0, trial=3), measured(PUBLIC, 80.0, trial=4, acceptance_by_category=told, flags=(Flag.STALLED,)),
    ]  # fmt: skip
    found = by_category(rows)
    assert list(found) == [("EAGLE3", "own")]
    evidence = Evidence.of(RunDir.at(tmp_path / "run"), rows, Goal(), {})
    (table,) = [table for table in tables(evidence) if table.kind == "categories"]
    assert (table.header, table.rows) == (("drafter", "chat", "coding"), [("EAGLE3 own", "1.20", "2.50")])
    lengths = {category: round(acceptance.length, 2) for category, acceptance in found["EAGLE3", "own"].items()}
    assert lengths == {"coding": 2.5, "chat": 1.2}
    assert found["EAGLE3", "own"]["coding"].verify_steps == 80
