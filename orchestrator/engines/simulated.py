"""The simulated engine: SGLang's dialect spoken by a server process of our own, from a profile file (no GPU).

Every row it makes says `simulated`.  Not here: the server and its performance model (orchestrator/simulator).
"""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path

from orchestrator.engines.imports import Imports
from orchestrator.engines.sglang import SGLang
from orchestrator.plan import Plan
from orchestrator.simulator.profile import load_profile
from sweeps.settings import Settings


class Simulated(SGLang):
    name = "simulated"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}  # noqa: RUF012 - read only

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.profile = load_profile(plan.engine.profile)

    @property
    def simulated(self) -> bool:
        return True

    @property
    def target(self) -> str:
        return self._plan.target.path or self.profile.target.name

    @cached_property
    def version(self) -> str:
        return f"0.5.17 ({self.profile.name})"

    def imports(self, _settings: Settings) -> Imports | str:
        """All of it: a simulated server is one process."""
        return Imports(server=("orchestrator.simulator.server",))

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "orchestrator.simulator", "--sim-profile", str(self.profile.path)]

    def _drafter_path(self, name: str) -> str:
        """The simulated server knows drafters by their names."""
        return name
