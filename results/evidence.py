"""Evidence: what a report is made of: the rows of a run, its journal and the verdict over them, each looked at once.

Not here: the judgement (verdict.py), what is said of it (summary.py, tables.py, page/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from results.acceptance import Acceptance, Pair, by_category, flagged, ineffective
from results.coverage import pairs_of
from results.front import Offer, offers
from results.record import Record
from results.rundir import RunDir
from results.sample import counted_rows
from results.slow import flagged as slow_flagged
from results.slow import slowdowns
from results.verdict import Verdict, judge
from sweeps.observation import Goal
from sweeps.settings import Settings, knobs, worded

_DEFAULT = Settings()
_SHORT_NAME = {"algorithm", "drafter", "num_steps", "eagle_topk", "num_draft_tokens", "attention_backend"}
_SHORT_NAME_LEAVES_OUT = tuple(name for name in knobs() if name not in _SHORT_NAME)


@dataclass(frozen=True)
class Evidence:
    run: RunDir
    records: Sequence[Record]
    """Those of drafters that guess nothing, and those that were slow from end to end, are flagged so."""
    verdict: Verdict
    conf: Mapping[str, Any]
    """The resolved config of the run."""
    ineffective: Mapping[Pair, Acceptance]
    slow: Mapping[int, float]
    """Index of a row → how many times as long as need be its steps took."""

    @classmethod
    def of(cls, run: RunDir, records: Sequence[Record], goal: Goal, conf: Mapping[str, Any]) -> Evidence:
        vain, slow = ineffective(records), slowdowns(records)
        sound = slow_flagged(flagged(records, vain), slow)
        without_rows = run.begun(besides={record.trial for record in sound})
        verdict = judge(sound, goal, pairs_of(conf), [begun.trial.settings for begun in without_rows])
        return cls(run, sound, verdict, conf, vain, slow)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self.run.journal.events()

    @cached_property
    def counted(self) -> list[tuple[Record, ...]]:
        return counted_rows(self.records)

    @cached_property
    def offers(self) -> list[Offer]:
        return offers(self.counted, self.verdict.goal)

    @cached_property
    def by_category(self) -> dict[Pair, dict[str, Acceptance]]:
        return by_category(self.records)

    @cached_property
    def common(self) -> dict[str, str]:
        """What every setting of the run has beside its short name: said once instead of in every line."""
        every = {one.settings.key: one.settings for points in self.verdict.contenders.values() for one in points}
        found = [set(extras(settings).items()) for settings in every.values()]
        return dict(sorted(set.intersection(*found))) if found else {}


def extras(settings: Settings) -> dict[str, str]:
    """The server's knobs that are given and that the short name leaves out."""
    values = {name: getattr(settings, name) for name in _SHORT_NAME_LEAVES_OUT}
    unlike = {name: value for name, value in values.items() if value != getattr(_DEFAULT, name)}
    return {
        name: worded(value) for name, value in {**unlike, **dict(settings.server_args)}.items() if value is not None
    }
