"""The lossless gate: corruption is caught, rounding is not accused, and every finalist's rows say what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.events import OutputsChecked
from orchestrator.gpus import GpuSet
from orchestrator.measuring.lossless import CheckFailed, OutputCheck, answers, prompt_tokens, scored
from orchestrator.plan import Budget, Workload
from orchestrator.progress import Narrator
from orchestrator.sweep import sweep
from orchestrator.worker import Worker
from results.driving import lock
from results.ledger import Ledger, read_records
from results.lossless import Answer, Lossless, lossless, surplus_by_chance
from results.measurement import Flag
from results.report import write_report
from results.rundir import RunDir
from results.sample import samples
from sweeps.observation import Goal
from sweeps.settings import ARGS
from sweeps.space import Held, Range
from sweeps.trial import LoadPoint, Trial
from tests.fakes.plans import CHAIN as SPECULATIVE
from tests.fakes.plans import plan
from tests.fakes.pools import LocalPool
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, failure, measured
from tests.fakes.simulator import CHAIN, serving, speculation

TEXTS = [f"Tell me about the number {number} and what it is good for." for number in range(12)]
REQUEST_S = 20.0


def checked(tmp_path: Path, *faults: str) -> Lossless:
    """A simulated finalist with these faults, re-scored by a simulated plain server."""
    check = OutputCheck(tmp_path / "outputs", REQUEST_S)
    words = [word for fault in faults for word in ("--sim-fault", fault)]
    with serving(tmp_path, *speculation(*CHAIN), *words) as finalist:
        check.take(7, finalist.url, TEXTS)
    with serving(tmp_path) as plain:
        found = dict(check.score(plain.url, TEXTS))
    assert not check.waits
    return found[7]


def answer(gaps: list[float], tokens: list[int] | None = None) -> Answer:
    return Answer(tuple(tokens or range(len(gaps))), tuple(gaps))


def test_a_lossless_server_says_what_the_target_says(tmp_path: Path) -> None:
    """Every token is the target's own choice, every answer equals the plain server's."""
    seen = checked(tmp_path)
    assert not seen.changed
    assert (seen.argmax_share, seen.far_share, seen.same_share, seen.divergence_tokens) == (1.0, 0.0, 1.0, None)
    assert seen.tokens > 200


def test_a_corrupting_server_is_caught(tmp_path: Path) -> None:
    """Three wrong tokens in a hundred are too many for chance."""
    seen = checked(tmp_path, "corrupt:0.03")
    assert seen.changed
    assert seen.gap_max_nats == pytest.approx(8.0)
    assert 0.005 < seen.far_share < 0.08


def test_near_ties_are_not_taken_for_corruption(tmp_path: Path) -> None:
    """S08's counterpart: one token in five is the target's second choice, so hardly a text is equal, and nothing is wrong."""
    seen = checked(tmp_path, "near-ties:0.2")
    assert not seen.changed
    assert seen.argmax_share < 0.9
    assert seen.same_share < 0.2
    assert seen.divergence_tokens is not None
    assert seen.gap_max_nats == pytest.approx(0.1)


def test_a_server_that_gives_no_scores_fails_the_check_and_nothing_else(tmp_path: Path) -> None:
    """What waits is dropped, and the next plain server is not asked about it again."""
    check = OutputCheck(tmp_path / "outputs", REQUEST_S)
    with serving(tmp_path, *speculation(*CHAIN)) as finalist:
        check.take(1, finalist.url, TEXTS[:1])
        gone = finalist.url
    with pytest.raises(CheckFailed, match=r"/generate"):
        list(check.score(gone, TEXTS[:1]))
    assert not check.waits


def test_a_worker_that_dies_takes_no_answers_along(tmp_path: Path) -> None:
    """They wait in the run, for its owner alone; whoever runs the next plain server scores them.  What was scored when a second
    worker died is there to be scored again, and what answers other prompts, or is torn, is dropped."""
    folder = tmp_path / "outputs"
    with serving(tmp_path, *speculation(*CHAIN)) as server:
        first = OutputCheck(folder, REQUEST_S)
        for trial, texts in ((3, TEXTS), (4, TEXTS[:2]), (5, TEXTS)):
            first.take(trial, server.url, texts)
    (folder / "000006.json").write_text('{"trial": 6, "asked"')
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.glob("00000[345].json")} == {0o600}

    with serving(tmp_path) as plain:
        dies = OutputCheck(folder, REQUEST_S).score(plain.url, TEXTS)
        assert next(dies)[0] == 3
        dies.close()
        last = OutputCheck(folder, REQUEST_S)
        assert [trial for trial, _ in last.score(plain.url, TEXTS)] == [3, 5]
    assert not last.waits


def test_another_worker_scores_what_a_lost_one_took(tmp_path: Path) -> None:
    """The finalist's rows get their record though its worker is gone, and the sweep leaves no answers behind."""
    asked = plan(workload=Workload(concurrency=[4], output_tokens=24, requests_per_stream=2))
    run, points = RunDir.at(tmp_path / "run"), (LoadPoint(4, 0),)
    finalist, baseline = (
        Trial(0, SPECULATIVE, "finalist", points, launch=1),
        Trial(1, SPECULATIVE.plain(), "baseline", points),
    )
    list(Worker(asked, run, GpuSet(("0",), pretend=True)).run(finalist))
    assert [file.name for file in run.outputs_dir.iterdir()] == ["000000.json"]

    events = list(Worker(asked, run, GpuSet(("1",), pretend=True)).run(baseline))
    (checked,) = [event for event in events if isinstance(event, OutputsChecked)]
    assert (checked.trial, checked.lossless.changed) == (0, False)
    assert list(run.outputs_dir.iterdir()) == []


def test_scores_follow_the_prompt_and_not_the_answer_before(tmp_path: Path) -> None:
    """The plain server's own answers score as its own choices; the same answers to another prompt do not."""
    with serving(tmp_path) as plain:
        prompts = prompt_tokens(plain.url, TEXTS[:2], REQUEST_S)
        said = answers(plain.url, TEXTS[:2], REQUEST_S)
        assert {gap for one in scored(plain.url, prompts, said, REQUEST_S) for gap in one.gaps_nats} == {0.0}
        swapped = scored(plain.url, prompts, said[::-1], REQUEST_S)
    assert max(gap for one in swapped for gap in one.gaps_nats) > 1


def test_far_tokens_that_the_control_shows_too_are_no_corruption() -> None:
    """A plain server whose prefill and decoding disagree as much accuses nobody."""
    far, close = [0.0] * 95 + [1.5] * 5, [0.0] * 100
    seen = lossless([answer(far)] * 10, [answer(far)] * 10)
    assert seen is not None
    assert not seen.changed
    alone = lossless([answer(far)] * 10, [answer(close)] * 10)
    assert alone is not None
    assert alone.changed


def test_one_far_token_in_a_thousand_is_no_proof() -> None:
    """A single one may be a near-tie with bad luck: a surplus has to be more than chance."""
    seen = lossless([answer([0.0] * 999 + [2.0])], [answer([0.0] * 1000)])
    assert seen is not None
    assert not seen.changed


def test_nothing_re_scored_is_no_answer() -> None:
    """Without a token there is no record, rather than one of zeros."""
    assert lossless([answer([])], [answer([0.0])]) is None
    assert lossless([], []) is None


@given(st.integers(0, 20), st.integers(1, 200), st.integers(0, 20), st.integers(1, 200))
def test_a_surplus_is_rarer_the_larger_it_is(far: int, tokens: int, own_far: int, own_tokens: int) -> None:
    """A probability, 1 where nothing is far, and never larger for one far token more."""
    far, own_far = min(far, tokens), min(own_far, own_tokens)
    chance = surplus_by_chance(far, tokens, own_far, own_tokens)
    assert 0 <= chance <= 1
    assert far > 0 or chance == pytest.approx(1.0)
    if far < tokens:
        assert surplus_by_chance(far + 1, tokens, own_far, own_tokens) <= chance + 1e-9


CHANGED = Lossless(1000, 0.9, 0.05, 9.0, 1.0, 0.0, 0.1, 4.0, changed=True)


def test_what_was_seen_stands_in_the_rows_of_the_finalist(tmp_path: Path) -> None:
    """It is learned after the launch has ended: its rows are written anew, failures as they were."""
    run = RunDir.at(tmp_path / "run")
    ledger = Ledger.open(run)
    for record in (
        measured(EAGLE3, 150.0, trial=3),
        measured(EAGLE3, 99.0, trial=3, concurrency=32),
        failure(EAGLE3, trial=3),
    ):
        ledger.append(record)
    ledger.amend(3, CHANGED.on)
    rows = read_records(run.path)
    assert rows == ledger.records
    assert [row.measurement.lossless_argmax_share for row in rows if row.measurement] == [0.9, 0.9]
    assert [row.flags for row in rows] == [(Flag.OUTPUT_CHANGED,)] * 2 + [()]


def test_a_setting_whose_output_changed_never_wins() -> None:
    """One launch that said wrong words bars the setting, also its launches that were not checked (S08)."""
    good, bad = measured(EAGLE3, 150.0, trial=3, launch=0), measured(EAGLE3, 150.0, trial=4, launch=1)
    (plain, barred) = samples([measured(PLAIN, 100.0, trial=0), good, CHANGED.on(bad)], Goal())[8]
    assert plain.cannot_win is None
    assert (barred.trusted, barred.cannot_win) == (False, "output_changed")


def test_a_sweep_bars_a_corrupting_drafter_by_itself(tmp_path: Path) -> None:
    """The race launches the finalist and then a plain server on the same GPU set, which re-scores what was said; the
    verdict does not speculate, whatever the speed, and the journal says why."""
    asked = plan(
        {
            "drafter": Held("own"), "eagle_topk": Held(1), "attention_backend": Held("fa3"), "num_steps": Range(2, 3),
            f"{ARGS}sim_fault": Held("corrupt:0.05"),
        },
        workload=Workload(concurrency=[4], output_tokens=24, requests_per_stream=2),
        budget=Budget(launches=6, finalists=2),
    )  # fmt: skip
    run = RunDir.at(tmp_path / "run")
    with lock(run):
        verdict = sweep(asked, run, LocalPool(asked, run, GpuSet(("0",), pretend=True)), Narrator())
    rows = [row for row in read_records(run.path) if row.kind == "finalist" and row.measurement]
    assert [row.flags.count(Flag.OUTPUT_CHANGED) for row in rows] == [1]
    assert all(row.measurement.lossless_tokens for row in rows if row.measurement)
    assert [event["changed"] for event in run.journal.events() if event["event"] == "outputs_checked"] == [True]
    assert rows[0].settings not in [answer.settings for answer in verdict.answers]
    assert not run.outputs_dir.exists()


def test_a_run_without_re_scoring_says_that_nothing_was_checked(tmp_path: Path) -> None:
    """Of what it recommends; where that is the plain server alone there is nothing to check."""
    run = RunDir.at(tmp_path / "run")
    write_report(run, [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 250.0, trial=1)], Goal(), {})
    assert f"| {EAGLE3} | **not checked** |" in run.summary.read_text().split("## Is the output unchanged")[1]
    write_report(run, [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 50.0, trial=1)], Goal(), {})
    assert "Is the output unchanged" not in run.summary.read_text()


def test_the_summary_says_whether_the_output_is_unchanged(tmp_path: Path) -> None:
    """A line a finalist: what share is the target's own choice, beside what the plain server's own answers show."""
    same = Lossless(1200, 0.995, 0.0, 0.4, 0.998, 0.0, 0.2, 12.0, changed=False)
    rows = [
        measured(PLAIN, 100.0, trial=0), same.on(measured(EAGLE3, 150.0, trial=1, launch=1)),
        CHANGED.on(measured(PUBLIC, 170.0, trial=2, launch=1)),
    ]  # fmt: skip
    run = RunDir.at(tmp_path / "run")
    verdict = write_report(run, rows, Goal(), {})
    assert verdict.answers[0].settings in (EAGLE3, None)
    assert verdict.answers[0].lossless_argmax_share == pytest.approx(0.995)
    text = run.summary.read_text()
    assert f"| {EAGLE3} | 1200 | 99.5% (99.8%) | 0.0% (0.0%) | 0.40 | 20.0% | unchanged |" in text
    assert f"| {PUBLIC} | 1000 | 90.0% (100.0%) | 5.0% (0.0%) | 9.00 | 10.0% | **changed** |" in text
