"""Needs: what a machine lacks for a sweep, all of it in one message, before anything is written or started.

What the verb plan says of this machine and what the verbs sweep and resume refuse on it is one and the same.
Not here: what is wrong with a config wherever it runs (config/), how well a machine suits a sweep (doctor/).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.cluster import LOCAL, machines
from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.arguments import unknown_arguments
from orchestrator.errors import ConfError, MachineError
from orchestrator.measuring.workload import load_prompts
from orchestrator.offers import GPU, gpu_sets, own_gpus, per_set
from orchestrator.plan import Plan
from results.files import RunDirProblem
from results.rundir import RunDir

LEAST_DISK_MIB = 200
ASKED = ("sglang", "attached")
"""Engines that are asked for their version: an interpreter, or the server itself."""


def plan_here(words: Sequence[str]) -> Plan:
    """The Plan of a sweep of these words, which can start on this machine.

    Raises:
        ConfError: every mistake of all files and words; where these are of models alone, all else that this machine lacks, too.
        MachineError: the config is right, the machine lacks something.
    """
    wrong: list[str] = []
    try:
        plan = load_plan(words)
    except ConfError as error:
        wrong = error.mistakes
        plan = _read_all_the_same(words, error)
    lacks = lacking(plan, plan.out)
    if wrong:
        raise ConfError([*wrong, *lacks])
    if lacks:
        raise MachineError("\n".join(lacks))
    return plan


def _read_all_the_same(words: Sequence[str], error: ConfError) -> Plan:
    """The same words without a look at models; raises `error` where that does not help."""
    try:
        return load_plan(words, to_run=False, inputs=True)
    except ConfError:
        raise error from None


def lacking(plan: Plan, out: Path) -> list[str]:
    """What a sweep of this plan, written to `out`, would end of before its first launch; empty: nothing."""
    found: list[str] = []
    for need in (_prompts, _engine, _arguments, _gpus, _program):
        try:
            need(plan)
        except ConfError as error:
            found += error.mistakes
        except MachineError as error:
            found.append(str(error))
    try:
        RunDir(out).require_space(LEAST_DISK_MIB)
    except RunDirProblem as problem:
        found.append(str(problem))
    return found


def _prompts(plan: Plan) -> None:
    load_prompts(plan.workload, None)


def _engine(plan: Plan) -> None:
    if plan.engine.name in ASKED:
        dialect_for(plan).version  # noqa: B018 - asks it


def _arguments(plan: Plan) -> None:
    """Those under server_args, of an engine that can be asked for its own."""
    with suppress(MachineError):  # said of the engine itself
        if unknown := unknown_arguments(plan, dialect_for(plan).version):
            raise ConfError(unknown)


def _gpus(plan: Plan) -> None:
    """Of a Ray of our own those of this machine, otherwise those of the cluster."""
    if plan.engine.name == "replay":
        return
    if plan.cluster.address == LOCAL:
        gpu_sets([{"Alive": True, "Resources": {GPU: len(own_gpus(plan))}}], "any", per_set(plan))
    else:
        gpu_sets(machines(plan.cluster.address), plan.cluster.accelerator, per_set(plan))


def _program(plan: Plan) -> None:
    """Of `notify`."""
    if plan.notify and shutil.which(plan.notify[0]) is None:
        raise ConfError([f"notify: {plan.notify[0]!r} is no program that can be started here: give its path, or the name of one on PATH."])  # fmt: skip
