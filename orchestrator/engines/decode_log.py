"""DecodeLog: what SGLang's log says of the decoding of a load point: graphs, requests that run and wait, speed.

Lines are those of observability/metrics_reporter.py and managers/scheduler.py (0.5.17 and 0.5.23 alike); one stands for
`decode_log_interval` steps.  Not here: stages and failures (sglang.py).
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

_RUNNING = re.compile(r"#running-req: (\d{1,9})\b")
_WAITING = re.compile(r"#queue-req: (\d{1,9})\b")
_SPEED = re.compile(r"gen throughput \(token/s\): (\d{1,9}(?:\.\d{1,6})?)")
_RETRACTED = re.compile(r"Retract requests\. #retracted_reqs: (\d{1,9})\b")
LEAST_LINES = 3
"""Decode lines below which nothing is concluded of them."""
OFF_SHARE = 0.05
"""Share of decode lines outside CUDA graphs from which decoding counts as having left them."""


@dataclass(frozen=True)
class DecodeLog:
    graphs_off: tuple[bool, ...] = ()
    """A value a decode line that says whether it ran in a CUDA graph."""
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    speeds_tok_s: tuple[float, ...] = ()
    """Tokens a second since the line before it, pauses included."""
    retracted: int = 0
    """Requests taken back because the KV cache was full; they begin again later."""

    @classmethod
    def of(cls, log: str) -> DecodeLog:
        """Of a piece of log; lines that say nothing of decoding are passed over."""
        lines = [line for line in log.splitlines() if "Decode batch" in line]
        return cls(
            graphs_off=tuple("cuda graph: False" in line for line in lines if "cuda graph:" in line),
            running=tuple(int(found[1]) for line in lines if (found := _RUNNING.search(line))),
            waiting=tuple(int(found[1]) for line in lines if (found := _WAITING.search(line))),
            speeds_tok_s=tuple(float(found[1]) for line in lines if (found := _SPEED.search(line))),
            retracted=sum(int(found[1]) for found in _RETRACTED.finditer(log)),
        )

    @property
    def graph_off_share(self) -> float | None:
        """None: no line says."""
        return sum(self.graphs_off) / len(self.graphs_off) if self.graphs_off else None

    @property
    def output_tok_s(self) -> float | None:
        """Median speed while as many requests ran as ever did, and in the line before too; None: too few such lines."""
        if len(self.speeds_tok_s) != len(self.running) or not self.running:
            return None
        full = max(self.running)
        pairs = zip(self.running, self.running[1:], self.speeds_tok_s[1:], strict=False)
        speeds = [speed for before, now, speed in pairs if before == now == full]
        return statistics.median(speeds) if len(speeds) >= LEAST_LINES else None

    @property
    def outside_graphs(self) -> bool:
        return (self.graph_off_share or 0.0) > OFF_SHARE

    def clamped_below(self, concurrency: int) -> bool:
        """Whether requests mostly waited while fewer than `concurrency` ran."""
        if len(self.running) < LEAST_LINES or not self.waiting:
            return False
        return max(self.running) < concurrency and statistics.median(self.waiting) > 0
