"""Promises about the house itself: who may import whom, and what never stands in a tracked file.

Fast, and free of the tools of `make check`: they hold wherever the tests run.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("sweeps", "results", "orchestrator")
ENGINES = {"sglang", "vllm", "torch"}
UNPINNED = {"torch"}
"""The extra `gp` alone needs it, and which torch fits is the machine's business."""
SOURCES = sorted(file for package in PACKAGES for file in (PROJECT / package).rglob("*.py"))
BINARY = {".safetensors", ".gguf", ".parquet", ".png", ".zst"}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imported(file: Path) -> frozenset[str]:
    """Top-level names of everything a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Import(names=names):
                found |= {name.name.split(".")[0] for name in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
    return frozenset(found)


def importers(name: str) -> list[str]:
    return [str(file.relative_to(PROJECT)) for file in SOURCES if name in imported(file)]


def tracked_files() -> Iterator[tuple[str, str]]:
    """(name, text) of every tracked file that is text."""
    git = shutil.which("git")
    if git is None or not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        file = PROJECT / name
        if file.is_file() and file.suffix not in BINARY:
            yield name, file.read_text(errors="replace")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_only_the_sampler_knows_optuna() -> None:
    """Optuna has one door."""
    assert importers("optuna") == ["sweeps/sampler/__init__.py", "sweeps/sampler/export.py", "sweeps/sampler/spec.py"]


def test_only_the_pool_knows_ray() -> None:
    """Ray has one door."""
    assert importers("ray") == ["orchestrator/pool.py"]


def test_only_references_know_omegaconf() -> None:
    """OmegaConf has one door: it is imported for a config that holds a ${reference}, and for no other."""
    assert importers("omegaconf") == ["orchestrator/config/references.py"]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_engines_are_launched_and_never_imported(engine: str) -> None:
    """A server lives in an environment of its own."""
    assert importers(engine) == []


@pytest.mark.parametrize(("package", "above"), [("sweeps", {"results", "orchestrator"}), ("results", {"orchestrator"})])
def test_imports_run_one_way(package: str, above: set[str]) -> None:
    """orchestrator → results → sweeps."""
    upward = [
        str(f.relative_to(PROJECT)) for f in SOURCES if f.is_relative_to(PROJECT / package) and imported(f) & above
    ]
    assert upward == []


def test_every_module_says_what_it_is() -> None:
    """A module opens with a docstring, unless there is nothing in it."""
    trees = {file.relative_to(PROJECT): parsed(file) for file in SOURCES}
    assert [str(name) for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_no_tracked_file_names_a_path_of_somebody_s_machine() -> None:
    """What is written here holds on any machine."""
    homes = re.compile(r"(?<![\w.~}/-])/(?:home/(?!me/|you/)\w+|Users/\w+|root|work)/[\w.-]")
    found = [f"{name}: {hit.group()}" for name, text in tracked_files() for hit in homes.finditer(text)]
    assert found == []


def test_no_tracked_file_names_a_package_registry() -> None:
    """Where packages come from is pip's configuration, not ours."""
    hosts = re.compile(
        r"\b(?:pypi|pythonhosted|test\.pypi|anaconda|download\.pytorch)\.(?:org|com)\b|--(?:extra-)?index-url"
    )
    names = Path(__file__).name
    found = [
        f"{name}: {hit.group()}"
        for name, text in tracked_files()
        if Path(name).name != names
        for hit in hosts.finditer(text)
    ]
    assert found == []


def test_every_dependency_is_pinned() -> None:
    """constraints.txt gives every package of pyproject.toml one version, for a person and CI to get the same."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(w for extra in project["optional-dependencies"].values() for w in extra)]
    names = {normal(re.split(r"[\s<>=!~\[;]", requirement)[0]) for requirement in wanted}
    pins = [line for line in (PROJECT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    assert all(re.fullmatch(r"[\w.-]+==[\w.!+-]+", pin) for pin in pins)
    assert names - {normal(pin.split("==")[0]) for pin in pins} == UNPINNED
