"""Lines: a recording that somebody kept as JSON lines is replayed like our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.lines import read_lines, settings_of
from orchestrator.engines.replay import Recording
from orchestrator.errors import MachineError
from results.failure import FailureKind
from results.ledger import read_records

STORED = Path(__file__).parents[1] / "docs" / "results" / "2026-11-29-h200-padded-5b"
PLAIN = ["-m", "sglang.launch_server", "--model-path", "/models/big", "--port", "34007", "--attention-backend", "fa3"]
CHAIN = [*PLAIN, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/drafters/full", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]  # fmt: skip


def line(argv: list[str], **more: Any) -> dict[str, Any]:
    return {"name": " ".join(argv[6:]), "target": "big", "argv": argv, "ready": True, "time_to_ready_s": 70.0} | more


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def test_a_command_line_of_sglang_is_read_back_as_the_settings_it_came_from() -> None:
    """Every launch of the stored sweep, from the words it was launched with."""
    for record in read_records(STORED / "trials.parquet"):
        assert settings_of(record.origin.argv) == record.asked


def test_lines_of_one_launch_are_its_load_points(tmp_path: Path) -> None:
    """Two concurrencies of one launch, and the same settings again as a relaunch; the drafter is called by its folder."""
    path = written(
        tmp_path / "grid.jsonl",
        line(CHAIN, run_dir="r0", concurrency=1, out_tok_s=300.0, accept_len_client=1.8, requests=6, ok=6, dur_s=4.5),
        line(CHAIN, run_dir="r0", concurrency=8, out_tok_s=2000.0, accept_len_client=1.9, requests=8, ok=6, dur_s=9.0),
        line(CHAIN, run_dir="r1", concurrency=1, out_tok_s=310.0, accept_len_client=1.8),
        line(PLAIN, run_dir="r0", concurrency=1, out_tok_s=250.0),
    )
    recording = Recording.at(path)
    chain, plain = recording.launches.values()
    assert [len(rows) for rows in chain] == [2, 1]
    assert [rows[0].launch for rows in chain] == [0, 1]
    eight = chain[0][1]
    assert (eight.asked.drafter, eight.asked.num_steps, eight.launch_s) == ("full", 3, 70.0)
    assert eight.point is not None
    assert eight.measurement is not None
    assert (eight.point.concurrency, eight.measurement.output_tok_s, eight.measurement.success_rate) == (
        8,
        2000.0,
        0.75,
    )
    assert plain[0][0].kind == "baseline"


def test_a_launch_that_did_not_come_up_fails_for_what_its_log_says(tmp_path: Path) -> None:
    """The log's words are read as those of a launch of our own."""
    died = line(CHAIN, ready=False, rc=-9, failure=["[2026-11-29 17:22:03] ValueError: speculative_eagle_topk > 1 is not supported with trtllm_mha"])  # fmt: skip
    out_of_memory = line(PLAIN, ready=False, failure="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB")  # fmt: skip
    kinds = [record.failure.kind for record in read_lines(written(tmp_path / "f.jsonl", died, out_of_memory)) if record.failure]  # fmt: skip
    assert kinds[1] is FailureKind.OOM_WEIGHTS
    assert kinds[0].blame == "setting"


def test_lines_that_do_not_say_what_was_launched_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are replayed."""
    path = written(tmp_path / "some.jsonl", {"name": "from a console", "out_tok_s": 1.0}, line(PLAIN, concurrency=1, out_tok_s=2.0))  # fmt: skip
    assert len(read_lines(path)) == 1
    assert "line 1 is left out" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"), [("{not json", "line 1 is no JSON"), ("[1]", "line 1 is list, not an object")]
)
def test_a_file_that_is_no_json_lines_is_refused_by_its_line(text: str, said: str, tmp_path: Path) -> None:
    """With the config's key, as every mistake."""
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(MachineError, match=f"engine.recording: .*{said}"):
        read_lines(path)
