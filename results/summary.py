"""summary.md: what a run says to a person, the answer in its first line.

Not here: the tables in it (tables.py), the words of the verdict (sentence.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.acceptance import Acceptance, Pair
from results.comparison import Basis
from results.contest import NO_LOSS
from results.counted import counted
from results.coverage import named
from results.evidence import Evidence
from results.gain import capped
from results.journal import gpu_hours_of, unfinished
from results.record import Record
from results.sample import repeats_recorded
from results.sentence import SIMULATED
from results.slow import words as slow_words
from results.tables import Table, escaped, tables
from results.verdict import Verdict
from sweeps.settings import Settings


@dataclass(frozen=True)
class Told:
    """What summary.md and report.html both say."""

    not_finished: list[str]
    """One paragraph where the search did not come to its end."""
    notes: list[str]
    """What a reader of the verdict has to know besides, a sentence each."""
    tables: list[Table]
    facts: dict[str, str]
    """Where it comes from: name → value, those without one left out."""

    @classmethod
    def of(cls, evidence: Evidence) -> Told:
        return cls(_not_finished(evidence), _notes(evidence), tables(evidence), _facts(evidence))


def summary(evidence: Evidence, told: Told) -> str:
    """The whole text of summary.md."""
    listed = [f"- {escaped(note)}" for note in told.notes]
    parts = [
        _headline(evidence.verdict),
        *told.not_finished,
        *filter(None, ["\n".join(listed)]),
        *_left_behind(evidence),
    ]
    mark = ["**simulated**"] if evidence.verdict.simulated else []
    for table in told.tables:
        parts += [f"## {table.title}", *filter(None, [table.lead]), *mark, str(table)]
    return "\n\n".join([*parts, "## Where this comes from", _provenance(told.facts)]) + "\n"


def _headline(verdict: Verdict) -> str:
    warning = "**simulated** (a performance model answered, no GPU was measured): " if verdict.simulated else ""
    cause = f" {escaped(verdict.cause)}" if verdict.cause and not verdict.reached else ""
    return f"{warning}**{escaped(verdict.sentence.removeprefix(SIMULATED))}**{cause}"


def _not_finished(evidence: Evidence) -> list[str]:
    why = unfinished(evidence.events)
    return [f"**Not finished**, the sweep was {why}: this is what was measured until then."] if why else []


def _notes(evidence: Evidence) -> list[str]:
    verdict, workload = evidence.verdict, evidence.conf.get("workload") or {}
    said = list(filter(None, [capped(verdict.goal, workload.get("arrival"))]))
    said += [f"At concurrency {answer.concurrency}: {answer.note}" for answer in verdict.answers if answer.note]
    shown = {answer.basis for answer in verdict.answers if answer.basis} - {Basis.MEASURED}
    said += [f"Intervals marked *{basis}*: {basis.doc}." for basis in Basis if basis in shown]
    if shown:
        said.append("Relaunches (`budget.finalists`) narrow such intervals.")
    said += [
        f"At concurrency {a.concurrency} not to be told apart from {a.best_speculative}: {_listed(a.ties)}."
        for a in verdict.answers
        if a.ties
    ]
    if any(a.ties for a in verdict.answers):
        said.append(
            f"Of settings that cannot be told apart the simplest is named that looks at most {NO_LOSS:.0%} slower."
        )
    said += _repeated(evidence.records)
    return said + _ineffective(evidence.ineffective) + slow_words(evidence.records, evidence.slow) + _mostly_flagged(evidence.records)  # fmt: skip


def _repeated(records: Sequence[Record]) -> list[str]:
    """Launches of a replay that are no further evidence."""
    again = {r.trial for r, repeats in zip(records, repeats_recorded(records), strict=True) if repeats}
    if not again:
        return []
    which = ", ".join(map(str, sorted(again)[:5])) + (" and more" if len(again) > 5 else "")
    return [f"Trial{'s'[: len(again) > 1]} {which}: repeated what one recorded launch had answered before, which is no further evidence and counts once."]  # fmt: skip


def _mostly_flagged(records: Sequence[Record]) -> list[str]:
    """What is true of the whole benchmark rather than of a row."""
    measured = [record for record in records if record.measured]
    seen = Counter(flag for record in measured for flag in record.flags)
    return [
        f"{flag} in {count} of {len(measured)} rows: {flag.doc[0].lower()}{flag.doc[1:]}"
        for flag, count in seen.most_common()
        if 2 * count >= len(measured)
    ]


def _ineffective(found: Mapping[Pair, Acceptance]) -> list[str]:
    return [
        f"**{named(pair)} is ineffective**: acceptance length {acceptance.length:.2f} over "
        f"{acceptance.verify_steps:.0f} verify steps: it guesses nothing, and was launched no more. Usually EAGLE where "
        "EAGLE3 was meant, or a drafter trained for another target; `python -m orchestrator inspect` shows which fits."
        for pair, acceptance in found.items()
    ]


def _left_behind(evidence: Evidence) -> list[str]:
    """What servers left behind: those GPUs were not used again."""
    lines = [
        f"- After trial {event.get('trial')} GPUs {_texts(event, 'gpus', ', ') or 'none'}: {escaped(_texts(event, 'what', '; '))}"
        for event in evidence.events
        if event["event"] == "left_behind"
    ]
    return ["\n".join(["**Not handed over clean**, and not used again in that sweep:", "", *lines])] if lines else []


def _texts(event: Mapping[str, Any], name: str, between: str) -> str:
    """A list of an event as one text, whatever a damaged journal holds there."""
    values = event.get(name)
    return between.join(map(str, values)) if isinstance(values, list) else ""


def _listed(settings: Sequence[Settings], most: int = 5) -> str:
    more = f" and {len(settings) - most} more" if len(settings) > most else ""
    return ", ".join(map(str, settings[:most])) + more


def _facts(evidence: Evidence) -> dict[str, str]:
    records, verdict = evidence.records, evidence.verdict
    measured = sum(record.measured for record in records)
    spent = gpu_hours_of(evidence.events)
    hours = f"{spent:.2f}" if spent else f"about {gpu_hours(records):.2f} (estimated from the rows)"
    known = {
        "run": str(evidence.run.path),
        "engine": _distinct(f"{r.origin.engine} {r.origin.engine_version}" for r in records),
        "target": _distinct(r.origin.target for r in records),
        "GPUs": _distinct(r.origin.gpu_name for r in records),
        "GPU driver": _distinct(r.origin.driver_version for r in records),
        "hosts": _distinct(r.origin.host for r in records),
        "workload": _distinct(r.origin.workload for r in records),
        "all with": ", ".join(f"{name}={value}" for name, value in evidence.common.items()),
        "space": "" if verdict.alone else _space(evidence.events),
        "measured": _span(records),
        "rows": f"{measured} measured, {len(records) - measured} failed, from {_launches(records)}",
        "GPU-hours": hours,
        "goal": (f"minimize {verdict.goal.minimize}" if verdict.goal.minimize else f"maximize {verdict.goal.maximize}")
        + "".join(f", {n} ≤ {v:g}" for n, v in verdict.goal.limits.items()),
        "the rows": "`results.load(...)`, or `pandas.read_parquet` on trials/; every column is documented in its schema",
    }
    if verdict.simulated:
        known = {"simulated": "yes: these are a performance model's numbers", **known}
    return {name: value for name, value in known.items() if value}


def _launches(records: Sequence[Record]) -> str:
    """As the budget counts them: what an interruption cut in two is one, each attempt that failed is one."""
    failed = {(record.trial, record.attempt) for record in records if record.failure is not None}
    ended = {record.trial for record in records if (record.trial, record.attempt) not in failed}
    again = len({record.trial for record in records if record.attempt > 1})
    return f"{counted(len(failed) + len(ended), 'launch')}{f', {again} of them begun again' if again else ''}"


def _provenance(known: Mapping[str, str]) -> str:
    return "\n".join(
        f"- {'**simulated**' if name == 'simulated' else name}: {escaped(value)}" for name, value in known.items()
    )


def _space(events: Sequence[Mapping[str, Any]]) -> str:
    """What the rules saved: twins that were not launched twice, and settings that could never run."""
    found = [event for event in events if event["event"] == "space_counted"]
    if not found:
        return ""
    last = found[-1]
    refused = sum(last["refused"].values())
    return f"{counted(last['grid'], 'point')}, {counted(last['legal'], 'distinct legal setting')}; not launched: {counted(last['collapsed'], 'duplicate')}, {refused:,} that cannot run"


def _span(records: Sequence[Record]) -> str:
    days = sorted(record.started_at for record in records)
    return f"{days[0]:%Y-%m-%d %H:%M} to {days[-1]:%Y-%m-%d %H:%M} UTC" if days else ""


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value.strip()}))


def gpu_hours(records: Iterable[Record]) -> float:
    """An estimate from the rows alone: (launch + measuring) × GPUs; the journal knows better, where there is one."""
    launches: dict[tuple[int, int], float] = {}
    total_s = 0.0
    for record in records:
        width = len(record.origin.gpus)
        launches[record.trial, record.attempt] = (record.launch_s or 0.0) * width
        if record.measurement is not None:
            total_s += (record.measurement.measure_s or 0.0) * width
    return (total_s + sum(launches.values())) / 3600
