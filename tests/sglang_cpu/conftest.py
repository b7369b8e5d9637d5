"""The environment of the tests with the real SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sglang_cpu.product import ENGINES, new_run


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter that has SGLang."""
    python = ENGINES / "sglang-cpu" / "bin" / "python"
    if not python.exists() or not (ENGINES / "models" / "complete").exists():
        pytest.fail("there is no SGLang to test with: run `make engine-sglang-cpu` first (about 2 minutes, 2.4 GiB)")
    return python


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return new_run(tmp_path)
