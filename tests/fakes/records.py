"""Rows as a sweep would have written them: small makers with sound defaults, for tests of what is done with rows."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from results.failure import Failure, FailureKind, Stage
from results.measurement import Flag, Measurement
from results.record import Origin, Record
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial

PLAIN = Settings(attention_backend="fa3")
EAGLE3 = PLAIN.replace(algorithm="EAGLE3", drafter="own", num_steps=3, eagle_topk=1, num_draft_tokens=4)
WIDE = EAGLE3.replace(num_steps=5, eagle_topk=8, num_draft_tokens=32)
PUBLIC = EAGLE3.replace(drafter="public")
STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def origin(settings: Settings = PLAIN, **more: Any) -> Origin:
    words = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/llama", "--port", "41234"]
    words += ["--served-model-name", "sweep-000017-1-abcdef", "--nccl-port", "41235", "--attention-backend", "fa3"]
    if settings.speculative:
        words += ["--speculative-algorithm", settings.algorithm, "--speculative-num-steps", str(settings.num_steps)]
    given = {
        "run": "20260102T030405Z", "engine": "sglang", "engine_version": "0.5.23", "simulated": False, "host": "node-1",
        "gpus": ("0",), "gpu_name": "NVIDIA H200", "driver_version": "580.95", "target": "/models/llama",
        "workload": "chat-mix-256", "argv": tuple(words),
    }  # fmt: skip
    return Origin(**{**given, **more})


def measured(
    settings: Settings,
    tok_s: float | None,
    *,
    trial: int,
    concurrency: int = 8,
    launch: int = 0,
    repeat: int = 0,
    flags: tuple[Flag, ...] = (),
    asked: Settings | None = None,
    **more: Any,
) -> Record:
    """One measured row; `more` goes to Origin where it is a field of it, else to Measurement."""
    of_origin = {name: more.pop(name) for name in list(more) if name in Origin.__dataclass_fields__}
    acceptance = {"acceptance_length": 2.5, "acceptance_histogram": [10, 20, 30, 40]} if settings.speculative else {}
    values = {"output_tok_s": tok_s, "ttft_p50_ms": 40.0, "success_rate": 1.0, "measure_s": 20.0, **acceptance, **more}
    return Record(
        trial=trial, attempt=1, kind="trial" if settings.speculative else "baseline", launch=launch,
        asked=asked or settings, settings=settings, origin=origin(settings, **of_origin), started_at=STARTED,
        launch_s=60.0, point=LoadPoint(concurrency, repeat), measurement=Measurement(**values), flags=flags,
    )  # fmt: skip


def failure(
    settings: Settings, kind: FailureKind = FailureKind.OOM_GRAPH_CAPTURE, *, trial: int, message: str = "it broke"
) -> Record:
    return Record(
        trial=trial, attempt=1, kind="trial", launch=0, asked=settings, settings=settings, origin=origin(settings),
        started_at=STARTED, failure=Failure(kind, Stage.GRAPH_CAPTURE, message),
    )  # fmt: skip


ORIGIN = Origin(
    run="test", engine="simulated", engine_version="0.5.17", simulated=True, host=os.uname().nodename, gpus=("0",), gpu_name="none",
    driver_version="", target="demo-8b", workload="w",
)  # fmt: skip


def rows(trial: Trial, tok_s: float = 100.0) -> list[Record]:
    """One measured row for each of the trial's load points."""
    return [
        Record.of(trial, ORIGIN, point=point, measurement=Measurement(output_tok_s=tok_s * point.concurrency**0.5))
        for point in trial.load_points
    ]


def failed(trial: Trial, kind: FailureKind = FailureKind.CRASH_START) -> Record:
    return Record.of(trial, ORIGIN, failure=Failure(kind, Stage.WEIGHTS, "it died"))
