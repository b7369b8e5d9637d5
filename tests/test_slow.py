"""A load point that is slow from its first to its last step: other rows tell, and a relaunch decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.ledger import read_records
from results.measurement import Flag
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from results.slow import flagged, slowdowns, words
from sweeps.observation import Goal
from sweeps.settings import Settings
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, WIDE, measured

H200 = Path(__file__).parents[1] / "docs" / "results" / "2026-11-29-h200-padded-5b" / "trials.parquet"
DEEP = EAGLE3.replace(num_steps=5, num_draft_tokens=6)


def row(settings: Settings, step_ms: float, trial: int, concurrency: int = 8, **more: object) -> Record:
    return measured(settings, 1000 / step_ms, trial=trial, concurrency=concurrency, itl_p50_ms=step_ms, **more)  # type: ignore[arg-type]


def slow_points(rows: list[Record]) -> dict[tuple[int, int], float]:
    """(trial, concurrency) → how many times as long, of the slow ones."""
    found = {}
    for index, ratio in slowdowns(rows).items():
        point = rows[index].point
        assert point is not None
        found[rows[index].trial, point.concurrency] = round(ratio, 2)
    return found


def test_a_host_at_half_speed_is_seen_on_real_gpus() -> None:
    """For 40 s both H200 ran at half speed: the whole of trial 6 and the first point of trial 7.  A relaunch was slow for two
    points, too; none of the other 72 rows is accused."""
    assert slow_points(read_records(H200)) == {
        (6, 1): 1.8, (6, 8): 1.2, (6, 32): 1.5, (7, 1): 2.13, (24, 1): 1.57, (24, 8): 1.57,
    }  # fmt: skip


def test_less_was_asked_and_it_took_longer() -> None:
    """Three draft steps at 8 streams cannot need longer than five, nor 8 streams longer than 32."""
    assert slow_points([row(EAGLE3, 9.0, 1), row(DEEP, 5.0, 2)]) == {(1, 8): 1.8}
    assert slow_points([row(EAGLE3, 9.0, 1), row(EAGLE3, 5.0, 1, concurrency=32)]) == {(1, 8): 1.8}
    assert slow_points([row(EAGLE3, 5.0, 1), row(DEEP, 9.0, 2), row(EAGLE3, 9.0, 1, concurrency=32)]) == {}


def test_a_slow_plain_server_is_seen_beside_any_that_speculates() -> None:
    """Verifying is a plain step and more: half the speed of the baseline would double every speedup."""
    rows = [row(PLAIN, 8.0, 0), row(EAGLE3, 4.5, 1), row(PUBLIC, 5.0, 2)]
    assert slow_points(rows) == {(0, 8): 1.78}
    assert "speedups over them upper ones" in words(rows, slowdowns(rows))[0]


def test_another_drafter_or_another_machine_accuses_nobody() -> None:
    """A smaller drafter drafts faster, another host or other kernels may be faster altogether."""
    other = PLAIN.replace(attention_backend="flashinfer")
    assert slow_points([row(EAGLE3, 9.0, 1), row(PUBLIC.replace(num_steps=7, num_draft_tokens=8), 4.0, 2)]) == {}
    assert slow_points([row(PLAIN, 9.0, 1), row(PLAIN, 4.0, 2, host="node-2"), row(other, 4.0, 3)]) == {}


def test_a_relaunch_decides() -> None:
    """As fast as others it leaves the first one flagged; as slow as the first it clears both: so these settings are."""
    first, other = row(EAGLE3, 9.0, 1), row(DEEP, 5.0, 2)
    assert slow_points([first, other, row(EAGLE3, 4.5, 3, launch=1)]) == {(1, 8): 2.0}
    assert slow_points([first, other, row(EAGLE3, 8.8, 3, launch=1)]) == {}


def test_a_launch_is_slow_as_a_whole_when_most_of_its_points_are() -> None:
    """What is a little slow beside sound neighbours goes with them; alone it would be chance."""
    ruled = [row(DEEP, ms, 2, concurrency=c) for c, ms in ((1, 4.0), (8, 5.0), (32, 6.0))]
    most = [row(EAGLE3, ms, 1, concurrency=c) for c, ms in ((1, 8.0), (8, 6.0), (32, 12.0))]
    one = [row(EAGLE3, ms, 1, concurrency=c) for c, ms in ((1, 8.0), (8, 6.0), (32, 6.1))]
    assert set(slow_points([*ruled, *most])) == {(1, 1), (1, 8), (1, 32)}
    assert set(slow_points([*ruled, *one])) == {(1, 1)}


@pytest.mark.parametrize("flag", [Flag.STALLED, Flag.GRAPH_FALLBACK, Flag.CAPACITY_CLAMPED, Flag.CLIENT_BOUND])
def test_rows_with_another_fault_neither_judge_nor_are_judged(flag: Flag) -> None:
    """Their steps are no measure of the machine; the flag that they have says more."""
    assert slow_points([row(EAGLE3, 9.0, 1, flags=(flag,)), row(DEEP, 5.0, 2)]) == {}
    assert slow_points([row(EAGLE3, 9.0, 1), row(DEEP, 5.0, 2, flags=(flag,))]) == {}


def test_rows_without_steps_are_passed_over() -> None:
    """Of another client, or of an older run."""
    assert slow_points([measured(EAGLE3, 100.0, trial=1), row(DEEP, 5.0, 2)]) == {}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 7), st.sampled_from([1, 2, 4, 8]), st.integers(2, 32), st.sampled_from([1, 8, 32]),
            st.floats(0.85, 1.15),
        ),
        min_size=1, max_size=30,
    ),
    st.floats(0.1, 1.0), st.floats(0.0, 0.3),
)  # fmt: skip
def test_noise_of_fifteen_percent_accuses_nobody(
    launches: list[tuple[int, int, int, int, float]], per_step_ms: float, per_token_ms: float
) -> None:
    """Whatever a draft step and a verified token cost: where more takes longer and no launch is 1.4 times off, none is slow."""
    rows = []
    for trial, (steps, topk, tokens, streams, luck) in enumerate(launches):
        ran = EAGLE3.replace(num_steps=steps, eagle_topk=topk, num_draft_tokens=tokens)
        ms = 4.0 + per_step_ms * steps + 0.01 * topk + per_token_ms * tokens * (1 + streams / 8)
        rows.append(row(ran, ms * luck, trial, concurrency=streams))
    assert slowdowns(rows) == {}


def test_the_report_says_so_and_counts_the_row_as_before(tmp_path: Path) -> None:
    """A note: the flag stands in the table of flags, a sentence names the launch, and the verdict is the same."""
    rows = [row(PLAIN, 4.0, 0), row(EAGLE3, 9.0, 1), row(WIDE, 5.0, 2)]
    run = RunDir.at(tmp_path / "run")
    verdict = write_report(run, rows, Goal(), {})
    text = run.summary.read_text()
    assert f"Trial 1, {EAGLE3}, was slow from end to end at concurrency 8 (1.8 times)" in text
    assert "`slow_steps`" in text or "slow_steps" in text
    assert [one.settings for one in verdict.contenders[8]] == [PLAIN, WIDE, EAGLE3]


def test_many_slow_launches_are_counted_rather_than_listed() -> None:
    """Five sentences, the slowest first, and a number."""
    rows = [row(EAGLE3.replace(num_draft_tokens=4 + n), 9.0 + n, n) for n in range(8)]
    rows.append(row(EAGLE3.replace(num_draft_tokens=32), 4.0, 99))
    said = words(rows, slowdowns(rows))
    assert said[0].startswith("Trial 7,")
    assert said[-1] == "3 more launches were slow in the same way (`slow_steps`)."
    assert all(Flag.SLOW_STEPS in one.flags for one in flagged(rows, slowdowns(rows))[:8])
