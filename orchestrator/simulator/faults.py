"""Faults a simulated server can be told to have: --sim-fault SPEC, or `faults:` of a profile.

    slow:STAGE:SECONDS[:silent]   the stage takes this much longer; progress is logged meanwhile unless silent
    crash:STAGE                   the server dies in this stage with SGLang's exit code and log
    crash:serving:N               … when the request after N finished ones is being generated
    hang:STAGE                    the stage never ends; in serving: healthy, but no tokens come
    oom:STAGE                     out of memory in this stage
    sick:STAGE                    the GPU reports an error of its own in this stage
    fail-requests:SHARE           this share of the generate requests is answered with HTTP 500
    corrupt:SHARE                 a speculating server says this share of its tokens wrong: words the target would not say
    near-ties:SHARE               … as the target's second choice, hardly less probable: what other kernels' rounding does
    ignore-term                   SIGTERM does nothing
    setsid-grandchild             leaves a sleeping process behind, in a session of its own

STAGE is a stage of `results.failure.Stage`: validate, weights, kv_pool, graph_capture, warm_up or serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.simulator.profile import Profile

STAGES = ("validate", "weights", "kv_pool", "graph_capture", "warm_up", "serving")
ECC_ERROR = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
_WITH_STAGE = ("slow", "crash", "hang", "oom", "sick")
_WITH_SHARE = ("fail-requests", "corrupt", "near-ties")
_WITHOUT = ("ignore-term", "setsid-grandchild")


@dataclass(frozen=True)
class Fault:
    kind: str
    """slow, crash, hang, oom, fail-requests, corrupt, near-ties, ignore-term or setsid-grandchild."""
    stage: str = ""
    """Empty for the kinds that have none."""
    amount: float = 0.0
    """slow: seconds; crash:serving: finished requests; fail-requests, corrupt, near-ties: share."""
    silent: bool = False


@dataclass(frozen=True)
class Faults:
    """All faults of one launch."""

    faults: tuple[Fault, ...] = ()

    def find(self, kind: str, stage: str = "") -> Fault | None:
        return next((fault for fault in self.faults if (fault.kind, fault.stage) == (kind, stage)), None)

    @classmethod
    def of(cls, specs: tuple[str, ...], profile: Profile, values: Mapping[str, Any]) -> Faults:
        """Those asked for, and those of the profile whose condition these resolved arguments meet."""
        met = [item.fault for item in profile.faults if all(_holds(values.get(k), v) for k, v in item.when.items())]
        return cls(tuple(parse(spec) for spec in (*specs, *met)))


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return value is not None and wanted.get("low", value) <= value <= wanted.get("high", value)
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def parse(spec: str) -> Fault:
    """One SPEC.

    Raises:
        ValueError: it is not one; the message says what is possible.
    """
    kind, *rest = spec.split(":")
    if kind in _WITHOUT and not rest:
        return Fault(kind)
    if kind in _WITH_SHARE and len(rest) == 1:
        return Fault(kind, amount=_number(spec, rest[0]))
    if kind in _WITH_STAGE and rest and rest[0] in STAGES:
        return _staged(spec, kind, rest[0], rest[1:])
    raise ValueError(
        f"--sim-fault {spec}: not a fault; see orchestrator/simulator/faults.py. Stages: {', '.join(STAGES)}"
    )


def _staged(spec: str, kind: str, stage: str, rest: list[str]) -> Fault:
    silent = rest[1:] == ["silent"]
    if kind == "slow" and (len(rest) == 1 or silent):
        return Fault(kind, stage, _number(spec, rest[0]), silent)
    if kind == "crash" and stage == "serving" and len(rest) == 1:
        return Fault(kind, stage, _number(spec, rest[0]))
    if kind != "slow" and not rest:
        return Fault(kind, stage)
    raise ValueError(f"--sim-fault {spec}: expected slow:STAGE:SECONDS[:silent], crash:serving:N or {kind}:STAGE")


def _number(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--sim-fault {spec}: {text!r} is not a number") from None
