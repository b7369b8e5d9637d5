"""Reported failures of sweep machinery, as cases W01 to W18: the same fault here, and the outcome that would have been right.

Covered elsewhere: W07 (the disk fills) in test_sweep_disk.py; W12 (the space changes between runs) in
chaos/test_interrupted.py; W01 and W18 with real kills there, too; W09 (everything fails) there and in test_report.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import results
from orchestrator.errors import ConfError
from orchestrator.plan import Budget
from orchestrator.stored import conclude, require_launches
from results.failure import FailureKind
from results.ledger import Ledger, read_records
from results.record import Record
from results.rundir import RunDir
from results.verdict import judge
from sweeps.observation import Goal
from sweeps.sampler import Sampler
from sweeps.space import Choice, Held
from sweeps.trial import Trial
from tests.fakes.driver import Driver
from tests.fakes.plans import SPACE, plan
from tests.fakes.records import EAGLE3, PLAIN, WIDE, failed, measured, rows

LOCKER = """
import fcntl, sys
held = [open(path, "r+b") for path in sys.argv[1:]]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
SMALL = {"drafter": Held("own"), "attention_backend": Held("fa3")}


def driver(path: Path, launches: int, space: dict[str, object] | None = None) -> Driver:
    return Driver(plan(space, budget=Budget(launches=launches, finalists=0)), path)


def test_a_trial_that_a_kill_left_running_is_measured_on_resume(tmp_path: Path) -> None:
    """W01: five launches, killed within the third: after the resume its settings are measured and five are complete."""
    first = driver(tmp_path / "run", 5)
    first.drive(most=2)
    cut = first.schedule.draw()
    assert cut is not None
    first.ledger.append(rows(cut)[0])

    driver(tmp_path / "run", 5).drive()

    run, records = RunDir(tmp_path / "run"), read_records(tmp_path / "run")
    assert cut.settings.key in {record.asked.key for record in records}
    assert len({record.asked.key for record in records}) == len(run.begun()) == 5
    assert {record.trial for record in records} == {begun.trial.number for begun in run.begun()}
    assert len(records) == len({record.key for record in records}) == 5 * 2


def test_files_that_another_program_locks_do_not_keep_a_measurement_from_its_place(tmp_path: Path) -> None:
    """W03: somebody's dashboard holds locks on everything there is while a trial finishes; its rows are stored at once."""
    one = driver(tmp_path / "run", 5)
    one.drive(most=2)
    one.run.journal.note("sweep_started")
    files = [one.run.journal.path, one.run.trial_file(0), one.run.trial_file(1), one.run.begun_file(1)]
    locker = subprocess.Popen([sys.executable, "-c", LOCKER, *map(str, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert locker.stdout is not None
    assert locker.stdout.readline() == "held\n"
    try:
        one.drive(most=4)
        one.run.journal.note("trial_ended", trial=3)
        one.run.amend(1, host="node")
        assert len({record.trial for record in read_records(one.run.path)}) == 4
    finally:
        locker.communicate("")


def test_a_journal_that_lost_its_end_is_mended_and_kept(tmp_path: Path) -> None:
    """W05: three trials, the last 15 bytes of the journal gone: three finished and one new, and a note names the copy."""
    first = driver(tmp_path / "run", 3)
    first.drive()
    for trial in first.drawn:
        first.run.journal.note("trial_ended", trial=trial.number, held_s=1.0, gpus=["0"])
    content = first.run.journal.path.read_bytes()
    first.run.journal.path.write_bytes(content[:-15])

    second = driver(tmp_path / "run", 4)

    assert [event["event"] for event in second.run.journal.events()] == ["trial_ended", "trial_ended", "set_aside"]
    note = second.run.journal.events()[-1]
    assert "1 of its lines were ruined" in note["reason"]
    assert (second.run.path / note["kept"]).read_bytes() == content[:-15]
    assert len(second.drive()) == 1
    assert len({record.trial for record in read_records(second.run.path)}) == 4


@pytest.mark.parametrize("cut", [1, 15])
def test_nothing_is_ever_appended_to_half_a_line(tmp_path: Path, cut: int) -> None:
    """W05: without a resume in between, too; a missing newline costs nothing."""
    run = RunDir.at(tmp_path / "run")
    run.journal.note("one")
    run.journal.note("two")
    run.journal.path.write_bytes(run.journal.path.read_bytes()[:-cut])
    run.journal.note("three")
    Ledger.open(run)
    assert [e["event"] for e in run.journal.events()][:3] == (
        ["one", "two", "three"] if cut == 1 else ["one", "three", "set_aside"]
    )


def test_torn_result_files_are_named_and_their_trials_measured_again(tmp_path: Path) -> None:
    """W06: four trials; one file lost 40 bytes, one is empty, a temporary one lies about: the rest counts, all come back."""
    first = driver(tmp_path / "run", 4)
    first.drive()
    run = first.run
    run.trial_file(1).write_bytes(run.trial_file(1).read_bytes()[:-40])
    run.trial_file(2).write_bytes(b"")
    (run.path / ".000003.parquet.tmp").write_bytes(b"half")

    assert len(results.load(run)) == 2 * 2
    conclude(plan(), run, read_records(run.path))
    assert "trial" in run.summary.read_text()

    second = driver(tmp_path / "run", 4)
    assert [event["file"] for event in run.journal.events() if event["event"] == "set_aside"] == [
        "000001.parquet",
        "000002.parquet",
    ]
    assert sorted(trial.number for trial in second.drive()) == [1, 2]
    assert len(pd.read_parquet(run.trials_dir)) == 4 * 2
    assert not list(run.path.glob(".*.tmp"))


def test_a_number_that_is_no_speed_never_wins(tmp_path: Path) -> None:
    """W08: not a number, infinity and zero beside 812.5: the best is 812.5, and the numbers stay in their rows."""
    values = [float("nan"), float("inf"), 0.0, 812.5]
    tried = [
        EAGLE3,
        WIDE,
        EAGLE3.replace(num_steps=2, num_draft_tokens=3),
        EAGLE3.replace(num_steps=1, num_draft_tokens=2),
    ]
    ledger = Ledger.open(RunDir.at(tmp_path / "run"))
    ledger.append(measured(PLAIN, 400.0, trial=9))
    sampler = Sampler(plan().space, Goal(), seed=1)
    for number, (launched, value) in enumerate(zip(tried, values, strict=True)):
        row = measured(launched, value, trial=number)
        ledger.append(row)
        assert (row.observation(Goal()).value is None) == (value != 812.5)
        sampler.learn(row.observation(Goal()))
        sampler.finish(number)
    (answer,) = judge(read_records(tmp_path / "run"), Goal()).answers
    assert (answer.best_speculative, answer.best_tok_s) == (tried[3], pytest.approx(812.5))
    kept = [repr(record.measurement.output_tok_s) for record in ledger.records if record.measurement]
    assert kept == ["nan", "inf", "0.0", "812.5", "400.0"]


def test_a_small_space_is_launched_once_each_and_then_exhausted(tmp_path: Path) -> None:
    """W10: four points and a budget of forty: no effective configuration twice, then the space is exhausted."""
    space = {**SMALL, "num_steps": Choice((2, 3)), "eagle_topk": Choice((1, 2)), "num_draft_tokens": Held(4)}
    one = driver(tmp_path / "run", 40, space)
    drawn = one.drive()
    assert one.exhausted
    assert len(drawn) == len({trial.settings.key for trial in drawn}) == 1 + 4


def out_of_memory_at(topk: int) -> Callable[[Trial], list[Record]]:
    def answer(trial: Trial) -> list[Record]:
        return [failed(trial, FailureKind.OOM_GRAPH_CAPTURE)] if trial.settings.eagle_topk == topk else rows(trial)

    return answer


@pytest.mark.parametrize("resumes", [0, 3])
def test_a_setting_that_cannot_run_is_launched_once(tmp_path: Path, resumes: int) -> None:
    """W16: everything with topk 4 is out of memory: each at most once, over resumes too, and the loop ends."""
    space = {**SMALL, "num_steps": Choice((2, 3, 5)), "eagle_topk": Choice((1, 4)), "num_draft_tokens": Held(6)}
    drawn: list[Trial] = []
    for _ in range(resumes):
        drawn += driver(tmp_path / "run", 20, space).drive(out_of_memory_at(4), most=2)
    last = driver(tmp_path / "run", 20, space)
    drawn += last.drive(out_of_memory_at(4))
    assert last.exhausted
    assert len(drawn) == len({trial.settings.key for trial in drawn}) <= 1 + 3 * 2
    assert any(trial.settings.eagle_topk == 4 for trial in drawn)


def test_a_resume_fills_the_budget_and_tells_failures_apart(tmp_path: Path) -> None:
    """W18: ten launches, interrupted after four good and two failed ones: four more, not ten; the report counts failures.

    The budget is in launches, failed ones included: they cost as much.
    """
    bad = iter([False, False, True, False, True, False])
    first = driver(tmp_path / "run", 10).drive(lambda trial: [failed(trial)] if next(bad) else rows(trial), most=6)
    second = driver(tmp_path / "run", 10).drive()
    assert (len(first), len(second)) == (6, 4)
    records = read_records(tmp_path / "run")
    assert len({record.trial for record in records if record.measured}) == 8
    run = RunDir(tmp_path / "run")
    conclude(plan(), run, records)
    assert "crash_start" in run.summary.read_text()


def test_a_resume_with_fewer_launches_than_are_spent_is_refused(tmp_path: Path) -> None:
    """It would make a finished run of an interrupted one; the run is as it was, and as many or more go on."""
    driver(tmp_path / "run", 5).drive(most=2)
    run, five = RunDir(tmp_path / "run"), plan(budget=Budget(launches=5, finalists=0))
    with pytest.raises(ConfError, match=r"budget\.launches: 1, but 2 are spent already"):
        require_launches(run, five, plan(budget=Budget(launches=1, finalists=0)))
    for enough in (2, 8, None):
        require_launches(run, five, plan(budget=Budget(launches=enough, finalists=0)))


def test_the_cases_space_is_the_one_of_the_plans() -> None:
    """The cases above hold what else a sweep would choose."""
    assert set(SMALL) < set(SPACE)
