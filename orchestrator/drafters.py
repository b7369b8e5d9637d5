"""Drafters of a plan before any launch: which combinations of algorithm and drafter may be launched, and which not.

Each is inspected (sweeps/drafter.py).  One with an error is never launched, the others go on; when none is left there is
no sweep.  Only an engine that reads checkpoints has anything to inspect, and only directories on this disk.
Not here: the verb inspect (inspection.py), drafters that turn out to guess nothing (results/acceptance.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from orchestrator.errors import ConfError
from orchestrator.plan import Plan
from results.acceptance import Pair
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from sweeps.checkpoint import Checkpoint, on_disk, read_checkpoint
from sweeps.drafter import OVERRIDE, TARGET_SPLIT, TENSOR_PARALLEL, inspect_drafter, inspect_own_layers
from sweeps.facts import KNOWN_VERSIONS
from sweeps.finding import Finding, shown, warning
from sweeps.settings import ARGS

WITHOUT_DRAFTER = ("NGRAM",)
UNCHECKED = (
    "Nothing was launched. Correct this, or go on all the same with drafters_unchecked=true: rows are then flagged "
    "drafter_unchecked."
)


@dataclass(frozen=True)
class Inspected:
    """What inspection found, by algorithm (as SGLang runs it) and drafter."""

    findings: Mapping[Pair, tuple[Finding, ...]] = field(default_factory=dict)
    unchecked: bool = False
    """Launch what has errors, too."""

    @property
    def wrong(self) -> tuple[Pair, ...]:
        return tuple(pair for pair, found in self.findings.items() if any(one.severity == "error" for one in found))

    @property
    def refused(self) -> tuple[Pair, ...]:
        """What is never launched."""
        return () if self.unchecked else self.wrong

    def said(self) -> Iterator[tuple[Pair, Finding]]:
        """What a person should know, the errors first."""
        for severity in ("error", "warning"):
            yield from (
                (pair, one) for pair, found in self.findings.items() for one in found if one.severity == severity
            )

    def marked(self, record: Record) -> Record:
        """A row with the flags that follow from how its drafter was found."""
        pair = (record.asked.algorithm, record.asked.drafter)
        exceeded = any(
            one.check == "context_length" and one.severity == "warning" for one in self.findings.get(pair, ())
        )
        found = {Flag.DRAFTER_UNCHECKED: pair in self.wrong, Flag.CONTEXT_OVERRIDDEN: exceeded}
        more = [flag for flag, holds in found.items() if holds and flag not in record.flags]
        return dataclasses.replace(record, flags=(*record.flags, *more)) if more and record.measured else record


def inspect_plan(plan: Plan, version: str) -> Inspected:
    """Every combination that the plan can launch, for SGLang of this version.

    Raises:
        ConfError: none of them may be launched; all errors in one message.
    """
    inspected = found_in(plan, version)
    require_fit(plan, inspected)
    return inspected


def require_fit(plan: Plan, inspected: Inspected) -> None:
    """Raises ConfError where every combination is refused and nothing else speculates; all errors in one message."""
    others = set(WITHOUT_DRAFTER) & set(_values(plan, "algorithm"))
    if inspected.refused and len(inspected.refused) == len(_pairs(plan)) and not others:
        raise ConfError(
            [*(line_of(plan, pair, one) for pair, one in inspected.said() if one.severity == "error"), UNCHECKED]
        )


def found_in(plan: Plan, version: str) -> Inspected:
    """The same without a judgement of the whole; never raises."""
    if plan.engine.name != "sglang":
        return Inspected()
    read = cache(read_checkpoint)
    found = {pair: tuple(_inspected(plan, pair, version, read)) for pair in _pairs(plan)}
    return Inspected(found, plan.drafters_unchecked)


def found_here(plan: Plan, version: str | None) -> Inspected:
    """For a machine that need not have the checkpoints: what a sweep would find in those that are on this disk.

    Args:
        version: None: not known here; the first known one's rules are taken.
    """
    if plan.engine.name != "sglang" or not Path(plan.target.path).is_dir():
        return Inspected()
    found = found_in(plan, version or KNOWN_VERSIONS[0])
    here = {pair: one for pair, one in found.findings.items() if Path(plan.drafters.get(pair[1] or "", "/")).is_dir()}
    return dataclasses.replace(found, findings=here)


def note_findings(run: RunDir, inspected: Inspected) -> None:
    """The journal's lines, which the report reads; one a finding."""
    for (algorithm, drafter), finding in inspected.said():
        run.journal.note(
            "drafter_finding", algorithm=algorithm, drafter=drafter, severity=finding.severity, check=finding.check,
            text=str(finding), refused=(algorithm, drafter) in inspected.refused,
        )  # fmt: skip


def line_of(plan: Plan, pair: Pair, finding: Finding) -> str:
    """A finding with what it is of, in the words of a config."""
    algorithm, drafter = pair
    if drafter is None:
        return f"target as its own drafter, {algorithm}: {finding}"
    return f"drafters.{drafter} ({shown(plan.drafters[drafter])}) as {algorithm}: {finding}"


def _values(plan: Plan, knob: str) -> list[object]:
    domain = plan.space.domains.get(knob)
    return domain.values() if domain else []


def _pairs(plan: Plan) -> list[Pair]:
    """NEXTN is another name of EAGLE (arg_groups/speculative_hook.py:52-60 of SGLang 0.5.17)."""
    names: list[str | None] = [str(name) for name in _values(plan, "drafter")] or [None]
    algorithms = ["EAGLE" if name == "NEXTN" else str(name) for name in _values(plan, "algorithm")]
    return list(dict.fromkeys((a, n) for a in algorithms if a not in ("none", *WITHOUT_DRAFTER) for n in names))


def _inspected(plan: Plan, pair: Pair, version: str, read: Callable[[str], Checkpoint]) -> list[Finding]:
    algorithm, name = pair
    away = [path for path in (plan.target.path, plan.drafters.get(name or "", "")) if path and not on_disk(path)]
    if away:
        return [
            warning(
                "not_inspected", f"{shown(away[0])} is no directory on this disk",
                "whether drafter and target fit each other is known when SGLang has loaded them",
                "Download it and give its directory to have it inspected first.",
            )
        ]  # fmt: skip
    target = read(plan.target.path)
    if name is None:
        return inspect_own_layers(target, algorithm, version)
    return _at_every_tp_size(plan, read(plan.drafters[name]), target, algorithm, version)


def _at_every_tp_size(
    plan: Plan, drafter: Checkpoint, target: Checkpoint, algorithm: str, version: str
) -> list[Finding]:
    """An error of some tp_size only is a warning: the others can run.  That the target cannot be split so is said by the
    rules, which know of data-parallel attention."""
    sizes = [size for size in _values(plan, "tp_size") if isinstance(size, int)] or [plan.target.tp_size]
    found = {
        size: inspect_drafter(
            drafter, target, algorithm, version, plan.target.context_length, size,
            context_overridden=plan.engine.env.get(OVERRIDE, "").lower() in ("1", "true", "yes", "y"),
            quantization=_online_quantization(plan),
        )
        for size in sizes
    }  # fmt: skip
    splits = all(any(one.check == TENSOR_PARALLEL for one in findings) for findings in found.values())
    merged = dict.fromkeys(one for findings in found.values() for one in findings if one.check != TARGET_SPLIT)
    return [
        one if splits or one.check != TENSOR_PARALLEL else dataclasses.replace(one, severity="warning")
        for one in merged
    ]


def _online_quantization(plan: Plan) -> str | None:
    given = [str(value) for value in _values(plan, ARGS + "quantization")]
    return given[0] if given and not _values(plan, ARGS + "speculative_draft_model_quantization") else None
