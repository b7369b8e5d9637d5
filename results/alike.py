"""Alike: launches that fail in one and the same way, so that more of them would tell nothing new.

Not here: what a failure is (failure.py), drafters that do not fit or guess nothing (acceptance.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from results.failure import Failure, FailureKind, Stage
from results.record import Record

ENOUGH = 3
"""So many different settings that fail alike are no chance."""
Fingerprint = tuple[FailureKind, Stage, str]

_VARIES = re.compile(r"/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
"""Paths, addresses and numbers: pids, ports, sizes, times."""


def fingerprint(failure: Failure) -> Fingerprint:
    """What two failures of the same cause share: kind, stage, and the words without what varies from launch to launch."""
    return failure.kind, failure.stage, _VARIES.sub("…", failure.cause_in_short())


def nothing_runs(records: Sequence[Record]) -> Failure | None:
    """How every launch has failed: ENOUGH different settings, a plain server among them, all alike and none measured.

    None: something was measured, too few have failed, or they failed in different ways.
    """
    failed = [record for record in records if record.failure is not None]
    if len(failed) < len(records):
        return None
    if len({record.asked.key for record in failed}) < ENOUGH or all(record.asked.speculative for record in failed):
        return None
    failures = [record.failure for record in failed if record.failure is not None]
    return failures[0] if len(set(map(fingerprint, failures))) == 1 else None
