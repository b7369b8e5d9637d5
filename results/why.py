"""Why: a speedup taken apart, and where speculation stops paying.

Each step of a speculating server yields L tokens (the acceptance length) and takes T; a plain one yields one and takes T0.
So speedup = L ÷ (T / T0) as far as decoding goes (Leviathan et al. 2023, §3.3; Liu et al. 2024, SmartSpec), and what is left
over is prefill, queueing and the ends of answers.  T and T0 are median gaps between streamed chunks, a step each.
Pure.  Not here: how sure a speedup is (comparison.py), how often each drafted token is right (page/drafting.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from results.answer import Answer, Crossover, Why
from results.sample import Sample

FEWEST_SETTINGS = 4
"""Settings of a drafter at a load point from which on their step times are taken apart."""


def taken_apart(best: Sample, plain: Sample, here: Sequence[Sample]) -> Why | None:
    """Why `best` is as fast as it is beside `plain`; `here` are all samples of the load point.

    None where the rows hold no acceptance length or no gaps between chunks.
    """
    length, step_ms, plain_step_ms = best.mean("acceptance_length"), _step_ms(best), _step_ms(plain)
    if not length or not step_ms or not plain_step_ms:
        return None
    step_ratio = step_ms / plain_step_ms
    drafting = _drafting_ms(best, here)
    return Why(
        acceptance_length=length,
        step_ms=step_ms,
        plain_step_ms=plain_step_ms,
        step_ratio=step_ratio,
        remainder=math.exp(best.log - plain.log) * step_ratio / length,
        drafting_share=None if drafting is None else min(drafting / step_ms, 1.0),
    )


def _step_ms(sample: Sample) -> float | None:
    """The median, so that waits for other requests' prompts are no part of it."""
    return sample.mean("itl_p50_ms")


def _drafting_ms(best: Sample, here: Sequence[Sample]) -> float | None:
    """Milliseconds of a step that drafting takes: num_steps times what one more draft step costs.

    The step times of all settings with the same drafter and backend are fitted by a + d · steps + v · draft tokens, none of
    them negative (Lawson and Hanson's NNLS).  None where there are too few settings, steps and tokens go together, or the
    fit sees no such cost.
    """
    import numpy as np
    from scipy.optimize import nnls  # late: it takes a while to import

    alike = [sample for sample in here if _kind(sample) == _kind(best) and _step_ms(sample) and sample.trusted]
    rows = [[1.0, sample.settings.num_steps or 0, sample.settings.num_draft_tokens or 0] for sample in alike]
    if len(alike) < FEWEST_SETTINGS or np.linalg.matrix_rank(np.array(rows)) < 3:
        return None
    (_, per_step_ms, _), _ = nnls(np.array(rows), np.array([_step_ms(sample) for sample in alike]))
    return float(per_step_ms) * (best.settings.num_steps or 0) or None


def _kind(sample: Sample) -> tuple[str, str | None, str | None]:
    return sample.settings.algorithm, sample.settings.drafter, sample.settings.attention_backend


def crossover(answers: Sequence[Answer]) -> Crossover | None:
    """Where the best speculative setting falls below the plain server, read on logs between neighbouring load points.

    The bounds are where the ends of the 95 % intervals fall below it.  None where speculation pays at every load point, or
    at none.
    """
    known = [answer for answer in answers if answer.speedup is not None]
    at = _falls(known, lambda answer: answer.speedup)
    if at is None:
        return None
    return Crossover(
        concurrency=at,
        low=_falls(known, lambda answer: answer.speedup_low),
        high=_falls(known, lambda answer: answer.speedup_high),
    )


def _falls(answers: Sequence[Answer], value: Callable[[Answer], float | None]) -> float | None:
    """The concurrency where a curve that starts above 1 first falls to it; None: it starts below, or never falls."""
    for lower, upper in pairwise(answers):
        above, below = math.log(value(lower) or 1.0), math.log(value(upper) or 1.0)
        if above <= 0:
            return None
        if below <= 0:
            share = above / (above - below)
            return float(lower.concurrency ** (1 - share) * upper.concurrency**share)
    return None
