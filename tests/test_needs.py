"""What a machine lacks for a sweep: all of it is said at once, and what is refused is in nobody's way afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.needs import lacking
from orchestrator.plan import ClusterConf, EngineConf
from results.rundir import RunDir
from sweeps.space import Held
from tests.fakes.command_line import SMALL, orchestrator
from tests.fakes.plans import plan


def test_everything_is_said_in_one_message(tmp_path: Path) -> None:
    """Of the config, of the prompts, of the engine, of the GPUs and of the program to notify."""
    prompts = tmp_path / "bad.jsonl"
    prompts.write_text("no JSON\n")
    words = (
        "conf=eagle3", "target.path=/no/such/model", "drafters.own=/no/such/drafter", "space.drafter=[own]",
        "engine.python=/no/such/python", "cluster.gpus=[77]", f"workload.prompts={prompts}", "notify=[no-such-program]",
        f"out={tmp_path / 'run'}",
    )  # fmt: skip
    done = orchestrator("sweep", *words)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.partition(" no such directory")[0] for line in lines[:2]] == [
        "command line: target.path: /no/such/model:",
        "command line: drafters.own: /no/such/drafter:",
    ]
    assert f"{prompts}:1: not JSON" in lines[2]
    assert "engine.python: /no/such/python cannot be run" in lines[3]
    assert "GPU" in lines[4]
    assert "notify: 'no-such-program' is no program that can be started here" in lines[5]
    assert len(lines) == 6
    planned = orchestrator("plan", *words)
    assert [f"  {line}" for line in lines] == planned.stdout.partition("would not start:\n")[2].splitlines()[:6]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("target.tp_size=8", "tp_size 8 needs 8 GPUs on one machine; Ray offers 2. Lower target.tp_size"),
        ("cluster.gpus=[1,2]", "cluster.gpus: profile demo has no GPU '2'. There are: 0, 1"),
        ("notify=[no-such-program]", "notify: 'no-such-program' is no program"),
    ],
)
def test_what_is_refused_leaves_no_directory(word: str, says: str, tmp_path: Path) -> None:
    """So that the corrected words may name the same one."""
    done = orchestrator("sweep", *SMALL, word, f"out={tmp_path / 'run'}")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_sweep_that_came_to_nothing_once_ray_was_up_is_begun_anew_in_its_directory(tmp_path: Path) -> None:
    """What kind of GPU our own Ray has, only it can tell: until something is launched, out= may name the same directory."""
    run = tmp_path / "run"
    refused = orchestrator("sweep", *SMALL, "cluster.accelerator=H200", f"out={run}")
    assert refused.returncode == 2
    assert "no machine of this Ray has 'H200'" in refused.stderr
    assert RunDir(run).plan.exists()
    words = ("sweep", *SMALL, "space.attention_backend=fa3", "budget.launches=2", f"out={run}")
    done = orchestrator(*words)
    assert done.returncode == 0, done.stderr
    again = orchestrator(*words)
    assert again.returncode == 2
    assert f"there is a run in it already. Go on with it by `python -m orchestrator resume {run}`" in again.stderr


def test_the_gpus_that_are_chosen_are_the_ones_that_count(tmp_path: Path) -> None:
    """Of the two that the profile has, one."""
    one = ClusterConf(gpus=["1"])
    assert lacking(plan(cluster=one), tmp_path) == []
    (lacks,) = lacking(plan({"tp_size": Held(2)}, cluster=one), tmp_path)
    assert "Ray offers 1" in lacks


def test_an_engine_that_launches_nothing_needs_no_gpu(tmp_path: Path) -> None:
    """A replay."""
    assert lacking(plan({"tp_size": Held(9)}, engine=EngineConf(name="replay")), tmp_path) == []
