"""Alike: launches that fail in one and the same way, so that more of them would tell nothing new.

Not here: what a failure is (failure.py), drafters that do not fit or guess nothing (acceptance.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from results.acceptance import Reason
from results.failure import Failure, FailureKind, Stage
from results.record import Record

ENOUGH = 3
"""So many different settings that fail alike are no chance."""
Branch = tuple[str, str | None, str | None]
"""Algorithm, drafter and attention backend, as asked."""
DEPENDS_ON_SIZE = {FailureKind.OOM_KV_POOL, FailureKind.OOM_GRAPH_CAPTURE, FailureKind.OOM_RUNNING}
"""What a wide tree fails by and a short chain may not."""
Fingerprint = tuple[FailureKind, Stage, str]

_VARIES = re.compile(r"/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
"""Paths, addresses and numbers: pids, ports, sizes, times."""


def fingerprint(failure: Failure) -> Fingerprint:
    """What two failures of the same cause share: kind, stage, and the words without what varies from launch to launch."""
    return failure.kind, failure.stage, _VARIES.sub("…", failure.cause_in_short())


def nothing_runs(records: Sequence[Record], gpu_sets: int = 1) -> Failure | None:
    """How every launch has failed: ENOUGH different settings, a plain server among them, on each of the GPU sets that are
    at work, all alike and none measured.

    None: something was measured, too few have failed, or they failed in different ways.  What fails at once ends first:
    as long as a set has shown nothing, its launch may tell something else.
    """
    failed = [record for record in records if record.failure is not None]
    if len(failed) < len(records) or _gpu_sets(failed) < gpu_sets:
        return None
    if len({record.asked.key for record in failed}) < ENOUGH or all(record.asked.speculative for record in failed):
        return None
    failures = [record.failure for record in failed if record.failure is not None]
    return failures[0] if len(set(map(fingerprint, failures))) == 1 else None


def dead_branches(records: Sequence[Record], gpu_sets: int = 1) -> dict[Branch, Reason]:
    """What failed alike in ENOUGH different settings, by the settings' own fault, and was never measured.

    Where several GPU sets are at work it failed on two at least: one may be sick.
    """
    branches: dict[Branch, list[Record]] = defaultdict(list)
    for record in records:
        if record.asked.speculative:
            asked = record.asked
            branches[asked.algorithm, asked.drafter, asked.attention_backend].append(record)
    sets = min(gpu_sets, 2)
    return {branch: _reason(failure) for branch, rows in branches.items() if (failure := _dead(rows, sets)) is not None}


def _gpu_sets(rows: Sequence[Record]) -> int:
    """On how many different ones they were."""
    return len({(row.origin.host, row.origin.gpus) for row in rows})


def _dead(rows: Sequence[Record], gpu_sets: int) -> Failure | None:
    failures = [row.failure for row in rows if row.failure is not None]
    if len(failures) < len(rows) or len({row.asked.key for row in rows}) < ENOUGH or _gpu_sets(rows) < gpu_sets:
        return None
    kind = failures[0].kind
    told = kind.blame == "setting" and kind not in DEPENDS_ON_SIZE
    return failures[0] if told and len(set(map(fingerprint, failures))) == 1 else None


def _reason(failure: Failure) -> Reason:
    cause = failure.cause_in_short().removesuffix(".")
    words = f"{ENOUGH} settings failed alike, {failure.kind} at {failure.stage}: {cause}"
    return Reason(
        "branch_failed_alike", words, {"kind": str(failure.kind), "stage": str(failure.stage), "cause": cause}
    )
