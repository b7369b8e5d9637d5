"""Python and the packages the product runs on, against what it asks for.  Standard library only: it must run without them."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.doctor.check import Check, green, red, yellow

DISTRIBUTION = "speculation-sweep"
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
INSTALL = f"{sys.executable} -m pip install"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BOUND = re.compile(r"(>=|<|==)\s*([0-9.]+)")


def requirements() -> list[str]:
    """What the product asks for, extras left out: of its checkout, or of the installed distribution."""
    if PYPROJECT.is_file():
        wanted: list[str] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
        return wanted
    try:
        return [line for line in importlib.metadata.requires(DISTRIBUTION) or [] if "extra ==" not in line]
    except importlib.metadata.PackageNotFoundError:
        return []


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(wanted: Sequence[str], version: Callable[[str], str | None] = installed) -> list[Check]:
    """Python; every package that is missing or of another version than asked for; the others in one line."""
    checks = [green("python", f"Python {platform.python_version()} ({sys.executable})")]
    fitting = []
    for requirement in wanted:
        check = _package(requirement, version)
        if isinstance(check, str):
            fitting.append(check)
        else:
            checks.append(check)
    if fitting:
        checks.append(green("packages", ", ".join(fitting)))
    if not wanted:
        checks.append(yellow("packages", "what the product asks for is not known: it is neither installed nor a checkout", f"Install it: {INSTALL} {DISTRIBUTION}"))  # fmt: skip
    return checks


def _package(requirement: str, version: Callable[[str], str | None]) -> Check | str:
    """`ray 2.60.0` when it fits."""
    found = _NAME.match(requirement)
    name = found.group() if found else requirement
    have = version(name)
    remedy = f"Install it: {INSTALL} '{requirement}'"
    if have is None:
        return red(name, f"not installed; {requirement} is asked for", remedy)
    for sign, bound in _BOUND.findall(requirement):
        if not _holds(have, sign, bound):
            say = yellow if sign == "<" else red  # a newer one may work
            return say(name, f"{have} is installed, {requirement} is asked for", remedy)
    return f"{name} {have}"


def _holds(have: str, sign: str, bound: str) -> bool:
    """By the release numbers alone: 2.61rc1 counts as 2.61."""
    left, right = _release(have), _release(bound)
    width = max(len(left), len(right))
    left, right = left + (0,) * (width - len(left)), right + (0,) * (width - len(right))
    return {">=": left >= right, "<": left < right, "==": left == right}[sign]


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)
