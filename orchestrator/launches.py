"""Launches: what a plan's space comes to: the legal settings, and the plain servers that they are compared with.

Not here: which comes next (schedule.py), how long it takes (estimate.py).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.errors import ConfError
from orchestrator.plan import RANDOM, Plan, Workload
from results.counted import counted
from results.gain import capped
from sweeps.facts import Facts, unknown_version
from sweeps.legal import Legal, TooLarge, legal, sampled
from sweeps.rules import notes
from sweeps.settings import ARGS, Settings
from sweeps.space import SearchSpace

if TYPE_CHECKING:
    from orchestrator.engines.replay import Recording
    from orchestrator.measuring.workload import PromptBook

DRAWN = 5_000
"""Random points that stand for a space too large to count."""
ENOUGH_PER_STREAM = 5
"""Requests a stream at a point, as benchmarks of steady load commonly ask for at least."""
NOTED = 500
"""Settings that are looked at for notes; notes are alike."""


@dataclass(frozen=True)
class Launches:
    plan: Plan
    facts: Facts
    dropped: frozenset[tuple[str, str | None]] = frozenset()
    """Algorithm and drafter of what inspection refuses: never launched."""

    @cached_property
    def legal(self) -> Legal:
        """Of the whole space, plain servers in it included."""
        try:
            return legal(self.plan.space, self.facts)
        except TooLarge:
            return sampled(_drawn(self.plan.space), self.facts)

    @cached_property
    def plain(self) -> list[Settings]:
        """The plain servers to launch, whether they are in the space or not."""
        return self.legal.plain_servers(self.facts)

    @cached_property
    def recorded(self) -> Recording | None:
        """All that a replay can answer; None: of an engine that launches.

        Raises MachineError when nothing was recorded.
        """
        if self.plan.engine.name != "replay":
            return None
        from orchestrator.engines.replay import Replay  # late: it brings in the load generator

        return Replay(self.plan).recording

    @cached_property
    def kept(self) -> Sequence[Settings]:
        """The legal settings without what is dropped, and without what was not recorded."""
        if not self.dropped and self.recorded is None:
            return self.legal.settings
        return [s for s in self.legal.settings if (s.algorithm, s.drafter) not in self.dropped and self.answered(s)]

    def answered(self, settings: Settings) -> bool:
        """Whether a launch of these settings would come to anything: all but what a recording lacks."""
        return self.recorded is None or self.recorded.has(settings)

    @property
    def count(self) -> int:
        """Distinct launches, plain servers included."""
        return sum(not self._in_space(plain) and self.answered(plain) for plain in self.plain) + len(self.kept)

    def __iter__(self) -> Iterator[Settings]:
        """Plain servers first."""
        plain = {settings.key for settings in self.plain}
        return itertools.chain(self.plain, (s for s in self.kept if s.speculative or s.key not in plain))

    def warnings(self) -> list[str]:
        """What a person should know before the first launch, each once."""
        version = unknown_version(self.facts.version)
        found = {note.rule: note.why for s in itertools.islice(self, NOTED) for note in notes(s, self.facts)}
        return [
            *([version] if version else []),
            *found.values(),
            *_few_requests(self.plan),
            *_few_prompts(self.plan),
            *_capped(self.plan),
            *_long_prompts(self.plan),
            *self._plain_after_all(),
        ]

    def _plain_after_all(self) -> list[str]:
        """Why another launch mode was asked for in vain, as far as that is the version's or an argument's doing."""
        engine, version = self.plan.engine, self.facts.version
        if engine.launch_mode == "plain" or engine.name != "sglang" or version is None:
            return []
        from orchestrator.engines.imports import sglang_imports

        given = {name.removeprefix(ARGS) for name in self.plan.space.domains if name.startswith(ARGS)}
        why = sglang_imports(version, 1, dict.fromkeys([*given, *engine.env], ""))
        return [f"engine.launch_mode {engine.launch_mode}: launches are plain all the same, for {why}."] if isinstance(why, str) else []  # fmt: skip

    @property
    def anything(self) -> bool:
        """Whether there is something legal of what is asked for."""
        return self._some_of(self.legal.settings)

    def require_some(self) -> None:
        """Raises ConfError when nothing that is asked for can run, with what refuses it, or nothing of it was recorded."""
        if self.anything:
            self._require_recorded()
            return
        refused = [
            f"space: {points:,} of {counted(self.legal.total, 'point')} are refused ({rule}): {self.legal.reasons[rule]}."
            for rule, points in self.legal.refused.most_common()
        ]
        raise ConfError([f"space: nothing in it can run{'' if not self.legal.settings else ' but the plain server'}.", *refused])  # fmt: skip

    def _require_recorded(self) -> None:
        """Of a space too large to count, what is in the recording is not known."""
        if self.recorded is None or not self.legal.exact or self._some_of(self.kept):
            return
        what = f"nothing in it{' but the plain server' if self.kept else ''}"
        raise ConfError([f"space: {what} is in the recording, which holds {self.recorded}. Give the values and the workload.concurrency that were recorded."])  # fmt: skip

    def _some_of(self, settings: Sequence[Settings]) -> bool:
        """Whether there is anything among them, and anything that speculates where that is asked for."""
        return bool(settings) and (not speculates(self.plan.space) or any(one.speculative for one in settings))

    def _in_space(self, settings: Settings) -> bool:
        return self.legal.asked(settings) is not None


def _few_requests(plan: Plan) -> list[str]:
    """Of a real engine that is measured: a point of few requests is ramp-up and drain above all."""
    load = plan.workload
    if (
        plan.engine.name in ("simulated", "replay")
        or load.arrival != "closed"
        or load.requests_per_stream >= ENOUGH_PER_STREAM
    ):
        return []
    return [f"workload.requests_per_stream {load.requests_per_stream}: with fewer than {ENOUGH_PER_STREAM}, starting and ending streams weigh heavily; compare steady_output_tok_s."]  # fmt: skip


def _few_prompts(plan: Plan) -> list[str]:
    """Of a file; random prompts are as many as are asked for."""
    load = plan.workload
    book = None if load.prompts == RANDOM or plan.engine.name == "replay" else _book(load)
    if book is None or (have := len(book.measured)) >= book.asked:
        return []
    return [f"workload.prompts {load.prompts}: holds {have} to measure with, and a launch sends {book.asked}: some are sent again, and the figures are those of few texts (flag prompts_reused). Give more prompts, or lower workload.requests_per_stream."]  # fmt: skip


def _long_prompts(plan: Plan) -> list[str]:
    """Of prompts that keep their length: whether the longest may be refused."""
    load, context = plan.workload, plan.target.context_length
    if context is None or plan.engine.name in ("attached", "replay") or isinstance(load.input_tokens, int):
        return []
    book = _book(load)
    if book is None or book.longest_tokens + load.output_tokens <= context:
        return []
    return [f"workload.prompts {load.prompts}: the longest has about {book.longest_tokens} tokens; with output_tokens {load.output_tokens} that is more than target.context_length {context}, and a server refuses such a request. Serve a longer context, lower output_tokens, or leave long prompts out."]  # fmt: skip


def _book(load: Workload) -> PromptBook | None:
    """None where it cannot be read, which is said where it is refused."""
    from orchestrator.measuring.workload import load_prompts  # late: the verb status, which is to be quick, needs none

    try:
        return load_prompts(load, None)
    except ConfError:
        return None


def _capped(plan: Plan) -> list[str]:
    warning = capped(plan.goal, plan.workload.arrival)
    return [warning] if warning else []


def speculates(space: SearchSpace) -> bool:
    return any(algorithm != "none" for algorithm in space.domains["algorithm"].values())


def for_proposals(plan: Plan, facts: Facts) -> int | None:
    """Launches that the budget has for proposals: without the race's and the plain servers'; None: no such bound."""
    budget = plan.budget
    if budget.launches is None:
        return None
    plain = len(Launches(plan, facts).plain) if speculates(plan.space) else 0
    return budget.launches - budget.kept_back - plain


def _drawn(space: SearchSpace) -> Iterator[Settings]:
    """Random points, the same each time."""
    chance = random.Random(0)  # noqa: S311 - a sample, not a secret
    values = {name: domain.values() for name, domain in space.free.items()}
    for _ in range(DRAWN):
        yield space.settings({name: chance.choice(some) for name, some in values.items()})
