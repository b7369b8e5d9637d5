"""Rules: what a server would really run of the settings it is given, and what it cannot run at all.

`settle` rewrites settings the way SGLang does, so that twins share a key before anything is launched; `problems` says
why settings can never run, `notes` what a person should know of settings that can.  Each is total.  The table itself is
data (rewrites.py, refusals.py, backend_refusals.py, server_refusals.py), with the versions each rule holds for and where it was read.

Not here: which values a sweep tries (space.py), the whole legal space (legal.py), what drafters are like (drafter.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from sweeps.backend_refusals import BACKEND_REFUSALS
from sweeps.facts import KNOWN_VERSIONS, NOTHING_KNOWN, Facts, unknown_version
from sweeps.refusals import NEEDS_DRAFTER
from sweeps.refusals import REFUSALS as SPECULATION_REFUSALS
from sweeps.rewrites import REWRITES, Changes
from sweeps.rule import TREE_ALGORITHMS, Change, Problem, Rule, Why, tree_capacity
from sweeps.server_refusals import NOTES, SERVER_REFUSALS
from sweeps.settings import Settings

__all__ = [
    "KNOWN_VERSIONS", "NEEDS_DRAFTER", "NOTES", "NOTHING_KNOWN", "REFUSALS", "REWRITES", "TREE_ALGORITHMS", "Change", "Facts",
    "Problem", "Rule", "Settled", "notes", "problems", "refusals", "rewrites", "settle", "tree_capacity", "unknown_version",
]  # fmt: skip


REFUSALS: tuple[Rule[Why], ...] = (*SPECULATION_REFUSALS, *BACKEND_REFUSALS, *SERVER_REFUSALS)


@dataclass(frozen=True)
class Settled:
    settings: Settings
    changes: tuple[Change, ...] = ()


def settle(settings: Settings, facts: Facts = NOTHING_KNOWN) -> Settled:
    """What the server would run.  Total and idempotent: settling settled settings changes nothing."""
    changes: list[Change] = []
    for rule in rewrites(facts.known_version):
        for change in rule.says(settings, facts):
            changes.append(change)
            settings = settings.replace(**{change.knob: change.now})
    return Settled(settings, tuple(changes))


def problems(settings: Settings, facts: Facts = NOTHING_KNOWN) -> list[Problem]:
    """Why these (settled) settings cannot run, in the order of the table; empty when nothing is known against them."""
    return _said(refusals(facts.known_version), settings, facts)


def notes(settings: Settings, facts: Facts = NOTHING_KNOWN) -> list[Problem]:
    """What does not keep these (settled) settings from running but a person should know."""
    return _said((rule for rule in NOTES if rule.holds(facts.known_version)), settings, facts)


@cache
def rewrites(version: str | None) -> tuple[Rule[Changes], ...]:
    """The rewriting rules that hold for a known version; None: for all of them."""
    return tuple(rule for rule in REWRITES if rule.holds(version))


@cache
def refusals(version: str | None) -> tuple[Rule[Why], ...]:
    """The refusing rules that hold for a known version; None: for all of them."""
    return tuple(rule for rule in REFUSALS if rule.holds(version))


def _said(rules: Iterable[Rule[Why]], settings: Settings, facts: Facts) -> list[Problem]:
    return [Problem(rule.name, why) for rule in rules if (why := rule.says(settings, facts)) is not None]
