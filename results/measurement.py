"""Measurement: what one load point showed, one field a metric; and the flags that say how far to trust it.

A metric is declared once, here, with its unit, its better direction and its meaning.  From the field come the Parquet
column and its doc, the report's line and what `objective:` may name.  Not here: how it is measured (orchestrator/measuring/load.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal

Better = Literal["higher", "lower", "neither"]
INEFFECTIVE_BELOW = 1.05
"""Acceptance length under which a drafter guesses nothing (seen: docs/why.md)."""


@dataclass(frozen=True)
class Metric:
    name: str
    type: str
    """float, int, list[int] or str; the Parquet type is made from it."""
    doc: str
    unit: str
    better: Better


def _metric(doc: str, unit: str, better: Better = "neither") -> Any:
    return field(default=None, metadata={"doc": doc, "unit": unit, "better": better})


@dataclass(frozen=True)
class Measurement:
    """All times are wall clock seen by the client.  None: not measured."""

    output_tok_s: float | None = _metric(
        "Generated tokens per second, all streams together, from the first request to the last answer's end.",
        "tokens/s",
        "higher",
    )
    steady_output_tok_s: float | None = _metric(
        "The same while every stream was busy: without ramp-up and drain; None when that is under a quarter of the tokens.",
        "tokens/s", "higher",
    )  # fmt: skip
    user_tok_s: float | None = _metric(
        "Median over requests of 1000 / TPOT: speed one user sees.", "tokens/s", "higher"
    )
    ttft_mean_ms: float | None = _metric("Time to first token, mean.", "ms", "lower")
    ttft_p50_ms: float | None = _metric("Time to first token, median.", "ms", "lower")
    ttft_p90_ms: float | None = _metric("Time to first token, 90th percentile.", "ms", "lower")
    ttft_p99_ms: float | None = _metric("Time to first token, 99th percentile.", "ms", "lower")
    tpot_mean_ms: float | None = _metric("Time per output token after the first, mean over requests.", "ms", "lower")
    tpot_p50_ms: float | None = _metric("Time per output token after the first, median over requests.", "ms", "lower")
    tpot_p90_ms: float | None = _metric("Time per output token after the first, 90th percentile.", "ms", "lower")
    tpot_p99_ms: float | None = _metric("Time per output token after the first, 99th percentile.", "ms", "lower")
    itl_mean_ms: float | None = _metric(
        "Gap between streamed chunks (a chunk may hold several tokens), mean.", "ms", "lower"
    )
    itl_p50_ms: float | None = _metric("Gap between streamed chunks, median.", "ms", "lower")
    itl_p90_ms: float | None = _metric("Gap between streamed chunks, 90th percentile.", "ms", "lower")
    itl_p99_ms: float | None = _metric("Gap between streamed chunks, 99th percentile.", "ms", "lower")
    acceptance_length: float | None = _metric(
        "Tokens per verify step, the bonus token included: 1 + sum(correct drafts) / sum(verify steps) over requests.",
        "tokens/step", "higher",
    )  # fmt: skip
    acceptance_histogram: list[int] | None = _metric(  # noqa: RUF009 - the default is None
        "Entry j: verify steps in which exactly j drafted tokens were right.", "steps"
    )
    acceptance_by_category: str | None = _metric(
        "acceptance_histogram of each category of prompts, as JSON; none where all prompts are of one.", "steps"
    )
    success_rate: float | None = _metric("Requests that ended well over requests sent.", "share", "higher")
    requests: int | None = _metric("Requests sent, warm-up not counted.", "requests")
    input_tokens: int | None = _metric(
        "Prompt tokens of the requests that ended well, by the server's count.", "tokens"
    )
    output_tokens: int | None = _metric(
        "Generated tokens of the requests that ended well, by the server's count.", "tokens"
    )
    cached_share: float | None = _metric("Prompt tokens found in the server's prefix cache over all.", "share")
    repetition: float | None = _metric(
        "Share of four-word sequences of an answer that had stood in it before, mean over requests.", "share"
    )
    steady_s: float | None = _metric("Seconds in which every stream was busy.", "s")
    ramp_up_s: float | None = _metric("Seconds before: until every stream's first request had a token.", "s")
    drain_s: float | None = _metric("Seconds after: from the first stream with nothing more to send to the end.", "s")
    itl_drift: float | None = _metric(
        "Median gap between chunks in the last third of the steady time over that in the first third, less one.",
        "share",
    )
    acceptance_drift: float | None = _metric(
        "Mean acceptance length of the last third of the requests over that of the first third, less one.", "share"
    )
    slow_share: float | None = _metric(
        "Share of the steady time in which the median gap between chunks was 1.8 times that of the better times, or more.",
        "share", "lower",
    )  # fmt: skip
    requests_per_s: float | None = _metric("Requests sent per second, from the first to the last.", "requests/s")
    achieved_concurrency: float | None = _metric(
        "Mean number of requests in flight while steady (over the whole point where steady_s is none).", "requests"
    )
    client_lag_mean_ms: float | None = _metric(
        "How late the client's own event loop ran beyond its timers' sharpness, mean.", "ms", "lower"
    )
    client_lag_p99_ms: float | None = _metric(
        "How late the client's own event loop ran beyond its timers' sharpness, 99th percentile.", "ms", "lower"
    )
    client_cpu_s_per_1000_tokens: float | None = _metric(
        "CPU seconds of the load generator per 1,000 generated tokens.", "s", "lower"
    )
    warm_up_passes: int | None = _metric("Warm-up passes at this concurrency before measuring.", "passes")
    server_acceptance_length: float | None = _metric(
        "The server's own average acceptance length after the point (it lags; a cross-check only).", "tokens/step"
    )
    server_output_tok_s: float | None = _metric(
        "Generation throughput by the server's log with all streams running, or its last (a cross-check).", "tokens/s"
    )
    graph_off_share: float | None = _metric(
        "Decode lines of the server's log that ran outside CUDA graphs, over all that say.", "share", "lower"
    )
    retracted_requests: int | None = _metric(
        "Requests that the server took back because its KV cache was full, by its log.", "requests", "lower"
    )
    power_w: float | None = _metric("Power of all GPUs of the server together, mean while measuring.", "W", "lower")
    tokens_per_joule: float | None = _metric("Generated tokens per joule of the server's GPUs.", "tokens/J", "higher")
    sm_clock_mhz: float | None = _metric("Clock of the GPUs' multiprocessors, mean while measuring.", "MHz")
    gpu_temperature_c: int | None = _metric("Temperature of the hottest GPU while measuring.", "°C")
    throttled_share: float | None = _metric(
        "Share of NVML's samples in which heat or a power brake held back a GPU.", "share", "lower"
    )
    measure_s: float | None = _metric("Seconds the point took, warm-up included.", "s")

    lossless_tokens: int | None = _metric(
        "Tokens of this launch's greedy answers that a plain server re-scored; none: not checked.", "tokens"
    )
    lossless_argmax_share: float | None = _metric(
        "Re-scored tokens that are the target's own most probable one.", "share", "higher"
    )
    lossless_far_share: float | None = _metric(
        "Re-scored tokens at least 1 nat less probable than the target's most probable one.", "share", "lower"
    )
    lossless_gap_max_nats: float | None = _metric(
        "Widest gap of a re-scored token to the target's most probable one.", "nats", "lower"
    )
    lossless_control_argmax_share: float | None = _metric(
        "lossless_argmax_share of the plain server's own answers, re-scored alike.", "share"
    )
    lossless_control_far_share: float | None = _metric(
        "lossless_far_share of the plain server's own answers, re-scored alike.", "share"
    )
    lossless_same_share: float | None = _metric("Greedy answers equal to the plain server's, token by token.", "share")
    lossless_divergence_tokens: float | None = _metric(
        "Tokens before the first that differs from the plain server's, median over answers that differ.", "tokens"
    )


@cache
def metrics() -> dict[str, Metric]:
    """Every metric by name, in the order of their declaration."""
    return {
        item.name: Metric(name=item.name, type=str(item.type).split(" |")[0], **item.metadata)
        for item in dataclasses.fields(Measurement)
    }


class Effect(StrEnum):
    NOTE = "note"
    NEVER_BEST = "never best"
    INVALID = "invalid"


class Flag(StrEnum):
    """What lowers the trust in a row, a closed set.  `effect` says what the verdict does about it."""

    effect: Effect
    doc: str

    def __new__(cls, value: str, effect: Effect = Effect.NOTE, doc: str = "") -> Flag:
        flag = str.__new__(cls, value)
        flag._value_ = value
        flag.effect = effect
        flag.doc = doc
        return flag

    DRAFTER_INEFFECTIVE = (
        "drafter_ineffective", Effect.NEVER_BEST,
        f"Acceptance length below {INEFFECTIVE_BELOW}, at this load point or over all launches of this algorithm and drafter: it guesses nothing. Usually EAGLE where EAGLE3 was meant, or a drafter trained for another target.",
    )  # fmt: skip
    DRAFTER_UNCHECKED = (
        "drafter_unchecked", Effect.NOTE,
        "Inspection found that the drafter does not fit, and it was launched all the same (drafters_unchecked).",
    )  # fmt: skip
    CONTEXT_OVERRIDDEN = (
        "context_overridden", Effect.NOTE,
        "The server was told to exceed the drafter's own context length; long prompts may be guessed badly or crash it.",
    )  # fmt: skip
    CAPACITY_CLAMPED = (
        "capacity_clamped",
        Effect.INVALID,
        "The server runs fewer requests at once than the load point asks for.",
    )
    GRAPH_FALLBACK = (
        "graph_fallback",
        Effect.NEVER_BEST,
        "Decoding ran outside CUDA graphs though graphs were asked for.",
    )
    RETRACTED = (
        "retracted",
        Effect.NOTE,
        "The server's KV cache was full: requests were taken back and begun again. More memory or fewer streams would be faster.",
    )
    THROTTLED = (
        "throttled",
        Effect.NEVER_BEST,
        "Heat or a power brake held back a GPU in more than a tenth of the samples: the machine was measured, not the settings.",
    )
    NO_CHAT_TEMPLATE = (
        "no_chat_template",
        Effect.NOTE,
        "Prompts were sent as they stand, for the target has no chat template; drafters are trained on templated text.",
    )
    LOW_SAMPLES = "low_samples", Effect.NOTE, "Fewer than two requests per stream, or fewer than six in all."
    WARM_UP_UNSETTLED = (
        "warm_up_unsettled",
        Effect.NOTE,
        "Speed was still changing when the last warm-up pass ended, or the first requests took five times the median TTFT.",
    )
    CLIENT_BOUND = (
        "client_bound",
        Effect.NOTE,
        "The load generator could not keep up: its event loop ran late, or streams waited for it.",
    )
    DRIFT = (
        "drift",
        Effect.NOTE,
        "Step time or acceptance changed by more than a tenth between the first and the last third of the point.",
    )
    STALLED = (
        "stalled",
        Effect.NEVER_BEST,
        "For a fifth of the time or more decoding was slower than 1.8 times its usual pace: the machine was slow, or the server stood still.",
    )
    SLOW_STEPS = (
        "slow_steps",
        Effect.NOTE,
        "From end to end a step took 1.4 times as long, or longer, as where no less was asked of it (the same settings launched again; else more draft steps, branches, tokens or streams): most likely the machine was slow, and the row is a lower bound. Judged over all rows when a run is reported; a relaunch decides.",
    )
    REQUESTS_FAILED = (
        "requests_failed",
        Effect.NEVER_BEST,
        "Some requests failed; failed ones are not counted as fast ones.",
    )
    CACHE_NOT_FLUSHED = (
        "cache_not_flushed",
        Effect.NOTE,
        "The server did not confirm that its prefix cache was flushed, or half of the prompt tokens were found in it all the same.",
    )
    PROMPTS_REUSED = (
        "prompts_reused",
        Effect.NOTE,
        "The prompt file has fewer prompts than the sweep asks for: some were asked twice.",
    )
    RANDOM_PROMPTS = (
        "random_prompts",
        Effect.NEVER_BEST,
        "Speculation was measured on random words, as forced: acceptance on them says nothing of real text.",
    )
    IGNORE_EOS = (
        "ignore_eos",
        Effect.NOTE,
        "Answers went on past their natural end, as asked: models then repeat themselves, which drafters guess well.",
    )
    REPETITIVE = (
        "repetitive",
        Effect.NOTE,
        "More than half of the four-word sequences of the answers had stood in them before: acceptance says little of real text.",
    )
    ACCEPTANCE_OVERCOUNTED = (
        "acceptance_overcounted",
        Effect.NOTE,
        "The server counts more accepted tokens than it sent (over 5 %): those after an answer's end, most likely.",
    )
    SETTINGS_CHANGED = (
        "settings_changed",
        Effect.NOTE,
        "The server runs other values than it was asked for; the row holds what ran.",
    )
    OUTPUT_CHANGED = (
        "output_changed",
        Effect.NEVER_BEST,
        "Greedy answers hold tokens that the target would not say, more than rounding explains: speculation is not lossless here.",
    )
    SIMULATED_ACCEPTANCE = (
        "simulated_acceptance",
        Effect.INVALID,
        "The server was told to pretend an acceptance length.",
    )


def worst(flags: list[str]) -> Effect | None:
    """The strongest effect among flags; None when there are none."""
    order = [Effect.INVALID, Effect.NEVER_BEST, Effect.NOTE]
    effects = {Flag(flag).effect for flag in flags}
    return next((effect for effect in order if effect in effects), None)
