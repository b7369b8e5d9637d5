"""Launches of the fake server that spawns, plain and with what its launcher and a standby need."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.engines.imports import Imports, Kind
from orchestrator.serving.ports import free_port
from orchestrator.serving.server import Launch
from orchestrator.serving.standby import Standby, Waiting
from tests.fakes.command_line import ROOT

HOST = "127.0.0.1"
RUN = f"tests-{os.getpid()}"
MARK = f"{RUN}/000001/1-5f3a"
CHILDREN = "tests.fakes.spawning.children"
IMPORTS = Imports(
    server=(CHILDREN,),
    kinds=(Kind("worker", "run_worker", (CHILDREN,)), Kind("other", "run_other", (CHILDREN,))),
    sets={"SETS": "1"},
)
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "COLOUR": "blue", "PATH": os.environ["PATH"]}


def launch(folder: Path, *words: str, marker: str = MARK, python: str = sys.executable) -> Launch:
    """`--sets SETS=1`, unless the words say otherwise: what IMPORTS expects of a server."""
    port = free_port(HOST)
    argv = (
        python,
        "-m",
        "tests.fakes.spawning",
        "--port",
        str(port),
        "--served-model-name",
        marker,
        "--sets",
        "SETS=1",
    )
    return Launch((*argv, *words), ENVIRONMENT, folder / "server.log", HOST, port, marker)


def overlapped(plain: Launch, imports: Imports = IMPORTS) -> Launch:
    return dataclasses.replace(plain, launcher=imports.launcher(plain.argv, waits=False))


def standby(folder: Path, plain: Launch, imports: Imports = IMPORTS, **spec: object) -> Standby:
    """`spec`: what the launcher is told otherwise."""
    python, script, text = imports.launcher(plain.argv, waits=True)
    command = (python, script, json.dumps(json.loads(text) | spec))
    marker = f"{RUN}/standby/{'0' * 32}"
    return Standby(Waiting(command, imports.names, ENVIRONMENT, marker, folder / "standby.log"), stop_s=10)


def told(log: Path) -> list[dict[str, Any]]:
    """What the server and then its children said of themselves."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
