"""Pace: how fast a warm-up pass ran, and whether the server has settled since the pass before.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.measuring.figures import percentile
from orchestrator.measuring.reply import Finished

SETTLED_WITHIN = 0.05


@dataclass(frozen=True)
class Pace:
    """The mean gap between chunks, which unlike tokens per second does not depend on how
    well a drafter guessed the pass's prompts, and the median time to first token."""

    gap_s: float | None
    ttft_s: float | None

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> Pace:
        gaps_s = [gap_s for one in finished for gap_s in one.gaps_s]
        ttfts_s = [one.ttft_s for one in finished if one.ttft_s is not None]
        return cls(sum(gaps_s) / len(gaps_s) if gaps_s else None, percentile(ttfts_s, 50))

    def settled_since(self, before: Pace) -> bool:
        """Gaps within 5 % of the pass before, and first tokens not still getting faster by more than half."""
        if self.ttft_s is not None and before.ttft_s is not None and self.ttft_s < before.ttft_s / 2:
            return False
        if self.gap_s is None or before.gap_s is None:
            return self.gap_s is before.gap_s
        return abs(self.gap_s - before.gap_s) <= SETTLED_WITHIN * before.gap_s
