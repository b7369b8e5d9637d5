"""Arguments: a misspelt name under server_args is said before a launch is spent on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.doctor import conf as doctor
from orchestrator.engines.arguments import unknown_arguments
from orchestrator.plan import EngineConf, Plan
from sweeps.space import Held
from tests.fakes.command_line import SMALL, orchestrator
from tests.fakes.plans import plan

MEANT = "server_args.chunked_prefil_size: SGLang 0.5.17 has no such argument. Did you mean 'chunked_prefill_size'?"


def with_source(tmp_path: Path, fields: str, version: str = "0.5.17", **given: object) -> Plan:
    """A plan whose interpreter has a package of this version, with a ServerArgs of 200 fields and these."""
    srt, info = tmp_path / "sglang" / "srt", tmp_path / f"sglang-{version}.dist-info"
    srt.mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    many = "".join(f"    field_{number}: A[int, 'help'] = 0\n" for number in range(200))
    (srt / "server_args.py").write_text(f"class ServerArgs:\n{many}{fields}")
    engine = EngineConf(name="sglang", python=sys.executable, env={"PYTHONPATH": str(tmp_path)})
    return plan({f"server_args.{name}": Held(value) for name, value in given.items()}, engine=engine)


FIELDS = "    chunked_prefill_size: A[\n        int,\n    ] = 1\n    parser.add_argument('--old-name')\n"


def test_a_misspelt_argument_is_named_with_the_nearest(tmp_path: Path) -> None:
    """From the engine's own source, which is read and not imported; doctor says the same."""
    given = with_source(tmp_path, FIELDS, chunked_prefil_size=8192, chunked_prefill_size=1, old_name=1)
    assert unknown_arguments(given, "0.5.17") == [MEANT]
    assert [check.what for check in doctor.arguments(given)] == [MEANT]


@pytest.mark.parametrize("name", ["chunked_prefill", "chunked-prefill-size"])
def test_what_the_parser_takes_is_let_pass(tmp_path: Path, name: str) -> None:
    """A beginning of a name, and dashes."""
    assert unknown_arguments(with_source(tmp_path, FIELDS, **{name: 1}), "0.5.17") == []


def test_of_an_unknown_version_the_server_decides(tmp_path: Path) -> None:
    """Whose names may stand elsewhere."""
    assert unknown_arguments(with_source(tmp_path, FIELDS, version="0.6.0", wrong=1), "0.6.0") == []


def test_a_source_that_is_not_as_known_tells_nothing() -> None:
    """An interpreter without the source, or none at all."""
    for python in (sys.executable, "/no/such/python"):
        given = plan({"server_args.wrong": Held(1)}, engine=EngineConf(name="sglang", python=python))
        assert unknown_arguments(given, "0.5.17") == []


def test_a_sweep_is_refused_and_plan_says_so(tmp_path: Path) -> None:
    """Before a directory is made; of the simulated engine, whose parser is its own."""
    said = "server_args.foo: the simulated engine has no such argument."
    refused = orchestrator("sweep", *SMALL, "server_args.foo=1", f"out={tmp_path / 'run'}")
    assert (refused.returncode, refused.stderr) == (2, f"{said}\n")
    assert not (tmp_path / "run").exists()
    shown = orchestrator("plan", *SMALL, "server_args.foo=1")
    assert (shown.returncode, f"a sweep would not start:\n  {said}" in shown.stdout) == (0, True)
