"""Lossless: whether a candidate's greedy answers are what the target itself would say, token by token.

Equality of texts accuses the innocent: kernels round differently, and one near-tie that falls the other way changes the
rest of a text.  So each answer is re-scored by a plain server (prompt + answer, the log-probability of every answered
token beside the most probable one's): a token that is not the target's own choice has a gap in nats.  Rounding shows as
gaps near 0, corruption as large ones.  What the plain server's own answers show when re-scored the same way is the control.
Pure.  Not here: asking servers (orchestrator/measuring/lossless.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from results.measurement import Flag
from results.record import Record

FAR_NATS = 1.0
"""A gap from here on is no rounding: e times less probable than the target's own choice."""
SURE = 0.001
"""Probability, were candidate and control alike, below which a surplus of far tokens is corruption."""
MOST_NATS = 100.0
"""What stands for the gap of a token that is said to be impossible."""


@dataclass(frozen=True)
class Answer:
    """One greedy answer, as the plain server scores it."""

    tokens: tuple[int, ...]
    gaps_nats: tuple[float, ...]
    """A token: how much less probable, on the log, than the target's most probable one; 0 where it is that one."""


@dataclass(frozen=True)
class Lossless:
    """What re-scoring showed of a candidate, beside the plain server's own answers to the same prompts."""

    tokens: int
    argmax_share: float
    """Tokens that are the target's own choice."""
    far_share: float
    """Tokens whose gap is FAR_NATS or more."""
    gap_max_nats: float
    control_argmax_share: float
    control_far_share: float
    same_share: float
    """Answers that equal the plain server's, token by token."""
    divergence_tokens: float | None
    """Median number of tokens before the first that differs, over the answers that differ; None: none does."""
    changed: bool
    """The surplus of far tokens over the control's is no chance."""

    @property
    def words(self) -> str:
        """For a person."""
        verdict = "CHANGED" if self.changed else "as the target's own"
        return (
            f"{self.argmax_share:.1%} of {self.tokens} tokens are the target's choice (plain server: "
            f"{self.control_argmax_share:.1%}), the widest gap is {self.gap_max_nats:.2f} nats: {verdict}"
        )

    def on(self, record: Record) -> Record:
        """A measured row with this in its columns; a failure as it is."""
        if record.measurement is None:
            return record
        columns = {f"lossless_{name}": getattr(self, name) for name in COLUMNS}
        flags = (*record.flags, Flag.OUTPUT_CHANGED) if self.changed else record.flags
        measurement = dataclasses.replace(record.measurement, **columns)
        return dataclasses.replace(record, measurement=measurement, flags=tuple(dict.fromkeys(flags)))


COLUMNS = tuple(item.name for item in dataclasses.fields(Lossless) if item.name != "changed")


def lossless(candidate: Sequence[Answer], control: Sequence[Answer]) -> Lossless | None:
    """The candidate's answers beside the plain server's, prompt by prompt; None when there is nothing to compare."""
    gaps, own = _gaps(candidate), _gaps(control)
    if not gaps or not own:
        return None
    far, own_far = _far(gaps), _far(own)
    divergences = [_shared(one.tokens, other.tokens) for one, other in zip(candidate, control, strict=True)]
    differ = [
        count
        for count, one, other in zip(divergences, candidate, control, strict=True)
        if one.tokens != other.tokens
    ]  # fmt: skip
    return Lossless(
        tokens=len(gaps),
        argmax_share=gaps.count(0.0) / len(gaps),
        far_share=far / len(gaps),
        gap_max_nats=max(gaps),
        control_argmax_share=own.count(0.0) / len(own),
        control_far_share=own_far / len(own),
        same_share=1 - len(differ) / len(candidate),
        divergence_tokens=median(differ) if differ else None,
        changed=far > 0 and surplus_by_chance(far, len(gaps), own_far, len(own)) < SURE,
    )


def surplus_by_chance(far: int, tokens: int, own_far: int, own_tokens: int) -> float:
    """Fisher's exact test, one-sided: the probability of `far` or more of all far tokens among the candidate's `tokens`."""
    every, total = far + own_far, tokens + own_tokens
    most = min(every, tokens)
    chances = [_log_choose(tokens, k) + _log_choose(own_tokens, every - k) for k in range(far, most + 1) if every - k <= own_tokens]  # fmt: skip
    return min(1.0, sum(math.exp(chance - _log_choose(total, every)) for chance in chances))


def _log_choose(total: int, some: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(some + 1) - math.lgamma(total - some + 1)


def _gaps(answers: Sequence[Answer]) -> list[float]:
    return [gap for answer in answers for gap in answer.gaps_nats]


def _far(gaps: Sequence[float]) -> int:
    return sum(gap >= FAR_NATS for gap in gaps)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
