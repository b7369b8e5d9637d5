"""The report: a summary a person can act on, a best.yaml a program can, and a launch.sh that runs the winner."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from results.failure import Failure, FailureKind, Stage
from results.files import DiskFull, NotWritable
from results.launch import friendly
from results.measurement import Flag
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from results.summary import gpu_hours
from results.verdict import Verdict
from sweeps.observation import Goal
from sweeps.settings import Settings
from sweeps.trial import Trial
from tests.fakes.disks import mounted, read_only
from tests.fakes.records import EAGLE3, PLAIN, PUBLIC, WIDE, failure, measured

CONF: dict[str, Any] = {
    "target": {"path": "/models/llama"},
    "drafters": {"own": "/models/own", "public": "/models/public"},
    "engine": {"name": "sglang", "env": {"SGLANG_NOTE": "it's set", "not a name": "x"}},
    "space": {
        "algorithm": ["none", "EAGLE3"], "drafter": ["own", "public"], "num_steps": {"low": 1, "high": 7},
        "eagle_topk": [1, 8], "num_draft_tokens": {"low": 2, "high": 32}, "attention_backend": ["fa3"],
    },
    "server_args": {"chunked_prefill_size": [4096, 8192], "schedule_policy": "fcfs"},
    "workload": {"concurrency": [1, 8, 32]},
    "notify": ["sh", "-c", "curl https://hooks.example/T0/B0"],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def rows(**more: Any) -> list[Record]:
    """Three load points: EAGLE3 wins at 1 and 8, the plain server at 32; each was launched twice."""
    found = []
    for concurrency, plain, eagle, wide in ((1, 100, 200, 120), (8, 400, 600, 300), (32, 1000, 700, 200)):
        for launch in (0, 1):
            for trial, settings, tok_s in ((0, PLAIN, plain), (10, EAGLE3, eagle), (20, WIDE, wide)):
                luck = 1 + 0.01 * launch
                found.append(
                    measured(
                        settings, tok_s * luck, trial=trial + launch, launch=launch, concurrency=concurrency, **more
                    )
                )
    return found


def report(run: RunDir, records: Sequence[Record], goal: Goal | None = None) -> tuple[Verdict, str, dict[str, Any]]:
    verdict = write_report(run, records, goal or Goal(), CONF)
    return verdict, run.summary.read_text(), yaml.safe_load(run.best.read_text())


def launch(run: RunDir, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": f"{path}:{os.environ['PATH']}"} if path else {})}
    return subprocess.run(
        [str(run.launch_script), *words], capture_output=True, text=True, check=False, env=environment
    )


def test_the_summary_begins_with_the_verdict(run: RunDir) -> None:
    """The first line is the answer in one sentence; the tables follow."""
    verdict, text, _ = report(run, rows())
    assert text.splitlines()[0] == f"**{verdict.sentence}**"
    assert text.startswith("**Speculate with EAGLE3 own 3.1.4 fa3 up to concurrency 8 (2.01×")
    assert "| 32 | 1005.0 | EAGLE3 own 3.1.4 fa3 | 707.0 | 0.70× |" in text
    assert "**worse**" in text


def test_the_summary_says_where_its_numbers_come_from(run: RunDir) -> None:
    """Engine version, GPU, driver, host, workload, time, launches and GPU-hours stand in it."""
    _, text, _ = report(run, rows())
    for fact in ("sglang 0.5.23", "NVIDIA H200", "580.95", "node-1", "chat-mix-256", "2026-01-02", "from 6 launches"):
        assert fact in text
    assert "GPU-hours: about 0.20 (estimated from the rows)" in text


def test_launches_are_counted_as_the_budget_counts_them(run: RunDir) -> None:
    """A trial that was interrupted and taken up again is one launch, said to be begun again; a failure is one."""
    cut = [dataclasses.replace(row, attempt=1 + (row.point.concurrency == 32)) for row in rows() if row.point]  # type: ignore[union-attr]
    _, text, _ = report(run, [*rows()[:-1], failure(PUBLIC, trial=30)])
    assert "rows: 17 measured, 1 failed, from 7 launches\n" in text
    _, text, _ = report(run, cut)
    assert "rows: 18 measured, 0 failed, from 6 launches, 6 of them begun again\n" in text


def test_gpu_hours_come_from_the_journal_where_there_is_one(run: RunDir) -> None:
    """The time that GPUs were held is known to the journal; the rows only know launches and measuring."""
    run.journal.note("trial_ended", trial=0, held_s=7200.0, gpus=["0"])
    _, text, _ = report(run, rows())
    assert "GPU-hours: 2.00" in text
    assert gpu_hours(rows()) == pytest.approx((6 * 60 + 18 * 20) / 3600)


def test_simulated_numbers_are_called_so_everywhere(run: RunDir) -> None:
    """The first line and every table's caption say **simulated**, and so do best.yaml and launch.sh."""
    _, text, best = report(run, rows(simulated=True))
    assert text.startswith("**simulated** (a performance model answered, no GPU was measured): **Speculate with")
    tables = text.count("\n| --- |")
    assert tables >= 3
    assert text.count("**simulated**\n\n| ") == tables
    assert best["simulated"] is True
    assert "SIMULATED" in launch(run).stdout


def test_real_numbers_are_not_called_simulated(run: RunDir) -> None:
    """The word stands only where it is true."""
    _, text, _ = report(run, rows())
    assert "imulated" not in text


def test_failures_are_told_by_cause_with_a_remedy(run: RunDir) -> None:
    """A kind is told once: count, first cause, its log, what to do, each in its own cell; a pipe breaks no table."""
    remedy = FailureKind.OOM_GRAPH_CAPTURE.remedy
    message = f"capture | failed\nat batch 64\nLog: {run.server_log('000030')}\n{remedy}"
    records = [failure(WIDE, trial=30, message=message), failure(PUBLIC, trial=31)]
    _, text, _ = report(run, [*rows(), *records])
    (line,) = [line for line in text.splitlines() if line.startswith("| oom_graph_capture")]
    assert line == (
        f"| oom_graph_capture | 2 | graph_capture | capture \\| failed at batch 64. | logs/000030/server.log | {remedy} |"
    )


def test_a_failure_message_is_told_apart() -> None:
    """Cause, log and remedy stand in lines of their own; a message without them is all cause."""
    kind = FailureKind.HANG_SERVING
    whole = Failure.of(kind, Stage.SERVING, "no token\nfor 60 s", Path("/runs/1/server.log"))
    assert (whole.cause, whole.log) == ("no token\nfor 60 s", "/runs/1/server.log")
    bare = Failure(kind, Stage.SERVING, "no token")
    assert (bare.cause, bare.log, bare.cause_in_short()) == ("no token", None, "no token.")
    assert Failure.of(kind, Stage.SERVING, "x").cause == "x"
    assert len(Failure(kind, Stage.SERVING, "long " * 200).cause_in_short()) == 300


def test_flags_are_told_with_their_effect(run: RunDir) -> None:
    """Whatever lowers the trust in rows is named with what it means and what it did."""
    flagged = measured(PUBLIC, 9000.0, trial=40, flags=(Flag.DRAFTER_INEFFECTIVE,))
    verdict, text, _ = report(run, [*rows(), flagged])
    assert f"| drafter_ineffective | 1 | never best | {Flag.DRAFTER_INEFFECTIVE.doc} |" in text
    assert "drafter_ineffective (at 8)" in text
    assert verdict.answers[1].settings == EAGLE3


def test_flags_that_bar_a_row_come_before_notes(run: RunDir) -> None:
    """However many notes there are; and that a note keeps no row from winning stands above them."""
    flagged = [measured(WIDE, 1.0, trial=40, flags=(Flag.GRAPH_FALLBACK, Flag.CAPACITY_CLAMPED))]
    _, text, _ = report(run, [*rows(flags=(Flag.LOW_SAMPLES,)), *flagged])
    section = text.split("## What lowers the trust in rows")[1].split("\n## ")[0]
    assert "A *note* does not keep a row from winning; *never best* and *invalid* do." in section
    order = [line.split(" | ")[2] for line in section.splitlines() if line.startswith("| ")][2:]
    assert order == ["invalid", "never best", "note"]


def test_what_is_true_of_most_rows_is_said_at_the_top(run: RunDir) -> None:
    """Then it is the benchmark that is doubted rather than a row; a flag of a few rows stands in the table only."""
    few = measured(WIDE, 1.0, trial=40, flags=(Flag.DRIFT,))
    _, text, _ = report(run, [*rows(flags=(Flag.CLIENT_BOUND,)), few])
    top = text.split("\n## ")[0]
    assert "- client_bound in 18 of 19 rows: the load generator could not keep up" in top
    assert "drift" not in top


def test_a_run_in_which_everything_failed_still_has_a_report(run: RunDir) -> None:
    """No verdict: the first line names the cause and its remedy, best.yaml has no answers, and there is no launch.sh."""
    report(run, rows())
    _, text, best = report(run, [failure(EAGLE3, trial=n, message="no config.json") for n in range(3)])
    assert text.splitlines()[0] == (
        "**No verdict: every launch failed.** All 3 failures: oom_graph_capture (stage graph_capture): no config.json. "
        f"What to do: {FailureKind.OOM_GRAPH_CAPTURE.remedy}"
    )
    assert "| oom_graph_capture | 3 |" in text
    assert best["answers"] == []
    assert best["conf"] == {key: value for key, value in CONF.items() if key != "notify"}
    assert not run.launch_script.exists()


def test_a_run_without_rows_has_a_report(run: RunDir) -> None:
    """Interrupted before the first row: still a summary and a config."""
    _, text, _ = report(run, [])
    assert text.startswith("**No verdict: nothing was measured.**\n")
    assert not run.launch_script.exists()


def test_best_yaml_has_an_answer_per_load_point(run: RunDir) -> None:
    """Settings or baseline, the speedup with its interval, the answer, and the command as a list of words."""
    _, _, best = report(run, rows())
    first, _, last = best["answers"]
    assert (first["concurrency"], first["answer"], last["answer"]) == (1, "better", "worse")
    assert Settings.from_dict(first["settings"]) == EAGLE3
    assert last["settings"] == "baseline"
    assert first["speedup_low"] < first["speedup"] < first["speedup_high"]
    assert first["command"][:3] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    assert "--speculative-algorithm" in first["command"]
    assert "--speculative-algorithm" not in last["command"]


def test_best_yaml_can_be_read_by_a_person(run: RunDir) -> None:
    """The config first, a line for each settings and each command, nothing twice, and no knob that was not given."""
    _, _, best = report(run, rows())
    assert list(best) == ["simulated", "verdict", "conf", "answers", "schedule"]
    first, _, last = best["answers"]
    assert "best_speculative" not in first
    assert Settings.from_dict(last["best_speculative"]) == EAGLE3
    assert None not in first["settings"].values()
    lines = run.best.read_text().splitlines()
    assert len(lines) < 60
    assert sum(line.startswith("  command: [/opt/sglang/bin/python, -m, ") for line in lines) == 3
    assert not any(line.startswith("   ") and "--" in line for line in lines)


def test_best_yaml_is_a_config_held_to_the_winner(run: RunDir) -> None:
    """Its `conf:` is the run's config with every knob of the space held to the best load point's winner."""
    _, _, best = report(run, rows())
    assert best["conf"]["space"] == {
        "algorithm": "EAGLE3", "drafter": "own", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4,
        "attention_backend": "fa3",
    }  # fmt: skip
    assert best["conf"]["workload"] == CONF["workload"]
    assert "notify" not in best["conf"]


def test_best_yaml_holds_swept_server_arguments_to_the_winner(run: RunDir) -> None:
    """An argument that was swept is held as well; one that never varied stays as it was."""
    records = [measured(PLAIN, 100.0, trial=0)]
    records.append(measured(EAGLE3.replace(server_args=(("chunked_prefill_size", 8192),)), 200.0, trial=1))
    _, _, best = report(run, records)
    assert best["conf"]["server_args"] == {"chunked_prefill_size": 8192, "schedule_policy": "fcfs"}


def test_an_argument_of_several_words_is_shown_and_held_as_its_list(run: RunDir) -> None:
    """In the tables as a config has it; in best.yaml as the one value of a list, for a list chooses."""
    records = [measured(PLAIN, 100.0, trial=0), measured(EAGLE3.replace(server_args=(("chunked_prefill_size", (1, 2)),)), 200.0, trial=1)]  # fmt: skip
    _, summary, best = report(run, records)
    assert best["conf"]["server_args"]["chunked_prefill_size"] == [[1, 2]]
    assert best["answers"][0]["settings"]["server_args"] == {"chunked_prefill_size": [1, 2]}
    assert "chunked_prefill_size=[1, 2]" in summary
    assert "[1, 2]" in run.report.read_text()


def test_best_yaml_holds_the_plain_server_where_it_wins_everywhere(run: RunDir) -> None:
    """Do not speculate is an answer like any other: the config then has no speculation in it."""
    _, _, best = report(run, [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 40.0, trial=1)])
    assert best["conf"]["space"] == {"algorithm": "none", "attention_backend": "fa3"}


def test_a_command_loses_what_belongs_to_one_launch() -> None:
    """The sweep's marker and ports mean nothing to whoever runs the winner; everything else stays as it was measured."""
    words = [
        "python",
        "--port",
        "41234",
        "--served-model-name",
        "marker",
        "--nccl-port=41235",
        "--tp-size",
        "8",
        "--flag",
    ]
    assert friendly(words) == ("python", "--port", "30000", "--tp-size", "8", "--flag")
    assert friendly(["python", "--port=41234"]) == ("python", "--port", "30000")


def test_launch_sh_runs_the_winner_of_a_load_point(run: RunDir, tmp_path: Path) -> None:
    """`./launch.sh 8` starts the very words that were measured, whatever characters are in them."""
    show = tmp_path / "bin" / "a server"
    show.parent.mkdir()
    show.write_text('#!/bin/sh\nfor word in "$@"; do printf \'%s\\n\' "$word"; done\necho "note: $SGLANG_NOTE"\n')
    show.chmod(0o755)
    odd = ("a server", "--model-path", '/models/it\'s "here"; rm -rf $HOME', "--port", "1", "--json", '{"a": 1}')
    records = [measured(PLAIN, 100.0, trial=0), measured(EAGLE3, 300.0, trial=1, argv=odd)]
    report(run, records)
    done = launch(run, "8", path=show.parent)
    assert done.stdout.splitlines() == [*friendly(odd)[1:], "note: it's set"]
    assert done.returncode == 0
    more = launch(run, "8", "--port", "30001", "a b", path=show.parent)
    assert more.stdout.splitlines() == [*friendly(odd)[1:], "--port", "30001", "a b", "note: it's set"]
    assert "./launch.sh 8 --port 30001 --host 0.0.0.0" in launch(run).stdout


def test_launch_sh_runs_the_plain_server_where_it_wins(run: RunDir) -> None:
    """The load point at which speculation loses gets the plain server's command."""
    report(run, rows())
    (line,) = [line for line in run.launch_script.read_text().splitlines() if line.startswith("  32)")]
    assert "sglang.launch_server" in line
    assert "speculative" not in line


def test_launch_sh_without_an_argument_prints_the_table(run: RunDir) -> None:
    """Nothing is started by accident; an unknown load point is refused with those there are."""
    verdict, _, _ = report(run, rows())
    table = launch(run).stdout
    assert verdict.sentence in table
    assert "./launch.sh 32    the plain server (worse, 0.70x" in table
    wrong = launch(run, "64")
    assert wrong.returncode == 2
    assert "no load point 64; there is: 1 8 32" in wrong.stderr
    assert "these: ./launch.sh 1 --port 30001" in table


def test_only_the_first_settings_are_listed(run: RunDir) -> None:
    """A large sweep's table stays readable: forty settings, and how many there were."""
    many = [
        measured(EAGLE3.replace(num_steps=1 + n % 7, num_draft_tokens=2 + n), 50.0 + n, trial=n + 1) for n in range(60)
    ]
    _, text, _ = report(run, [measured(PLAIN, 100.0, trial=0), *many])
    assert "(the first 40 of 61; the rest is in trials/)" in text
    section = text.split("## All settings")[1].split("\n## ")[0]
    assert section.count("\n| ") == 42


def test_settings_are_listed_by_what_the_title_says(run: RunDir) -> None:
    """By their mean over the load points, which stands in a column; with one load point by the speedup there."""
    _, text, _ = report(run, rows())
    section = text.split("## All settings, by mean speedup over the best plain server")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    column = lines[0].index("mean")
    means = [float(line[column].rstrip("×")) for line in lines[2:]]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx((2.0 * 1.5 * 0.7) ** (1 / 3), abs=0.02)
    _, text, _ = report(run, [row for row in rows() if row.point and row.point.concurrency == 8])
    section = text.split("## All settings, by speedup over the best plain server")[1].split("\n## ")[0]
    assert "mean" not in section


def test_a_full_disk_leaves_the_last_report_whole(run: RunDir) -> None:
    """A report that cannot be written does not destroy the one before."""
    report(run, rows())
    before = run.summary.read_text()
    (run.path / ".summary.md.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull):
        write_report(run, [], Goal(), CONF)
    assert run.summary.read_text() == before


def test_a_run_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """On a read-only file system a report says which file and what to do, with or without a verdict."""
    with mounted(tmp_path / "disk", size_mib=16) as disk:
        run = RunDir.at(disk / "run")
        report(run, rows())
        read_only(disk)
        for records in (rows(), []):
            with pytest.raises(NotWritable, match=r"summary\.md: .*Read-only file system.* writable"):
                write_report(run, records, Goal(), CONF)
        read_only(disk, on=False)


def test_a_launch_script_that_cannot_be_removed_is_one_message(run: RunDir) -> None:
    """Here a directory stands in its place."""
    run.launch_script.mkdir()
    with pytest.raises(NotWritable, match=r"launch\.sh: could not be written \(Is a directory\)"):
        write_report(run, [], Goal(), CONF)


def test_drafters_that_were_not_tried_stand_in_the_table(run: RunDir) -> None:
    """Each drafter of the space has a row: the best of how many settings, or why there is none."""
    _, text, _ = report(run, rows())
    section = text.split("## Drafters, by their best settings")[1].split("\n## ")[0]
    cells = {line.split(" | ")[0]: line.split(" | ")[-1] for line in section.splitlines() if line.startswith("| ")}
    assert cells["| EAGLE3 own"] == "best of 2 settings |"
    assert cells["| EAGLE3 public"] == "not launched |"
    assert "EAGLE3 public was never launched.**" in text.splitlines()[0]
    run.begin(Trial(7, PUBLIC, "trial", ()))
    _, text, _ = report(run, rows())
    assert "EAGLE3 public was launched, but nothing that counts was measured.**" in text.splitlines()[0]


def test_an_interval_says_what_was_assumed(run: RunDir) -> None:
    """A plain server launched four times and a speculative one launched once: 12 % are assumed for the latter alone."""
    records = [measured(PLAIN, 100.0 + n / 10, trial=n, launch=n) for n in range(4)]
    _, text, best = report(run, [*records, measured(EAGLE3, 150.0, trial=5)])
    assert best["answers"][0]["basis"] == "assumed for the speculative server"
    assert "] *assumed for the speculative server* |" in text
    (note,) = [line for line in text.splitlines() if line.startswith("- Intervals marked")]
    assert "none was launched twice: 8% between launches is taken from experience" in note


def test_one_setting_for_all_loads_is_what_the_config_holds(run: RunDir) -> None:
    """With weights best.yaml has an `overall:`, and its `conf:` runs that one; without, the answers per load point."""
    _, text, best = report(run, rows(), Goal(weights={1: 1.0, 8: 1.0, 32: 8.0}))
    assert best["overall"]["settings"] == "baseline"
    assert best["conf"]["space"]["algorithm"] == "none"
    assert "| all, weighted |" in text
    assert "overall" not in report(run, rows())[2]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([("search_ended", {"why": "budget.launches", "cut_short": False}), ("sweep_ended", {})], None),
        ([("search_ended", {"why": "left without a GPU set", "cut_short": True})], "left without a GPU set"),
        ([], "killed, or still runs"),
        ([("sweep_ended", {"interrupted": True})], "interrupted"),
        ([("sweep_ended", {"interrupted": False})], None),
    ],
)
def test_a_sweep_that_did_not_come_to_its_end_says_so(
    run: RunDir, events: list[tuple[str, dict[str, Any]]], says: str | None
) -> None:
    """The last driver counts; journals of an older release say no more than that the sweep ended."""
    run.journal.note("sweep_started", conf="test")
    run.journal.note("sweep_resumed")
    for event, facts in events:
        run.journal.note(event, **facts)
    _, text, _ = report(run, rows())
    assert (f"**Not finished**, the sweep was {says}:" in text) if says else ("Not finished" not in text)


def test_a_speedup_at_a_fixed_rate_is_doubted(run: RunDir) -> None:
    """What arrives bounds what is given; a goal of latency is not doubted."""
    conf = CONF | {"workload": {"arrival": "poisson"}}
    write_report(run, rows(), Goal(), conf)
    assert "a speedup says little here" in run.summary.read_text()
    write_report(run, rows(user_tok_s=50.0), Goal(maximize="user_tok_s"), conf)
    assert "says little here" not in run.summary.read_text()


def test_a_figure_says_which_launches_it_is_from(run: RunDir) -> None:
    """A relaunched setting is judged on its relaunches, and what to choose from shows the means of these."""
    _, text, _ = report(run, rows(user_tok_s=50.0))
    assert "| 2, judged on its relaunch (2) |" in text
    assert "Means over the launches that a setting is judged by: its relaunches, where it has some." in text


def test_what_is_recommended_unchecked_is_said_to_be(run: RunDir) -> None:
    """Among the settings whose output was checked stands the winner, whose output was not."""
    checked = measured(
        PUBLIC, 110.0, trial=30, concurrency=1, lossless_tokens=500, lossless_argmax_share=1.0, lossless_far_share=0.0
    )
    _, text, _ = report(run, [*rows(), checked])
    assert f"| {EAGLE3} | – | – | – | – | – | **not checked** |" in text


def test_limits_that_nothing_meets_are_said_to_be(run: RunDir, tmp_path: Path) -> None:
    """In the sentence, in the script's table, and before the script starts a server that breaks them."""
    verdict, text, best = report(run, rows(ttft_p99_ms=90.0), Goal(limits={"ttft_p99_ms": 40.0}))
    assert "nothing meets ttft_p99_ms ≤ 40" in text.splitlines()[0]
    assert "cannot tell" not in f"{verdict.sentence}{text}"
    assert "**nothing meets the limits** |" in text
    assert "nothing meets ttft_p99_ms ≤ 40" in launch(run).stdout
    script = run.launch_script.read_text().replace("/opt/sglang/bin/python", "/bin/true")
    run.launch_script.write_text(script)
    started = launch(run, "8")
    assert (started.returncode, started.stdout) == (0, "")
    assert "launch.sh: nothing meets ttft_p99_ms ≤ 40 at concurrency 8" in started.stderr
    assert best["answers"][0]["may_win"] is False


def test_the_config_holds_the_best_single_setting_and_says_what_it_does_elsewhere(run: RunDir) -> None:
    """Not the winner of the load point where it pays most: that one loses twice as much elsewhere."""
    found = []
    for concurrency, eagle, wide in ((1, 200, 140), (8, 60, 130), (32, 50, 120)):
        for turn in (0, 1, 2):
            for trial, settings, tok_s in ((0, PLAIN, 100), (10, EAGLE3, eagle), (20, WIDE, wide)):
                found.append(measured(settings, tok_s, trial=trial + turn, launch=turn, concurrency=concurrency))
    _, _, best = report(run, found)
    assert best["answers"][0]["settings"]["num_steps"] == EAGLE3.num_steps
    assert best["conf"]["space"]["num_steps"] == WIDE.num_steps
    said = run.best.read_text().splitlines()[0]
    assert said.startswith(f"# conf: runs {WIDE}, the best single server for all load points: 1.40x at concurrency 1, ")
