"""Offers: the GPUs that a Ray of our own gets, and how many GPU sets the machines of any Ray have, of the size and kind
that a plan asks for.

Plain facts in, as `ray.nodes()` gives them; Ray itself is pool.py's.  Not here: who holds GPUs just now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import MachineError
from orchestrator.gpus import discover
from orchestrator.nearest import nearest
from orchestrator.nvml import Nvml
from orchestrator.plan import Plan
from orchestrator.simulator.profile import load_profile

GPU = "GPU"
"""Ray's name for the resource that a GPU is one of."""

ACCELERATOR = "accelerator_type:"
"""What Ray's name for the resource of a machine's kind of GPU begins with."""


def per_set(plan: Plan) -> int:
    """GPUs that Ray gives to each worker, those of the largest server; 0: the engine takes none."""
    if plan.engine.name != "simulated" and plan.cluster.gpus == "none":
        return 0
    return max(int(size) for size in plan.space.domains["tp_size"].values())


def own_gpus(plan: Plan, nvml: Nvml | None = None) -> list[str]:
    """Ids of this machine's GPUs that a Ray of our own has; of a simulated engine those that its profile pretends to have.

    Raises:
        MachineError: there is none, or not the one that is named.
    """
    if plan.engine.name != "simulated":
        return [gpu.id for gpu in discover(plan.cluster.gpus, nvml)]
    if isinstance(plan.cluster.gpus, list):
        return plan.cluster.gpus
    return [str(number) for number in range(load_profile(plan.engine.profile).gpus)]


def gpu_sets(nodes: Sequence[Mapping[str, Any]], accelerator: str, per_set: int) -> int:
    """Sets of `per_set` GPUs, each on one machine that lives; one where an engine takes none.

    Args:
        accelerator: the kind that a machine must have, in Ray's words, or `any`.

    Raises:
        MachineError: no machine is of that kind, or none has so many.
    """
    machines = _of_kind([node["Resources"] for node in nodes if node["Alive"]], accelerator)
    if not per_set:
        return 1
    gpus = [int(machine.get(GPU, 0)) for machine in machines]
    sets = sum(count // per_set for count in gpus)
    if sets == 0:
        raise MachineError(
            f"tp_size {per_set} needs {per_set} GPUs on one machine; Ray offers {sum(gpus)}{'' if len(gpus) < 2 else f', at most {max(gpus)} on one'}. "
            "Lower target.tp_size (or space.tp_size), or run it where there are more."
        )
    return sets


def _of_kind(machines: Sequence[Mapping[str, float]], accelerator: str) -> Sequence[Mapping[str, float]]:
    if accelerator == "any":
        return machines
    found = [machine for machine in machines if f"{ACCELERATOR}{accelerator}" in machine]
    if not found:
        names = {name for machine in machines for name in machine if name.startswith(ACCELERATOR)}
        there = nearest(accelerator, sorted(name.removeprefix(ACCELERATOR) for name in names))
        raise MachineError(
            f"cluster.accelerator: no machine of this Ray has {accelerator!r}.{there or ' It knows of no accelerator.'}"
        )
    return found
