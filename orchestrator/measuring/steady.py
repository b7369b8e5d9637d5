"""Steady: the part of a load point in which every stream was busy; how fast it was, and whether it stayed so.

Before it, streams fill up (the first requests wait for each other's prefill); after it, they run dry.  Everything here looks
at gaps between chunks, which are the server's step times whatever a drafter guesses.  Pure.
Not here: figures of whole requests (figures.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from orchestrator.measuring.reply import Finished

LEAST_SHARE = 0.25
"""A window that holds less of all tokens than this says nothing of the point."""
LEAST_GAPS = 20
"""Gaps in a third of the window below which it is not compared."""
MOST_SLICES = 40
SLICE_GAPS = 10
SLICE_S = 0.25
"""A slice of the window lasts so long and as long as so many typical gaps, at least: a busy scheduler is no slow machine."""
LEAST_SLICES = 6
SLOW_FACTOR = 1.8
"""A slice whose gaps are so much longer than those of the point's better slices is slow; seen: a host at half speed."""
LEAST_REQUESTS_COMPARED = 4
SURE = 3.0
"""Standard errors by which acceptance must differ between the thirds."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Steady:
    """Seconds on the clock of the requests.  All requests of the point are looked at, failed ones for when they ran."""

    finished: Sequence[Finished]
    begin_s: float
    end_s: float

    @classmethod
    def of(cls, finished: Sequence[Finished], streams: int | None) -> Steady | None:
        """From when each stream's first request has brought a token until a stream finds nothing more to send.

        Without streams (requests that come at a rate): from the first answer's end until the last request is sent.
        None: there is no such time, or it holds less than a quarter of the tokens.
        """
        in_order = sorted(finished, key=lambda one: one.sent_s)
        last_sent_s = in_order[-1].sent_s
        if streams is None:
            begin_s, end_s = min(one.ended_s for one in finished), last_sent_s
        else:
            begin_s = max(one.chunks_s[0] if one.chunks_s else one.ended_s for one in in_order[:streams])
            end_s = min((one.ended_s for one in finished if one.ended_s > last_sent_s), default=begin_s)
        steady = cls(finished, begin_s, end_s)
        tokens = sum(one.tokens for one in finished if one.error is None)
        return steady if end_s > begin_s and steady.tokens > LEAST_SHARE * tokens else None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s

    @cached_property
    def tokens(self) -> int:
        """Of requests that ended well, arrived in the window."""
        good = [one for one in self.finished if one.error is None]
        at_s = np.fromiter(itertools.chain.from_iterable(one.chunks_s for one in good), np.float64)
        tokens = np.fromiter(itertools.chain.from_iterable(one.chunk_tokens for one in good), np.int64)
        return int(tokens[(self.begin_s < at_s) & (at_s <= self.end_s)].sum())

    @property
    def output_tok_s(self) -> float:
        return self.tokens / self.duration_s

    @property
    def concurrency(self) -> float:
        """Mean number of requests in flight."""
        spans = (min(one.ended_s, self.end_s) - max(one.sent_s, self.begin_s) for one in self.finished)
        return sum(max(span, 0.0) for span in spans) / self.duration_s

    @property
    def ramp_up_s(self) -> float:
        return self.begin_s - min(one.sent_s for one in self.finished)

    @property
    def drain_s(self) -> float:
        return max(one.ended_s for one in self.finished) - self.end_s

    def itl_drift(self) -> float | None:
        """Median gap of the window's last third over that of its first, less one; None when there are too few gaps."""
        gaps = self._gaps
        third_s = self.duration_s / 3
        first = gaps.lengths_s[gaps.ends_s <= self.begin_s + third_s]
        last = gaps.lengths_s[gaps.ends_s > self.end_s - third_s]
        if min(len(first), len(last)) < LEAST_GAPS or not np.median(first):
            return None
        return float(np.median(last) / np.median(first) - 1)

    def slow_share(self) -> float | None:
        """Share of the window's slices in which the median gap was far above that of its better slices; None of a short one."""
        gaps = self._gaps
        if len(gaps.lengths_s) < LEAST_GAPS:
            return None
        slice_s = max(self.duration_s / MOST_SLICES, SLICE_GAPS * float(np.median(gaps.lengths_s)), SLICE_S)
        slices = int(self.duration_s / slice_s)
        if slices < LEAST_SLICES:
            return None
        edges = np.linspace(self.begin_s, self.end_s, slices + 1)
        within = (gaps.lengths_s[(gaps.starts_s < b) & (gaps.ends_s > a)] for a, b in itertools.pairwise(edges))
        medians = np.array([np.median(lengths) for lengths in within if len(lengths)])
        return float(np.mean(medians > SLOW_FACTOR * np.percentile(medians, 25)))

    @cached_property
    def _gaps(self) -> _Gaps:
        """Between chunks of one request, those that end in the window."""
        starts_s = np.fromiter(itertools.chain.from_iterable(one.chunks_s[:-1] for one in self.finished), np.float64)
        ends_s = np.fromiter(itertools.chain.from_iterable(one.chunks_s[1:] for one in self.finished), np.float64)
        within = (self.begin_s < ends_s) & (ends_s <= self.end_s)
        return _Gaps(starts_s[within], ends_s[within])


@dataclass(frozen=True)
class _Gaps:
    starts_s: Floats
    ends_s: Floats

    @property
    def lengths_s(self) -> Floats:
        return self.ends_s - self.starts_s


@dataclass(frozen=True)
class AcceptanceDrift:
    """Acceptance length of the last third of the requests over that of the first, less one."""

    share: float
    sure: bool
    """It differs by more than requests of one third differ among each other."""

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> AcceptanceDrift | None:
        """None: no speculation, or too few requests."""
        counted = sorted(
            (one for one in finished if one.error is None and one.verify_steps), key=lambda one: one.sent_s
        )
        size = len(counted) // 3
        if size < LEAST_REQUESTS_COMPARED:
            return None
        first, last = (
            np.array([1 + one.correct_drafts / one.verify_steps for one in part])
            for part in (counted[:size], counted[-size:])
        )
        error = math.sqrt((np.var(first, ddof=1) + np.var(last, ddof=1)) / size)
        return cls(float(last.mean() / first.mean() - 1), bool(abs(last.mean() - first.mean()) > SURE * error))
