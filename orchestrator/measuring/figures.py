"""summarise(): many finished requests as a Measurement; flags_of(): what these figures say against themselves.

Pure.  Not here: one reply (reply.py), the steady window (steady.py), flags that the server's log or the GPUs raise (engines/).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.measuring.reply import Finished
from orchestrator.measuring.steady import AcceptanceDrift, Steady
from orchestrator.plan import LEAST_REQUESTS
from results.measurement import INEFFECTIVE_BELOW, Flag, Measurement

LAG_MS = 20.0
LAG_SHARE_OF_ITL = 0.2
SHARPNESS_MS = 1.0
"""An event loop's timers are only about 1 ms sharp: a lag below this says nothing."""
BUSY_SHARE = 0.95
"""A closed loop with fewer of its streams busy in the steady window waits for its client."""
DRIFT = 0.1
STALLED_SHARE = 0.2
"""Share of slow slices from which a point does not stand for its settings."""
OUTLIER = 5.0
"""The first requests are no first ones any more when the fastest of them takes less than so many medians."""
REPETITIVE = 0.5
CACHED = 0.5
OVERCOUNTED = 1.05


def summarise(finished: Sequence[Finished], streams: int | None, **more: Any) -> Measurement:
    """The figures of a load point; only requests that ended well count, over the wall time of all.

    Throughput is their tokens over first send to last end; acceptance length is 1 + sum(correct) / sum(verify steps),
    not a mean of ratios.  `streams`: of a closed loop.  `more` are the metrics that requests do not tell.
    """
    good = [one for one in finished if one.error is None]
    wall_s = max(one.ended_s for one in finished) - min(one.sent_s for one in finished)
    tpots_ms = [1000 * one.tpot_s for one in good if one.tpot_s is not None]
    speeds = [1000 / tpot_ms for tpot_ms in tpots_ms if tpot_ms > 0]
    repetitions = [one.repetition for one in good if one.repetition is not None]
    prompt_tokens = sum(one.prompt_tokens for one in good)
    drift = AcceptanceDrift.of(finished)
    return Measurement(
        output_tok_s=sum(one.tokens for one in good) / wall_s,
        user_tok_s=percentile(speeds, 50),
        **_spread_of("ttft", [1000 * one.ttft_s for one in good if one.ttft_s is not None]),
        **_spread_of("tpot", tpots_ms),
        **_spread_of("itl", [1000 * gap_s for one in good for gap_s in one.gaps_s]),
        acceptance_length=_acceptance_length(good),
        acceptance_histogram=_summed([one.histogram for one in good]),
        acceptance_by_category=_by_category(good),
        success_rate=len(good) / len(finished),
        requests=len(finished),
        requests_per_s=_rate_of(finished),
        input_tokens=prompt_tokens,
        output_tokens=sum(one.tokens for one in good),
        cached_share=sum(one.cached_tokens for one in good) / prompt_tokens if prompt_tokens else None,
        repetition=float(np.mean(repetitions)) if repetitions else None,
        acceptance_drift=drift.share if drift else None,
        **_steady_figures(Steady.of(finished, streams), finished, wall_s),
        **more,
    )


def flags_of(measurement: Measurement, concurrency: int, closed: bool = True) -> tuple[Flag, ...]:
    """The flags that a point's own figures raise; `closed`: as many requests as `concurrency` were to be out always."""
    requests = measurement.requests or 0
    client_bound = _client_bound(measurement, concurrency if closed else 0)
    stalled = (measurement.slow_share or 0) >= STALLED_SHARE
    holds = {
        Flag.DRAFTER_INEFFECTIVE: (measurement.acceptance_length or INEFFECTIVE_BELOW) < INEFFECTIVE_BELOW,
        Flag.REQUESTS_FAILED: (measurement.success_rate or 0) < 1,
        Flag.LOW_SAMPLES: requests < max(LEAST_REQUESTS, 2 * concurrency),
        Flag.CLIENT_BOUND: client_bound,
        Flag.STALLED: stalled and not client_bound,
        Flag.DRIFT: abs(measurement.itl_drift or 0) > DRIFT and not client_bound,
    }
    return tuple(flag for flag, held in holds.items() if held)


def flags_of_requests(
    finished: Sequence[Finished], streams: int | None, ignore_eos: bool, flushed: bool
) -> tuple[Flag, ...]:
    """The flags that only the requests themselves tell of."""
    good = [one for one in finished if one.error is None]
    drift = AcceptanceDrift.of(finished)
    repetitions = [one.repetition for one in good if one.repetition is not None]
    steps, tokens = sum(one.verify_steps for one in good), sum(one.tokens for one in good if one.verify_steps)
    prompt_tokens = sum(one.prompt_tokens for one in good)
    holds = {
        Flag.DRIFT: drift is not None and drift.sure and abs(drift.share) > DRIFT,
        Flag.WARM_UP_UNSETTLED: _first_ones_slow(good, streams or 1),
        Flag.IGNORE_EOS: ignore_eos,
        Flag.REPETITIVE: bool(repetitions) and float(np.mean(repetitions)) > REPETITIVE,
        Flag.CACHE_NOT_FLUSHED: flushed and sum(one.cached_tokens for one in good) > CACHED * prompt_tokens,
        Flag.ACCEPTANCE_OVERCOUNTED: steps > 0 and (_acceptance_length(good) or 0) * steps > OVERCOUNTED * tokens,
    }
    return tuple(flag for flag, held in holds.items() if held)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The `share`-th percentile (0 to 100), linear between neighbours; None of nothing."""
    return float(np.percentile(values, share)) if values else None


def _rate_of(finished: Sequence[Finished]) -> float | None:
    sent_s = sorted(one.sent_s for one in finished)
    return (len(sent_s) - 1) / (sent_s[-1] - sent_s[0]) if sent_s[-1] > sent_s[0] else None


def _steady_figures(steady: Steady | None, finished: Sequence[Finished], wall_s: float) -> dict[str, Any]:
    if steady is None:
        return {"achieved_concurrency": sum(one.ended_s - one.sent_s for one in finished) / wall_s}
    return {
        "achieved_concurrency": steady.concurrency,
        "steady_output_tok_s": steady.output_tok_s,
        "steady_s": steady.duration_s,
        "ramp_up_s": steady.ramp_up_s,
        "drain_s": steady.drain_s,
        "itl_drift": steady.itl_drift(),
        "slow_share": steady.slow_share(),
    }


def _first_ones_slow(good: Sequence[Finished], streams: int) -> bool:
    """Whether even the fastest first token of the streams' first requests was far from the point's median."""
    ttfts_s = [one.ttft_s for one in sorted(good, key=lambda one: one.sent_s) if one.ttft_s is not None]
    middle_s = percentile(ttfts_s, 50)
    return len(ttfts_s) > 2 * streams and middle_s is not None and min(ttfts_s[:streams]) > OUTLIER * middle_s


def _client_bound(measurement: Measurement, streams: int) -> bool:
    late = (measurement.client_lag_p99_ms or 0) > _lag_allowed_ms(measurement.itl_p50_ms)
    always_late = (measurement.client_lag_mean_ms or 0) > SHARPNESS_MS
    idle = measurement.steady_s is not None and (measurement.achieved_concurrency or 0) < BUSY_SHARE * streams
    return late or always_late or idle


def _lag_allowed_ms(itl_p50_ms: float | None) -> float:
    return LAG_MS if itl_p50_ms is None else min(LAG_MS, max(LAG_SHARE_OF_ITL * itl_p50_ms, SHARPNESS_MS))


def _spread_of(name: str, values_ms: Sequence[float]) -> dict[str, Any]:
    shares = {f"{name}_p{share}_ms": percentile(values_ms, share) for share in (50, 90, 99)}
    return {f"{name}_mean_ms": float(np.mean(values_ms)) if values_ms else None, **shares}


def _acceptance_length(good: Sequence[Finished]) -> float | None:
    steps = sum(one.verify_steps for one in good)
    return 1 + sum(one.correct_drafts for one in good) / steps if steps else None


def _by_category(good: Sequence[Finished]) -> str | None:
    """Category → its histogram, as JSON; None where prompts are of one category, or nothing was drafted."""
    found: dict[str, list[Sequence[int]]] = {}
    for one in good:
        if one.category is not None and one.histogram:
            found.setdefault(one.category, []).append(one.histogram)
    return json.dumps({name: _summed(some) for name, some in sorted(found.items())}) if len(found) > 1 else None


def _summed(histograms: Sequence[Sequence[int]]) -> list[int] | None:
    columns = itertools.zip_longest(*histograms, fillvalue=0)
    return [sum(column) for column in columns] or None
