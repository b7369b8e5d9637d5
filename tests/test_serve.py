"""serve/: the winners as SGLang's own config files, a schedule by load, and one server that switches its steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from results.best import best_yaml
from results.launch import commands_of
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from results.serve import SERVER, arguments, schedule, serve_files
from results.verdict import Verdict, judge
from sweeps.observation import Goal
from sweeps.settings import Settings
from tests.fakes.records import EAGLE3, PLAIN, WIDE, measured
from tests.sglang_cpu.product import ENGINES
from tests.upstream.upstream import environment

DEEP = EAGLE3.replace(num_steps=5, num_draft_tokens=6)


def words(settings: Settings) -> tuple[str, ...]:
    given = [
        "/opt/sglang/bin/python", "-m", SERVER, "--model-path", "/models/llama", "--port", "41234", "--attention-backend", "fa3",
        "--mem-fraction-static", "0.9", "--disable-radix-cache", "--json-model-override-args", '{"a": 1}',
    ]  # fmt: skip
    if settings.speculative:
        given += ["--speculative-algorithm", settings.algorithm, "--speculative-draft-model-path", "/models/own"]
        given += [
            "--speculative-num-steps",
            str(settings.num_steps),
            "--speculative-eagle-topk",
            str(settings.eagle_topk),
        ]
        given += ["--speculative-num-draft-tokens", str(settings.num_draft_tokens)]
    return tuple(given)


def rows(winners: dict[int, Settings]) -> list[Record]:
    """Each load point has a winner far ahead of the rest; where it is the plain server, speculation was tried and lost."""
    found = []
    for concurrency, winner in winners.items():
        for launch in (0, 1, 2):
            speeds = {PLAIN: 100.0, EAGLE3: 40.0} if winner == PLAIN else {PLAIN: 100.0, winner: 200.0}
            found += [
                measured(settings, tok_s + launch / 10, trial=10 * place + launch, launch=launch, concurrency=concurrency, argv=words(settings))
                for place, (settings, tok_s) in enumerate(speeds.items())
            ]  # fmt: skip
    return found


def judged(winners: dict[int, Settings]) -> tuple[Verdict, dict[str, tuple[str, ...]]]:
    records = rows(winners)
    return judge(records, Goal()), commands_of(records)


def files(winners: dict[int, Settings]) -> dict[str, str]:
    return serve_files(*judged(winners))


def test_each_load_point_has_a_config_file_with_its_winner() -> None:
    """The same arguments as its command line; where the plain server wins nothing speculates."""
    found = files({1: DEEP, 32: PLAIN})
    first = yaml.safe_load(found["concurrency-1.yaml"])
    assert first["speculative-num-steps"] == 5
    assert (first["mem-fraction-static"], first["disable-radix-cache"], first["port"]) == (0.9, True, 30000)
    assert first["json-model-override-args"] == '{"a": 1}'
    assert not any(name.startswith("speculative") for name in yaml.safe_load(found["concurrency-32.yaml"]))


def test_arguments_of_every_shape_are_taken_up() -> None:
    """With an equals sign, without a value, with several, negative."""
    assert arguments([SERVER, "--a=1", "--b", "--c", "1", "2", "--d", "-1", "--e", "text"]) == {
        "a": 1, "b": True, "c": [1, 2], "d": -1, "e": "text",
    }  # fmt: skip


def test_chains_that_differ_in_steps_become_one_adaptive_server() -> None:
    """A table of steps by batch size, none where the plain server wins, and the deepest chain to start with."""
    found = files({1: DEEP, 8: EAGLE3, 32: PLAIN})
    assert json.loads(found["adaptive.json"]) == {
        "1": {"candidate_steps": [5]}, "3": {"candidate_steps": [3]}, "17": {"candidate_steps": [0]},
    }  # fmt: skip
    start = yaml.safe_load(found["adaptive.yaml"])
    assert (start["speculative-adaptive"], start["speculative-num-steps"]) == (True, 5)


@pytest.mark.parametrize("winners", [{1: DEEP, 8: EAGLE3, 32: PLAIN}, {8: DEEP, 64: PLAIN}, {2: PLAIN, 8: EAGLE3, 16: EAGLE3}])  # fmt: skip
def test_the_adaptive_server_takes_what_the_schedule_says_at_any_load(winners: dict[int, Settings]) -> None:
    """SGLang routes a batch to the largest key that is not above its size: also between load points and below the first."""
    verdict, commands = judged(winners)
    table = json.loads(serve_files(verdict, commands)["adaptive.json"])
    steps = {str(settings): settings.num_steps or 0 for settings in winners.values()}
    for batch in range(1, 100):
        key = max(start for start in map(int, table) if start <= batch)
        said = next(one for one in schedule(verdict.answers) if one["from"] <= batch <= (one["to"] or batch))
        assert table[str(key)] == {"candidate_steps": [steps[said["settings"]]]}


@pytest.mark.parametrize("winners", [{1: WIDE, 8: EAGLE3}, {1: EAGLE3, 8: EAGLE3}, {1: DEEP, 8: DEEP.replace(drafter="public", num_steps=3)}])  # fmt: skip
def test_what_a_running_server_cannot_switch_is_not_adaptive(winners: dict[int, Settings]) -> None:
    """A tree, the same steps everywhere, another drafter."""
    assert "adaptive.json" not in files(winners)


def test_the_schedule_says_what_to_run_at_any_load() -> None:
    """Winners that are neighbours and the same are one range; a change lies halfway on the log."""
    verdict, _ = judged({1: DEEP, 8: DEEP, 32: PLAIN})
    assert schedule(verdict.answers) == [
        {"from": 1, "to": 16, "settings": str(DEEP), "load_point": 1},
        {"from": 17, "to": None, "settings": str(PLAIN), "load_point": 32},
    ]
    assert yaml.safe_load(best_yaml(verdict, {}, {}))["schedule"] == schedule(verdict.answers)


def test_a_report_keeps_no_file_of_an_older_verdict(tmp_path: Path) -> None:
    """What a resume changed: the files of a load point that is no more, and of a verdict that is none."""
    run = RunDir.at(tmp_path / "run")
    conf: dict[str, Any] = {"space": {}}
    write_report(run, rows({1: DEEP, 8: EAGLE3}), Goal(), conf)
    assert sorted(file.name for file in (run.path / "serve").iterdir()) == ["adaptive.json", "adaptive.yaml", "concurrency-1.yaml", "concurrency-8.yaml"]  # fmt: skip
    write_report(run, rows({8: EAGLE3}), Goal(), conf)
    assert [file.name for file in (run.path / "serve").iterdir()] == ["concurrency-8.yaml"]
    write_report(run, [], Goal(), conf)
    assert list((run.path / "serve").iterdir()) == []


def test_a_server_that_is_not_sglang_s_gets_no_config_of_it() -> None:
    """The simulated one has no such parser."""
    verdict, commands = judged({1: DEEP})
    simulated = {key: tuple(word.replace(SERVER, "orchestrator.simulator") for word in argv) for key, argv in commands.items()}  # fmt: skip
    assert serve_files(verdict, simulated) == {}


PARSED = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
from sglang.srt.server_args_config_parser import ConfigArgumentMerger
from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
merged = ConfigArgumentMerger(parser).merge_config_with_args(["--config", sys.argv[1]])
asked = parser.parse_args(json.loads(sys.argv[2]))
print(json.dumps([vars(parser.parse_args(merged)) == vars(asked), resolve_candidate_steps_from_config(sys.argv[3])]))
"""


@pytest.mark.sglang
def test_sglang_s_own_parser_reads_the_files(tmp_path: Path) -> None:
    """The config file comes to the same arguments as the command line, and the table of steps is one."""
    python = ENGINES / "sglang-cpu" / "bin" / "python"
    if not python.exists():
        pytest.fail("there is no SGLang to ask: run `make engine-sglang-cpu` first (about 2 minutes, 2.4 GiB)")
    verdict, commands = judged({1: DEEP, 8: EAGLE3, 32: PLAIN})
    for name, text in serve_files(verdict, commands).items():
        (tmp_path / name).write_text(text)
    command = commands[DEEP.key]
    asked = json.dumps(command[command.index(SERVER) + 1 :])
    done = subprocess.run(
        [python, "-c", PARSED, tmp_path / "concurrency-1.yaml", asked, tmp_path / "adaptive.json"],
        env=environment(None), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, [0, 3, 5]]
