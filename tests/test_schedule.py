"""Schedule: the plain server first and beside every setting that needs it, nothing twice, within the budget."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.plan import Budget
from orchestrator.trials import load_points
from results.failure import FailureKind
from results.record import Record
from results.rundir import RunDir
from sweeps.space import Held, Range
from sweeps.surrogate.gain import Next
from sweeps.trial import Trial
from tests.fakes.driver import Driver
from tests.fakes.plans import plan
from tests.fakes.records import failed, rows

CHAINS = {"drafter": Held("own"), "eagle_topk": Held(1), "attention_backend": Held("fa3"), "num_steps": Range(1, 3)}
"""Three chains on one backend."""


def test_the_plain_server_comes_first(tmp_path: Path) -> None:
    """Trial 0 is the plain server with the first value of everything that is swept."""
    first = Driver(plan(), tmp_path / "run").schedule.draw()
    assert first is not None
    assert (first.number, first.kind, first.settings.algorithm) == (0, "baseline", "none")
    assert first.settings.attention_backend == "fa3"
    assert first.load_points == load_points(plan())


def test_every_setting_finds_the_plain_server_with_its_values_launched_before_it(tmp_path: Path) -> None:
    """A proposal on flashinfer is preceded by the plain server on flashinfer."""
    drawn = Driver(plan(budget=Budget(launches=30, finalists=0)), tmp_path / "run").drive()
    for index, trial in enumerate(drawn):
        before = {t.settings.key for t in drawn[:index]}
        assert not trial.settings.speculative or trial.settings.plain().key in before
    assert {t.settings.attention_backend for t in drawn if t.kind == "baseline"} == {"fa3", "flashinfer"}


def test_nothing_is_launched_twice_and_the_budget_counts_failures(tmp_path: Path) -> None:
    """Eight launches are eight distinct settings, though half of them fail."""
    drawn = Driver(plan(), tmp_path / "run").drive(lambda t: [failed(t)] if t.number % 2 else rows(t))
    assert len(drawn) == 8
    assert len({t.settings.key for t in drawn}) == 8


def test_a_trial_is_on_disk_before_it_is_handed_out(tmp_path: Path) -> None:
    """What was begun is known after a kill at any instant."""
    driver = Driver(plan(), tmp_path / "run")
    trial = driver.schedule.draw()
    assert [b.trial for b in RunDir.open(tmp_path / "run").begun()] == [trial]


def test_a_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    """A trial that was cut after one load point comes back first, with the other one, as attempt 2."""
    before = Driver(plan(), tmp_path / "run")
    trial = before.schedule.draw()
    assert trial is not None
    before.ledger.append(rows(trial)[0])
    after = Driver(plan(), tmp_path / "run")
    again = after.schedule.draw()
    assert again is not None
    assert (again.number, again.attempt, again.settings) == (trial.number, 2, trial.settings)
    assert again.load_points == trial.load_points[1:]


def test_on_another_machine_the_plain_server_is_measured_again(tmp_path: Path) -> None:
    """Rows of elsewhere cannot be compared with rows of here without a plain server of here."""

    def elsewhere(trial: Trial) -> list[Record]:
        return [dataclasses.replace(r, origin=dataclasses.replace(r.origin, host="elsewhere")) for r in rows(trial)]

    Driver(plan(), tmp_path / "run").drive(elsewhere, most=3)
    again = Driver(plan(), tmp_path / "run").schedule.draw()
    assert again is not None
    assert (again.kind, again.launch) == ("baseline", 1)


def test_a_raised_budget_is_spent_on_search_again(tmp_path: Path) -> None:
    """Eight launches, two of them the race; twelve on a resume: four more settings, for the race's part is done."""
    Driver(plan(budget=Budget(launches=8, finalists=2)), tmp_path / "run").drive()
    more = Driver(plan(budget=Budget(launches=12, finalists=2)), tmp_path / "run")
    drawn = more.drive()
    assert len(drawn) == 4
    assert [t.launch for t in drawn] == [0] * 4
    assert "budget.launches" in more.schedule.why_ended


def test_what_the_race_does_not_use_is_searched_on_with(tmp_path: Path) -> None:
    """All trials fail, so that there is no finalist: the whole budget goes to the search."""
    drawn = Driver(plan(budget=Budget(launches=9, finalists=3)), tmp_path / "run").drive(lambda t: [failed(t)])
    assert len(drawn) == 9
    assert len({t.settings.key for t in drawn}) == 9


def test_a_resume_fills_the_budget_and_no_more(tmp_path: Path) -> None:
    """Four of ten launches done, then six more: not ten."""
    first = Driver(plan(budget=Budget(launches=10, finalists=0)), tmp_path / "run").drive(most=4)
    second = Driver(plan(budget=Budget(launches=10, finalists=0)), tmp_path / "run").drive()
    assert len(second) == 6
    assert len({t.settings.key for t in first + second}) == 10


def test_more_budget_on_a_resume_goes_on_from_there(tmp_path: Path) -> None:
    """Two more launches are two new settings."""
    Driver(plan(), tmp_path / "run").drive()
    more = Driver(plan(budget=Budget(launches=10, finalists=0)), tmp_path / "run").drive()
    assert len(more) == 2


def test_an_infrastructure_fault_is_tried_once_more_and_then_left(tmp_path: Path) -> None:
    """A lost node: the same settings again as attempt 2; a second fault ends the trial; both launches are charged."""
    drawn = Driver(plan(budget=Budget(launches=3, finalists=0)), tmp_path / "run").drive(
        lambda t: [failed(t, FailureKind.NODE_LOST)] if t.number == 0 else rows(t)
    )
    assert [(t.number, t.attempt) for t in drawn] == [(0, 1), (0, 2), (1, 1)]


def test_a_broken_environment_costs_neither_launches_nor_second_chances(tmp_path: Path) -> None:
    """Eight GPU sets find it broken at once; repaired and resumed, all launches are there still, and a lost node is retried."""
    asked = plan(budget=Budget(launches=8, finalists=0))
    before = Driver(asked, tmp_path / "run")
    for trial in [before.schedule.draw(str(gpu_set)) for gpu_set in range(8)]:
        assert trial is not None
        before.ledger.append(failed(trial, FailureKind.ENVIRONMENT_BROKEN))
        before.schedule.ended(trial.number, complete=False, retry=False)
    after = Driver(asked, tmp_path / "run")
    assert after.schedule.charged == before.schedule.charged == 0
    drawn = after.drive(lambda t: [failed(t, FailureKind.NODE_LOST)] if t.number == 0 and t.attempt == 2 else rows(t))
    assert [t.number for t in drawn] == [0, 0, 1, 2, 3, 4, 5, 6]


def test_a_trial_that_was_lost_after_its_last_load_point_is_over(tmp_path: Path) -> None:
    """There is nothing to measure: no server is loaded for it again, in this driver or the next, and it is one launch."""
    asked = plan(budget=Budget(launches=8, finalists=0))
    before = Driver(asked, tmp_path / "run")
    trial = before.schedule.draw()
    assert trial is not None
    for record in (*rows(trial), failed(trial, FailureKind.NODE_LOST)):
        before.ledger.append(record)
    assert before.schedule.ended(trial.number, complete=False, retry=True)
    after = Driver(asked, tmp_path / "run")
    assert after.schedule.charged == before.schedule.charged == 1
    for driver in (before, after):
        following = driver.schedule.draw()
        assert following is not None
        assert following.number == 1


def test_an_exhausted_space_ends_the_search_and_says_so(tmp_path: Path) -> None:
    """One chain and one plain server are all there is."""
    space = {"num_steps": Held(3), "eagle_topk": Held(1), "drafter": Held("own"), "attention_backend": Held("fa3")}
    driver = Driver(plan(space, budget=Budget(launches=40, finalists=0)), tmp_path / "run")
    assert [t.kind for t in driver.drive()] == ["baseline", "trial"]
    assert driver.exhausted


def test_a_gpu_set_waits_while_another_measures_what_may_change_the_end_of_the_search(tmp_path: Path) -> None:
    """Nothing is drawn for it, neither a setting nor the race, until the other has ended; then the race begins."""
    driver = Driver(plan(CHAINS, budget=Budget(launches=10, finalists=2)), tmp_path / "run")
    driver.drive(lambda t: rows(t, 100.0 + 2 * (t.settings.num_steps or 0)), most=3)
    last = driver.schedule.draw("set 1")
    assert last is not None
    driver.sampler.enough, driver.sampler.waits = Next(0, (1,), 0.0, 0.0, near=0.9), True
    assert driver.schedule.draw("set 2") is None
    for record in rows(last, 100.0):
        driver.ledger.append(record)
    driver.schedule.ended(last.number, complete=True, retry=False)
    driver.sampler.waits = False
    raced = driver.schedule.draw("set 2")
    assert raced is not None
    assert raced.launch == 1
    assert "0.90" in driver.schedule.why_ended


def test_the_race_relaunches_the_finalists_within_the_budget(tmp_path: Path) -> None:
    """The last launches are second launches of the plain server and of the best settings."""
    drawn = Driver(plan(budget=Budget(launches=8, finalists=2)), tmp_path / "run").drive(
        lambda t: rows(t, 100.0 + 10 * (t.settings.num_steps or 0))
    )
    assert len(drawn) == 8
    assert [t.launch for t in drawn[:6]] == [0] * 6
    assert [t.launch for t in drawn[6:]] == [1, 1]
    assert any(not t.settings.speculative for t in drawn[6:])
    assert {t.settings.key for t in drawn[6:]} <= {t.settings.key for t in drawn[:6]}


def test_the_race_goes_there_and_back(tmp_path: Path) -> None:
    """A-B-B-A: the leader and the plain server, then the plain server and the leader, so that a drift hits both alike."""
    drawn = Driver(plan(CHAINS, budget=Budget(launches=12, finalists=4)), tmp_path / "run").drive(
        lambda t: rows(t, 100.0 + 2 * (t.settings.num_steps or 0))
    )
    race = [trial for trial in drawn if trial.launch > 0]
    assert [trial.settings.num_steps for trial in race] == [3, None, None, 3]
    assert [trial.kind for trial in race] == ["finalist", "baseline", "baseline", "finalist"]


def test_a_budget_of_gpu_hours_leaves_time_for_a_race_too(tmp_path: Path) -> None:
    """A GPU-hour of launches of six minutes each: seven are searched, and the last three are relaunches."""
    driver = Driver(plan(budget=Budget(launches=None, gpu_hours=1.0, finalists=3)), tmp_path / "run")

    def answer(trial: Trial) -> list[Record]:
        driver.run.journal.note("trial_ended", trial=trial.number, held_s=360.0, gpus=["0"], complete=True)
        return rows(trial, 100.0 + (trial.settings.num_steps or 0))

    assert [trial.launch > 0 for trial in driver.drive(answer)] == [False] * 7 + [True] * 3
    assert "budget.gpu_hours" in driver.schedule.why_ended


def test_a_race_that_is_decided_ends_and_the_search_goes_on(tmp_path: Path) -> None:
    """Three times the plain server's speed: one relaunch says so, and what was kept back is searched with."""
    driver = Driver(plan(budget=Budget(launches=15, finalists=5)), tmp_path / "run")
    fast: list[str] = []

    def answer(trial: Trial) -> list[Record]:
        if trial.settings.speculative and not fast:
            fast.append(trial.settings.key)
        return rows(trial, 300.0 if trial.settings.key in fast else 100.0)

    drawn = driver.drive(answer)
    raced = [number for number, trial in enumerate(drawn) if trial.launch > 0]
    assert 1 < len(raced) < 5
    assert [trial.launch for trial in drawn[raced[-1] + 1 :]] == [0] * (15 - raced[-1] - 1)


def test_a_pass_of_the_race_stays_on_one_gpu_set(tmp_path: Path) -> None:
    """Two sets that are free at once: what the first began to compare, the other does not take from it."""
    driver = Driver(plan(CHAINS, budget=Budget(launches=10, finalists=2)), tmp_path / "run")
    driver.drive(lambda t: rows(t, 100.0 + 2 * (t.settings.num_steps or 0)), most=4)
    first = driver.schedule.draw("set 1")
    assert first is not None
    assert (first.launch, first.settings.num_steps) == (1, 3)
    assert driver.schedule.draw("set 2") is None
    second = driver.schedule.draw("set 1")
    assert second is not None
    assert (second.launch, second.kind) == (1, "baseline")


def test_what_a_lost_gpu_set_was_to_launch_is_launched_by_another(tmp_path: Path) -> None:
    """When nothing runs any more and a pass is not at its end, any set may take it up."""
    driver = Driver(plan(CHAINS, budget=Budget(launches=10, finalists=2)), tmp_path / "run")
    driver.drive(lambda t: rows(t, 100.0 + 2 * (t.settings.num_steps or 0)), most=4)
    lost = driver.schedule.draw("set 1")
    assert lost is not None
    driver.ledger.append(rows(lost)[0])
    driver.schedule.ended(lost.number, complete=True, retry=False)
    taken = driver.schedule.draw("set 2")
    assert taken is not None
    assert (taken.launch, taken.kind) == (1, "baseline")


@pytest.mark.parametrize("hours", [0.0])
def test_a_spent_clock_ends_the_sweep(tmp_path: Path, hours: float) -> None:
    """budget.hours of nothing launches nothing."""
    assert Driver(plan(budget=Budget(launches=None, hours=hours)), tmp_path / "run").drive() == []
