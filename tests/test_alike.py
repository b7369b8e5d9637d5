"""Failures that are one and the same: when more launches would tell nothing new."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from results.alike import ENOUGH, dead_branches, fingerprint, nothing_runs
from results.failure import Failure, FailureKind, Stage
from results.record import Record
from sweeps.settings import Settings
from tests.fakes.command_line import SMALL, orchestrator
from tests.fakes.driver import Driver
from tests.fakes.plans import CHAIN, plan
from tests.fakes.records import failure, measured

PLAIN = Settings()
SETTINGS = [PLAIN, *(CHAIN.replace(num_steps=steps, num_draft_tokens=steps + 1) for steps in (1, 2, 3))]


def all_fail(kind: FailureKind = FailureKind.CRASH_START) -> list[Record]:
    return [failure(settings, kind, trial=number) for number, settings in enumerate(SETTINGS)]


def test_a_fingerprint_leaves_out_what_varies_from_launch_to_launch() -> None:
    """Ports, pids, addresses, sizes and paths; not the words."""
    one = Failure.of(FailureKind.CRASH_START, Stage.WEIGHTS, "cannot map /data/a.bin at 0x7f12 (pid 17, 12.5 GB)")
    other = Failure.of(FailureKind.CRASH_START, Stage.WEIGHTS, "cannot map /tmp/b.bin at 0x9e00 (pid 2041, 3 GB)")
    third = Failure.of(FailureKind.CRASH_START, Stage.WEIGHTS, "cannot read /tmp/b.bin at 0x9e00 (pid 2041, 3 GB)")
    assert fingerprint(one) == fingerprint(other) != fingerprint(third)


def test_settings_that_all_fail_alike_from_the_start_are_enough() -> None:
    """W09: three different settings, the plain server among them."""
    rows = all_fail()
    assert nothing_runs(rows[:ENOUGH]) == rows[0].failure
    assert nothing_runs(rows[: ENOUGH - 1]) is None


@pytest.mark.parametrize(
    "rows",
    [
        [*all_fail(), measured(PLAIN, 100.0, trial=9)],
        [*all_fail()[:3], failure(SETTINGS[3], FailureKind.OOM_KV_POOL, trial=3)],
        all_fail()[1:],
        [failure(PLAIN, FailureKind.NODE_LOST, trial=0) for _ in range(4)],
        [],
    ],
    ids=["something runs", "in two ways", "no plain server", "one and the same settings", "nothing yet"],
)
def test_a_search_goes_on_while_another_launch_may_tell_something(rows: list[Record]) -> None:
    """It is stopped only by failures that say the same of everything."""
    assert nothing_runs(rows) is None


def on_card(card: int, record: Record) -> Record:
    return dataclasses.replace(record, origin=dataclasses.replace(record.origin, gpus=(str(card),)))


def test_cards_that_fail_at_once_do_not_speak_for_those_that_still_load() -> None:
    """A colleague's job on three of eight cards: only when every card has failed alike is nothing to be hoped for."""
    early = [on_card(card, record) for card, record in enumerate(all_fail(FailureKind.GPU_NOT_FREE)[:ENOUGH])]
    assert nothing_runs(early, gpu_sets=8) is None
    every = [on_card(card, failure(SETTINGS[card % 4], FailureKind.CRASH_START, trial=card)) for card in range(8)]
    assert nothing_runs(every, gpu_sets=8) == every[0].failure


def test_one_sick_card_kills_no_branch() -> None:
    """Three settings crash on it alone while the other card is still loading; on both cards they would be the settings' fault."""
    rows = [failure(settings, FailureKind.CRASH_START, trial=number) for number, settings in enumerate(CHAINS)]
    assert dead_branches([on_card(0, row) for row in rows], gpu_sets=2) == {}
    assert len(dead_branches([on_card(row.trial % 2, row) for row in rows], gpu_sets=2)) == 1


CHAINS = SETTINGS[1:]


def test_a_branch_whose_settings_fail_alike_is_dead() -> None:
    """One algorithm with one drafter on one attention backend: three settings, one cause, and none was ever measured."""
    rows = [failure(settings, FailureKind.CRASH_START, trial=number) for number, settings in enumerate(CHAINS)]
    (branch,) = dead_branches([measured(PLAIN, 100.0, trial=9), *rows])
    assert branch == (CHAIN.algorithm, CHAIN.drafter, CHAIN.attention_backend)
    assert dead_branches(rows[:2]) == {}
    assert dead_branches([*rows, measured(CHAIN.replace(num_steps=7, num_draft_tokens=8), 90.0, trial=9)]) == {}


@pytest.mark.parametrize("kind", [FailureKind.OOM_GRAPH_CAPTURE, FailureKind.NODE_LOST, FailureKind.START_TIMEOUT])
def test_memory_that_a_smaller_tree_may_have_and_a_machines_faults_kill_no_branch(kind: FailureKind) -> None:
    """Only what no other values of these would mend."""
    assert dead_branches([failure(settings, kind, trial=number) for number, settings in enumerate(CHAINS)]) == {}


def test_a_dead_branch_is_launched_no_more_and_its_like_elsewhere_is(tmp_path: Path) -> None:
    """The sampler proposes nothing of it; the same drafter on another backend goes on."""
    sampler = Driver(plan(), tmp_path / "run").sampler
    assert sampler.give_up("EAGLE3", "own", "fa3")
    assert not sampler.give_up("EAGLE3", "own", "fa3")
    assert sampler.gave_up(CHAIN.replace(drafter="own", attention_backend="fa3"))
    assert not sampler.gave_up(CHAIN.replace(drafter="own", attention_backend="flashinfer"))


def test_a_sweep_in_which_every_launch_fails_alike_ends_early_with_the_cause(tmp_path: Path) -> None:
    """W09: exit 1, the table of failures in the summary, the hint on the screen, and most of the budget unspent."""
    run = tmp_path / "run"
    done = orchestrator(
        "sweep", *SMALL, f"out={run}", "server_args.sim_fault=crash:weights", "budget.launches=30", "cluster.gpus=[0]"
    )
    assert done.returncode == 1, done.stderr
    assert "every launch fails alike" in done.stderr + done.stdout
    assert len(list((run / "begun").glob("*.json"))) < 8
    assert "crash_start" in (run / "summary.md").read_text()
