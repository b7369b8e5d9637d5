"""Arguments: the names that the engine's own parser takes, and what `server_args:` gives that is none of them.

Of SGLang they are read from its source in its own environment, without importing it: an import takes as long as a start.
Not here: names that are given elsewhere (config/sections.py), which values a server accepts (sweeps/rules.py).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection

from orchestrator.engines.environment import server_environment
from orchestrator.nearest import nearest
from orchestrator.plan import EngineConf, Plan
from orchestrator.simulator.flags import known_arguments
from sweeps.facts import KNOWN_VERSIONS, plain_version
from sweeps.settings import ARGS, spelt

ANSWERS_WITHIN_S = 60.0
LEAST = 100
"""Of the names found; with fewer this is no source as known."""
ASK = r"""
import glob, importlib.util, json, os, re
found = importlib.util.find_spec("sglang")
names = set()
for folder in (found.submodule_search_locations or []) if found else []:
    pattern = os.path.join(folder, "srt", "arg_groups", "**", "*.py")
    for path in [os.path.join(folder, "srt", "server_args.py"), *glob.glob(pattern, recursive=True)]:
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            names.update(re.findall(r"[\"']--([a-z0-9][a-z0-9_-]+)[\"']", text))
            names.update(re.findall(r"^    ([a-z][a-z0-9_]+): ?A\[", text, re.M))
print(json.dumps(sorted(names)))
"""
"""Fields of ServerArgs (`name: A[…]`) and flags that are written out (server_args.py, arg_groups/ of 0.5.17 and 0.5.23)."""


def unknown_arguments(plan: Plan, version: str | None) -> list[str]:
    """A line for each name under `server_args:` that the engine's parser would refuse, with the nearest that it takes.

    Only of a known version whose source is here: what is not known for sure is left to the server.
    """
    given = [name.removeprefix(ARGS) for name in plan.space.domains if name.startswith(ARGS)]
    if not given or (known := _known(plan.engine, version)) is None:
        return []
    who = "the simulated engine" if plan.engine.name == "simulated" else f"SGLang {version}"
    return [
        f"server_args.{name}: {who} has no such argument.{nearest(name, known, ())}"
        for name in given
        if not _taken(spelt(name), known)
    ]


def _known(engine: EngineConf, version: str | None) -> Collection[str] | None:
    if engine.name == "simulated":
        return known_arguments()
    if engine.name != "sglang" or plain_version(version or "") not in KNOWN_VERSIONS:
        return None
    names = {spelt(name) for name in _asked(engine)}
    return names if len(names) >= LEAST else None


def _asked(engine: EngineConf) -> list[str]:
    """Of the engine's interpreter; empty where it does not say."""
    try:
        done = subprocess.run(
            [str(engine.python), "-c", ASK], env=server_environment(engine), capture_output=True, check=True, timeout=ANSWERS_WITHIN_S,
        )  # fmt: skip
        names = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _taken(name: str, known: Collection[str]) -> bool:
    """A parser takes a beginning of a name as well."""
    return any(other.startswith(name) for other in known)
