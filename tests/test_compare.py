"""compare: what changed from one run to another, with intervals, and what the runs differ in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.config import load_plan, to_yaml
from results.compare import Change, compare
from results.evidence import Evidence
from results.ledger import Ledger
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from results.verdict import judge
from sweeps.observation import Goal
from sweeps.settings import Settings
from tests.fakes.command_line import orchestrator
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, measured


def rows(speeds: dict[Settings, Sequence[float]], **more: object) -> list[Record]:
    """Each settings launched as often as it has speeds."""
    return [
        measured(settings, tok_s, trial=10 * place + launch, launch=launch, **more)  # type: ignore[arg-type]
        for place, (settings, found) in enumerate(speeds.items())
        for launch, tok_s in enumerate(found)
    ]


BEFORE = rows({PLAIN: (100, 101, 100), EAGLE3: (150, 151, 150, 149)})


def change(found: Sequence[Change], what: str) -> Change:
    return next(one for one in found if one.what == what)


def test_what_changed_has_an_interval_and_an_answer() -> None:
    """A newer engine: plain 1.2 times as fast, speculation the same, so that its speedup fell."""
    after = rows({PLAIN: (120, 121, 120), EAGLE3: (150, 152, 150, 151)}, engine_version="0.5.24")
    found = compare(BEFORE, after, Goal())
    plain, best = change(found.changes, "plain server"), change(found.changes, "best speculative")
    assert plain.ratio == pytest.approx(1.2, rel=0.01)
    assert plain.low < 1.2 < plain.high
    assert plain.answer == "faster"
    assert best.answer == "cannot tell"
    assert best.before_speedup == pytest.approx(1.5, rel=0.02)
    assert best.after_speedup == pytest.approx(1.25, rel=0.02)
    assert found.differs == {"engine_version": ("0.5.23", "0.5.24")}


def test_two_drafters_are_compared_setting_by_setting() -> None:
    """Each run has one drafter, under whatever name: the same steps, topk and tokens are the same settings."""
    after = rows({PLAIN: (100, 101, 100), PUBLIC: (120, 121, 120, 119)}, drafter_hash="0123456789abcdef")
    found = compare(BEFORE, after, Goal())
    same = change(found.changes, "same settings")
    assert (same.before, same.after) == (EAGLE3, PUBLIC)
    assert same.answer == "slower"
    assert found.differs["drafters"] == ("own", "public (01234567)")


def test_several_drafters_are_told_apart_by_name() -> None:
    """With two in a run, the one called public is not compared with the one called own."""
    before = [*BEFORE, *rows({PUBLIC: (90,)})]
    after = rows({PLAIN: (100,), PUBLIC: (95,)})
    same = [one for one in compare(before, after, Goal()).changes if one.what == "same settings"]
    assert [(one.before, one.after) for one in same] == [(PUBLIC, PUBLIC)]


def test_single_launches_leave_it_open() -> None:
    """A tenth faster on one launch each: that is within what launches differ by."""
    found = compare(rows({PLAIN: (100,), EAGLE3: (150,)}), rows({PLAIN: (100,), EAGLE3: (165,)}), Goal())
    assert change(found.changes, "best speculative").answer == "cannot tell"


def test_runs_that_cannot_be_compared_say_so() -> None:
    """Other load points, other prompts, a model instead of a GPU."""
    after = rows({PLAIN: (100,), EAGLE3: (165,)}, concurrency=64, workload="other", simulated=True)
    found = compare(BEFORE, after, Goal())
    assert found.changes == ()
    assert len(found.warnings) == 3


def test_a_comparison_as_json_is_plain_values() -> None:
    """For a tool."""
    found = compare(BEFORE, BEFORE, Goal())
    first = json.loads(json.dumps(found.changes[0].as_dict()))
    assert first["ratio"] == 1.0
    assert first["answer"] == "cannot tell"
    assert first["before"]["algorithm"] == "none"


def test_each_run_is_judged_by_its_own_objective() -> None:
    """What the first run is said to win is what its own reports say, whatever the second was asked for."""
    tokens, patience = Goal(), Goal(minimize="ttft_p50_ms")
    after = rows({PLAIN: (100, 101, 100), EAGLE3: (165, 166, 165)})
    found = compare(BEFORE, after, tokens, patience)
    assert found.verdicts[0] == judge(BEFORE, tokens)
    assert found.verdicts[1] == judge(after, patience)
    assert found.metrics == (tokens.metric, "ttft_p50_ms")
    assert f"The objectives differ: {tokens.metric} → ttft_p50_ms." in found.warnings[0]
    own = change(compare(BEFORE, BEFORE, tokens).changes, "same settings").before_speedup
    assert own is not None
    assert change(found.changes, "same settings").before_speedup == own


def test_a_drafter_that_guesses_nothing_is_judged_as_in_the_run_s_own_report(tmp_path: Path) -> None:
    """The load point that looked better by chance has no flag of its own; neither verdict names it, nor any change."""
    found = [
        *rows({PLAIN: (100,), PUBLIC: (120,)}, concurrency=1), *rows({PLAIN: (600,), PUBLIC: (700,)}, concurrency=8),
        measured(EAGLE3, 160, trial=30, concurrency=1, acceptance_length=1.10, acceptance_histogram=[90, 10]),
        measured(
            EAGLE3, 500, trial=30, concurrency=8, acceptance_length=1.01, acceptance_histogram=[5000, 50],
            flags=(Flag.DRAFTER_INEFFECTIVE,),
        ),
    ]  # fmt: skip
    reported = Evidence.of(RunDir.at(tmp_path / "run"), found, Goal(), {})
    compared = compare(found, found, Goal())
    assert compared.verdicts == (reported.verdict, reported.verdict)
    assert {one.before for one in compared.changes} == {PLAIN, PUBLIC}


def stored(path: Path, records: Sequence[Record], *words: str) -> Path:
    run = RunDir.at(path)
    run.plan.write_text(f"# conf: demo\n{to_yaml(load_plan(['conf=demo', *words]))}")
    ledger = Ledger(run)
    for record in records:
        ledger.append(record)
    return path


def test_the_verb_compares_two_runs(tmp_path: Path) -> None:
    """Every load point, as text and as JSON; one run directory alone is a mistake."""
    before = stored(tmp_path / "a", BEFORE)
    after = stored(
        tmp_path / "b", rows({PLAIN: (120, 121, 120), EAGLE3: (150, 152, 150, 151)}, engine_version="0.5.24")
    )
    told = orchestrator("compare", before, after)
    assert told.returncode == 0, told.stderr
    assert "engine_version   0.5.23 → 0.5.24" in told.stdout
    assert "concurrency 8, plain server: faster" in told.stdout
    assert "concurrency 8, best speculative: cannot tell" in told.stdout
    as_json = json.loads(orchestrator("compare", before, after, "--json").stdout)
    assert {one["what"] for one in as_json["changes"]} == {"plain server", "best speculative", "same settings"}
    wrong = orchestrator("compare", before)
    assert wrong.returncode == 2
    assert "compare takes two run directories" in wrong.stderr


def test_a_run_compared_with_itself_is_said_to_be_one(tmp_path: Path) -> None:
    """And each pair of settings stands there once, though the best of both is the same."""
    run = stored(tmp_path / "a", BEFORE)
    told = orchestrator("compare", run, f"{run}/.").stdout
    assert "Note: A and B are the same run: nothing can have changed." in told
    assert told.count("concurrency 8, ") == len({one.before for one in compare(BEFORE, BEFORE, Goal()).changes})


def test_two_servers_that_ran_already_are_compared_whatever_they_run() -> None:
    """A plain one with one that speculates: the answer that neither run could give."""
    (change,) = compare(
        rows({PLAIN: (100,)}, engine="attached"), rows({EAGLE3: (150,)}, engine="attached"), Goal()
    ).changes
    assert (change.what, change.before, change.after) == ("the server", PLAIN, EAGLE3)
    assert change.ratio == pytest.approx(1.5)


def test_what_two_workloads_differ_in_is_named(tmp_path: Path) -> None:
    """Each key of plan.yaml with both values, and both objectives."""
    before = stored(tmp_path / "a", BEFORE)
    words = ("workload.output_tokens=12", "workload.arrival=poisson", "workload.request_rate=0.5")
    after = stored(tmp_path / "b", rows({PLAIN: (100,), EAGLE3: (150,)}, workload="other"), *words)
    told = orchestrator("compare", before, after).stdout
    assert "workload.output_tokens: 48 → 12; workload.arrival: closed → poisson" in told
    assert told.count("(by output_tok_s)") == 2
