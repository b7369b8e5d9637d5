"""Asked once for all tests: the SGLang of the tests' environment, and the newest one where it has been unpacked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sglang_cpu.product import ENGINES
from tests.upstream.cases import all_cases, some_cases
from tests.upstream.contract import Compared, compared
from tests.upstream.upstream import NEWEST, models

EXHAUSTIVE = os.environ.get("UPSTREAM") == "all"
SAMPLE = 1200
SOURCES = {"installed": None, "newest": NEWEST} if EXHAUSTIVE else {"installed": None}


@pytest.fixture(scope="session", params=SOURCES)
def upstream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Every case, as the rules see it and as this SGLang answered; its table goes to $UPSTREAM_TABLES."""
    python, source = ENGINES / "sglang-cpu" / "bin" / "python", SOURCES[request.param]
    if not python.exists() or not (ENGINES / "models" / "complete").exists():
        pytest.fail("there is no SGLang to ask: run `make engine-sglang-cpu` first (about 2 minutes, 2.4 GiB)")
    if source and not source.exists():
        pytest.fail("the newest SGLang has not been unpacked: run `make test-upstream`")
    cases = all_cases() if EXHAUSTIVE else some_cases(SAMPLE)
    found = compared(python, source, models(tmp_path_factory.mktemp("models")), cases)
    if tables := os.environ.get("UPSTREAM_TABLES"):
        (Path(tables) / f"sglang-{found.version}.md").write_text(found.table())
    return found
