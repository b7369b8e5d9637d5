"""Answer and Contender: what a verdict says of one load point, and of one settings there, as plain values.

Not here: how they come about (verdict.py), the words for a person (sentence.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from results.comparison import Basis
from sweeps.settings import Settings

Outcome = Literal["better", "worse", "cannot tell", "not compared"]


@dataclass(frozen=True)
class Contender:
    """One settings at one load point, as all its launches showed it."""

    settings: Settings
    """As run."""
    asked: Settings
    concurrency: int
    tok_s: float
    """The goal's metric: geometric mean over launches."""
    launches: int
    speedup: float | None
    """Over the best plain server at this load point; None where that was not measured."""
    speedup_low: float | None
    speedup_high: float | None
    speedup_same: float | None
    """Over the plain server with the same values; None where that was not measured."""
    acceptance_length: float | None
    ttft_p50_ms: float | None
    cannot_win: str | None
    """Why not, e.g. the flag or the limit broken; None: it may."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """A speedup taken apart: acceptance_length ÷ step_ratio × remainder (why.py)."""

    acceptance_length: float
    """Tokens a step of the speculating server yields; the plain one yields 1."""
    step_ms: float
    plain_step_ms: float
    step_ratio: float
    """step_ms ÷ plain_step_ms: what drafting and verifying cost."""
    remainder: float
    """What decoding does not explain: prefill, queueing, the ends of answers; 1 is nothing."""
    drafting_share: float | None = None
    """Of step_ms, from the step times of other settings of the same drafter; None where they do not tell."""


@dataclass(frozen=True)
class Crossover:
    """The concurrency above which speculation loses, between two load points."""

    concurrency: float
    low: float | None
    """Where the lower ends of the intervals fall below 1; None: they lie below at the first load point already."""
    high: float | None
    """Where the upper ends do; None: they lie above 1 at the last load point still."""


@dataclass(frozen=True)
class Answer:
    """What one load point said."""

    concurrency: int
    answer: Outcome
    """better: the whole interval lies above 1.  worse: below, or nothing speculative may win though the plain server may.
    not compared: of a server that ran already, which alone was measured."""
    settings: Settings | None
    """What to run; None is the plain server, also where we cannot tell."""
    best_speculative: Settings | None = None
    """What `speedup` is about, whether it wins or not; None: no speculative setting was measured."""
    best_plain: Settings | None = None
    """What `speedup` is over; None: the plain server was not measured (or not soundly)."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_same: float | None = None
    plain_tok_s: float | None = None
    best_tok_s: float | None = None
    """Of the goal's metric: output_tok_s unless the goal names another."""
    launches: int = 0
    """Of the best speculative setting."""
    confirmations: int = 0
    """Launches it is judged by that did not pick it; 0: it is the best of `among` single launches."""
    among: int = 1
    """How many settings it was picked from; the interval allows for that."""
    plain_launches: int = 0
    num_settings: int = 0
    """Speculative settings measured here without a flag that bars them: `best_speculative` is the best of so many."""
    acceptance_length: float | None = None
    ttft_p50_ms: float | None = None
    plain_ttft_p50_ms: float | None = None
    lossless_argmax_share: float | None = None
    """Of the best setting's greedy tokens, re-scored by a plain server: those that are the target's own choice; None: not
    checked.  Where its output is changed it is not the best."""
    basis: Basis | None = None
    """Where the spread between launches comes from; None without a speedup."""
    why: Why | None = None
    """Of `speedup`; None where the rows do not tell."""
    ties: tuple[Settings, ...] = ()
    """Other speculative settings that cannot be told from the best one."""
    may_win: bool = True
    """Whether `best_speculative` may: False where each speculative setting is flagged or breaks a limit."""
    nothing_meets: str = ""
    """The limits that neither a speculative setting nor the plain server keeps, e.g. `ttft_p99_ms ≤ 40`; else empty."""
    note: str = ""
    """What else decided, e.g. a limit that was broken; a sentence or empty."""

    @property
    def winner(self) -> Settings | None:
        """What to run; None only where the plain server wins and was never measured."""
        return self.settings or self.best_plain
