"""What a running server counts, and the Prometheus text of /metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

_TTFT_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_ITL_BUCKETS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


@dataclass
class Histogram:
    """Cumulative buckets, as Prometheus wants them."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.bounds)

    def add(self, value: float, times: int = 1) -> None:
        self.total += value * times
        self.count += times
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += times
                return

    def lines(self, name: str, labels: str) -> list[str]:
        found, running = [f"# TYPE {name} histogram"], 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            running += count
            found.append(f'{name}_bucket{{le="{bound}",{labels}}} {float(running)}')
        found.append(f'{name}_bucket{{le="+Inf",{labels}}} {float(self.count)}')
        return [*found, f"{name}_sum{{{labels}}} {self.total}", f"{name}_count{{{labels}}} {float(self.count)}"]


@dataclass
class Window:
    """Verify steps and their tokens over some time."""

    verify_steps: int = 0
    tokens: int = 0

    def add(self, other: Window) -> None:
        self.verify_steps += other.verify_steps
        self.tokens += other.tokens

    @property
    def acceptance_length(self) -> float:
        return self.tokens / self.verify_steps if self.verify_steps else 0.0

    def acceptance_rate(self, num_draft_tokens: int) -> float:
        """Accepted drafts of all that were verified: (length - 1) / (num_draft_tokens - 1), as SGLang reports it."""
        return max(0.0, self.acceptance_length - 1.0) / max(1, num_draft_tokens - 1)


@dataclass
class Counters:
    """Totals since the start, and since the last decode line of the log."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    verify_calls: int = 0
    """Of finished requests, as SGLang counts them."""
    gen_throughput: float = 0.0
    """Of the last logged interval, tokens per second."""
    lifetime: Window = field(default_factory=Window)
    """Moved on only when a decode line is logged, as in SGLang; emptied by a flush."""
    last: Window = field(default_factory=Window)
    ttft_s: Histogram = field(default_factory=lambda: Histogram(_TTFT_BUCKETS))
    itl_s: Histogram = field(default_factory=lambda: Histogram(_ITL_BUCKETS))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(_TTFT_BUCKETS))

    def prometheus(self, gauges: dict[str, float], model: str) -> str:
        """The exposition text; `gauges` are the moment's values without their prefix."""
        labels = f'engine_type="unified",model_name="{model}"'
        counters = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generation_tokens,
            "cached_tokens_total": self.cached_tokens,
            "num_requests_total": self.requests,
            "spec_verify_calls_total": self.verify_calls,
        }
        lines = []
        for kind, values in (("counter", counters), ("gauge", gauges)):
            for name, value in values.items():
                lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{{{labels}}} {float(value)}"]
        lines += self.ttft_s.lines("sglang:time_to_first_token_seconds", labels)
        lines += self.itl_s.lines("sglang:inter_token_latency_seconds", labels)
        lines += self.e2e_s.lines("sglang:e2e_request_latency_seconds", labels)
        return "\n".join(lines) + "\n"
