"""The command line: a mistake is one message, without a traceback and before anything starts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from orchestrator.commands import _Stops
from tests.fakes.checkpoints import fit_pair
from tests.fakes.command_line import SMALL, orchestrator


def said(*words: object) -> str:
    """What is said of a mistake; checks that it is one."""
    done = orchestrator(*words)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def sglang(tmp_path: Path) -> tuple[str, ...]:
    """Words of a sweep with an interpreter that claims SGLang 0.5.17, and checkpoints without weights that fit each other."""
    info = tmp_path / "site" / "sglang-0.5.17.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17\n")
    fit_pair(tmp_path)
    return (
        "conf=eagle3", f"target.path={tmp_path / 'target'}", f"drafters.own={tmp_path / 'own'}", "space.drafter=[own]",
        "engine.python=python3", f"engine.env={{PYTHONPATH: {tmp_path / 'site'}}}", f"out={tmp_path / 'run'}",
    )  # fmt: skip


def test_a_verb_that_is_not_there_names_the_nearest() -> None:
    """swep is sweep."""
    assert "Did you mean 'sweep'?" in said("swep", "conf=demo")


def test_help_is_the_modules_own_text() -> None:
    """-h anywhere."""
    done = orchestrator("sweep", "-h")
    assert done.returncode == 0
    assert "sweep conf=eagle3" in done.stdout


def test_all_mistakes_of_a_config_come_in_one_message() -> None:
    """Three words wrong: three lines."""
    text = said("sweep", "conf=demo", "space.eagle_topq=[1]", "budget.launches=many", "workload.concurency=[1]")
    assert "Did you mean 'eagle_topk'?" in text
    assert "budget.launches" in text
    assert "Did you mean 'concurrency'?" in text


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_what_would_run_here(sglang: tuple[str, ...], tmp_path: Path) -> None:
    """SGLang is there, a GPU is not; plan says so beforehand, and the sweep leaves nothing."""
    says = "no GPU found; engine.name=simulated needs none"
    assert json.loads(orchestrator("plan", *sglang, "--json").stdout)["not_here"][0].startswith(says)
    assert said("sweep", *sglang).startswith(says)
    assert not (tmp_path / "run").exists()


def test_a_missing_sglang_is_said_with_the_interpreter(sglang: tuple[str, ...]) -> None:
    """The interpreter runs, SGLang is not in it."""
    text = said("sweep", *(word for word in sglang if not word.startswith("engine.env")))
    assert "python3 has no SGLang" in text


def test_a_wrong_drafter_path_is_said_before_anything_starts(sglang: tuple[str, ...]) -> None:
    """With the path in the message."""
    words = [word for word in sglang if not word.startswith("drafters")]
    assert "/no/such/drafter: no such directory" in said("sweep", *words, "drafters.own=/no/such/drafter")


def test_a_bad_prompt_file_is_said_with_its_line(tmp_path: Path) -> None:
    """Line 2 is not JSON."""
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "hello"}\nhello\n')
    assert "own.jsonl:2" in said("sweep", *SMALL, f"workload.prompts={prompts}", f"out={tmp_path / 'run'}")


def test_a_directory_that_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    """Nor reported, nor asked for its status."""
    for verb in ("resume", "report", "status"):
        assert str(tmp_path) in said(verb, tmp_path)


def test_a_sweep_without_a_conf_does_not_start() -> None:
    """Nor a preview; what is shipped is listed."""
    for verb in ("sweep", "plan"):
        assert "conf=… is missing: a shipped name (demo, eagle3, kimi-k2.5)" in said(verb, "budget.launches=1")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("status", "A", "B"), "'B': status takes one run directory and nothing else."),
        (("report", "A", "budget.launches=3"), "'budget.launches=3': report takes one run directory and optuna=FILE."),
        (("resume", "A", "B", "budget.launches=3"), "'B': resume takes one run directory and key=value."),
        (("resume", "--force", "A"), "'--force': flags are -h and --json only."),
        (("sweep", "conf=demo", "--verbose"), "'--verbose': flags are -h and --json only."),
    ],
)
def test_a_word_too_many_is_refused(words: tuple[str, ...], wrong: str) -> None:
    """Not left out silently."""
    assert said(*words) == f"command line: {wrong}\n"


def test_what_a_ctrl_c_does_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """The first finishes what runs, where something runs; the second stops now, and a third changes nothing."""
    asked: list[bool] = []
    starting, running = _Stops(), _Stops()
    starting._heard(signal.SIGINT, None)
    running.pass_on_to(asked.append)
    for _ in range(3):
        running._heard(signal.SIGINT, None)
    assert capfd.readouterr().err.split("\n") == [
        "", "Stopping before anything is launched (again to stop now).",
        "", "Stopping after this load point (again to stop now).", "", "Stopping now.", "",
    ]  # fmt: skip
    assert (asked, running.count) == ([False, True], 3)


def test_a_preview_launches_nothing_and_shows_every_command() -> None:
    """As JSON: every distinct legal launch with its command line, the plain servers first."""
    facts = json.loads(orchestrator("plan", "conf=kimi-k2.5", "engine.name=simulated", "--json").stdout)
    assert facts["launches"][0]["settings"]["algorithm"] == "none"
    assert len({launch["key"] for launch in facts["launches"]}) == facts["distinct"] < facts["grid"]
    assert all("--tp-size" in launch["argv"] for launch in facts["launches"])
