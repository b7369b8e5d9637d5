"""Security: nothing that comes from elsewhere can execute, a run is its owner's alone, and secrets stay out of it."""

from __future__ import annotations

import ast
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import load_plan
from orchestrator.errors import ConfError
from orchestrator.plan import EngineConf
from results.ledger import Ledger, read_file, read_records
from results.redaction import SHORTEST, is_secret, redact_file, redacted
from results.report import write_report
from results.rundir import RunDir
from results.tidying import redact_logs
from sweeps.observation import Goal
from sweeps.trial import LoadPoint, Trial
from tests.fakes.command_line import SMALL, orchestrator
from tests.fakes.records import EAGLE3, PLAIN, failure, measured

PROJECT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    file for package in ("sweeps", "results", "orchestrator") for file in (PROJECT / package).rglob("*.py")
)
SECRET = 'hf_"Quoted\\secret'
EXECUTES = {"eval", "exec", "compile", "__import__"}
UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN = {
    ("yaml", "load"), ("yaml", "load_all"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("os", "system"), ("os", "popen"),
    ("np", "load"), ("numpy", "load"), ("torch", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle"), ("tempfile", "mktemp"),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def sins(tree: ast.AST) -> list[str]:
    """Everything in a module that could execute what is read, or hand words to a shell."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EXECUTES:
                found.append(name)
            case ast.Import(names=names):
                found += [n.name for n in names if n.name.split(".")[0] in UNPICKLES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLES:
                found.append(module)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in FORBIDDEN:
                found.append(f"{owner}.{name}")
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                found.append("shell=True")
            case _:
                pass
    return found


def test_nothing_that_is_read_can_execute() -> None:
    """No eval, no pickle, no YAML loader that makes objects, no shell: anywhere in the product."""
    assert {str(f.relative_to(PROJECT)): found for f in SOURCES if (found := sins(ast.parse(f.read_text())))} == {}


@pytest.mark.parametrize(
    "code", ["eval('1')", "import pickle", "yaml.load(x)", "run(x, shell=True)", "from dill import load"]
)
def test_the_search_for_sins_finds_them(code: str) -> None:
    """The test above would see these."""
    assert sins(ast.parse(code))


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system ['touch {}']", "!!python/name:os.system", "a: !!python/tuple [1]"]
)
def test_a_config_that_would_execute_is_a_mistake_like_any_other(tmp_path: Path, text: str) -> None:
    """A YAML of somebody else names Python; it is read as a config and refused as one."""
    conf = tmp_path / "conf.yaml"
    conf.write_text(text.format(tmp_path / "executed"))
    with pytest.raises(ConfError):
        load_plan([f"conf={conf}"])
    assert not (tmp_path / "executed").exists()


def test_servers_listen_on_loopback_unless_told_otherwise() -> None:
    """By default, and in every shipped config."""
    assert EngineConf().host == "127.0.0.1"
    hosts = [
        (yaml.safe_load(f.read_text()).get("engine") or {}).get("host", "127.0.0.1")
        for f in (PROJECT / "conf").glob("*.yaml")
    ]
    assert set(hosts) == {"127.0.0.1"}


def test_a_run_directory_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask, whether the directory was there before or not."""
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        runs = [
            RunDir.at(tmp_path / "there"),
            RunDir.at(tmp_path / "new"),
            RunDir.create(tmp_path, "demo", datetime.now(UTC)),
        ]
    finally:
        os.umask(before)
    assert [run.path.stat().st_mode & 0o777 for run in runs] == [0o700] * 3


# Secrets.


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return SECRET


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "apikey", "AWS_SECRET_ACCESS_ID", "DB_PASSWORD", "my_Secret"]
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    """However it is written."""
    assert is_secret(name)


@pytest.mark.parametrize("name", ["PATH", "TOKENIZER_PATH", "max_total_tokens", "KEYBOARD", "speculative_token_map"])
def test_a_name_that_only_sounds_like_it_is_none(name: str) -> None:
    """Else figures and paths would be blackened."""
    assert not is_secret(name)


def test_what_a_run_keeps_never_holds_a_secret(run: RunDir, secret: str) -> None:
    """A server that prints the token it was given: rows, journal, begun trials, plan, environment and report are without."""
    said = f"401 Unauthorized for token {secret} at https://host?token={secret}"
    ledger = Ledger.open(run)
    ledger.append(measured(PLAIN, 100.0, trial=0, argv=("python", "--token", secret)))
    ledger.append(failure(EAGLE3, trial=1, message=said))
    run.journal.note("leftovers_cleared", what=[said, {"deep": [said]}])
    run.begin(Trial(2, EAGLE3, "trial", (LoadPoint(1, 0),)))
    run.write_text(run.environment, json.dumps({"environment": {"X": secret}}))
    write_report(run, ledger.records, Goal(), {"engine": {"env": {"X": secret}}})
    kept = [file for file in run.path.rglob("*") if file.is_file()]
    assert len(kept) > 6
    for form in (secret, json.dumps(secret)[1:-1]):
        assert [file.name for file in kept if form.encode() in file.read_bytes()] == []
    assert "<redacted: HF_TOKEN>" in str(read_records(run.path)[1].failure)
    assert read_records(run.path) == ledger.records == Ledger.open(run).records


@pytest.mark.parametrize(
    "word", ["server_args.api_key=abc", "engine.env={HF_TOKEN: abc}", "target.path=${oc.env:HF_TOKEN}"]
)
def test_a_config_may_not_name_a_secret(word: str, secret: str) -> None:
    """The message says where it belongs instead."""
    with pytest.raises(ConfError, match="Set it in the shell"):
        load_plan(["conf=demo", word])


def test_a_config_may_not_hold_a_secret_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its value: it would stand in plan.yaml and in every command line."""
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")
    with pytest.raises(ConfError, match=r"server_args\.header: holds the value of the variable MY_API_KEY"):
        load_plan(["conf=demo", "server_args.header=Bearer sk-0123456789"])


def test_short_values_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable FOO_KEY=1 must not blacken every 1 of a report."""
    monkeypatch.setenv("FOO_KEY", "1" * (SHORTEST - 1))
    assert redacted("1" * 40) == "1" * 40


def test_every_line_of_a_private_key_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may hold some of them."""
    monkeypatch.setenv("DEPLOY_KEY", "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n")
    assert redacted("read abcdefghijkl and mnopqrstuvwx") == "read <redacted: DEPLOY_KEY> and <redacted: DEPLOY_KEY>"


@given(before=st.binary(max_size=50), between=st.binary(max_size=50), block=st.integers(1, 40))
def test_a_log_of_any_bytes_is_cleaned_across_its_blocks(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, between: bytes, block: int
) -> None:
    """A secret that begins in one block and ends in the next goes; every other byte stays."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "hf_abcdefgh")
        patch.setattr("results.redaction._BLOCK", block)
        log.write_bytes(before + b"hf_abcdefgh" + between + b"hf_abcdefgh")
        log.chmod(0o640)
        redact_file(log)
    assert log.read_bytes() == before + b"<redacted: HF_TOKEN>" + between + b"<redacted: HF_TOKEN>"
    assert log.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in log.parent.iterdir()] == ["server.log"]


def test_logs_of_a_driver_that_died_are_cleaned_when_its_run_is_taken_up(run: RunDir, secret: str) -> None:
    """It could not do it itself."""
    log = run.server_log("000003")
    log.parent.mkdir()
    log.write_text(f"token={secret}\n")
    redact_logs(run)
    assert log.read_text() == "token=<redacted: HF_TOKEN>\n"


def test_a_whole_sweep_keeps_no_secret(tmp_path: Path) -> None:
    """A demo sweep with a token in its environment that its servers are given too, and a launch that fails."""
    run = tmp_path / "run"
    given = {**os.environ, "HF_TOKEN": "hf_0123456789abcdef", "SOME_PASSWORD": "correct horse"}
    done = orchestrator("sweep", *SMALL, "budget.launches=2", "budget.finalists=0", f"out={run}", env=given)
    assert done.returncode in (0, 1), done.stderr
    files = [file for file in run.rglob("*") if file.is_file()]
    assert len([file for file in files if file.suffix == ".parquet"]) == 2
    assert read_file(run / "trials" / "000000.parquet")
    for secret in (b"hf_0123456789abcdef", b"correct horse"):
        assert [str(file) for file in files if secret in file.read_bytes()] == []
    assert run.stat().st_mode & 0o777 == 0o700
