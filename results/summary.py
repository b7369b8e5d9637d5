"""summary.md: what a run says to a person, the answer in its first line.

Not here: the tables in it (tables.py), the words of the verdict (sentence.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.acceptance import ineffective
from results.comparison import Basis
from results.coverage import named
from results.journal import unfinished
from results.record import Record
from results.rundir import RunDir
from results.sentence import SIMULATED
from results.tables import Table, common, escaped
from results.verdict import Verdict
from sweeps.settings import Settings


def summary(
    run: RunDir, records: Sequence[Record], verdict: Verdict, found: Sequence[Table], known: Mapping[str, str]
) -> str:
    """The whole text of summary.md; `found`: its tables, `known`: where it comes from."""
    listed = [f"- {escaped(note)}" for note in notes(records, verdict)]
    parts = [_headline(verdict), *not_finished(run), *filter(None, ["\n".join(listed)]), *_left_behind(run)]
    mark = ["**simulated**"] if verdict.simulated else []
    for table in found:
        parts += [f"## {table.title}", *filter(None, [table.lead]), *mark, str(table)]
    return "\n\n".join([*parts, "## Where this comes from", _provenance(known)]) + "\n"


def _headline(verdict: Verdict) -> str:
    warning = "**simulated** (a performance model answered, no GPU was measured): " if verdict.simulated else ""
    cause = f" {escaped(verdict.cause)}" if verdict.cause and not verdict.reached else ""
    return f"{warning}**{escaped(verdict.sentence.removeprefix(SIMULATED))}**{cause}"


def not_finished(run: RunDir) -> list[str]:
    """One paragraph where the search did not come to its end."""
    why = unfinished(run.journal.events())
    return [f"**Not finished**, the sweep was {why}: this is what was measured until then."] if why else []


def notes(records: Sequence[Record], verdict: Verdict) -> list[str]:
    """What a reader of the verdict has to know besides, a sentence each."""
    said = [f"At concurrency {answer.concurrency}: {answer.note}" for answer in verdict.answers if answer.note]
    shown = {answer.basis for answer in verdict.answers if answer.basis} - {Basis.MEASURED}
    said += [f"Intervals marked *{basis}*: {basis.doc}." for basis in Basis if basis in shown]
    if shown:
        said.append("Relaunches (`budget.finalists`) narrow such intervals.")
    said += [
        f"At concurrency {a.concurrency} not to be told apart from {a.best_speculative}: {_listed(a.ties)}."
        for a in verdict.answers
        if a.ties
    ]
    return said + _ineffective(records)


def _ineffective(records: Sequence[Record]) -> list[str]:
    return [
        f"**{named(pair)} is ineffective**: acceptance length {acceptance.length:.2f} over "
        f"{acceptance.verify_steps:.0f} verify steps: it guesses nothing, and was launched no more. Usually EAGLE where "
        "EAGLE3 was meant, or a drafter trained for another target; `python -m orchestrator inspect` shows which fits."
        for pair, acceptance in ineffective(records).items()
    ]


def _left_behind(run: RunDir) -> list[str]:
    """What servers left behind: those GPUs were not used again."""
    lines = [
        f"- After trial {event.get('trial')} GPUs {_texts(event, 'gpus', ', ') or 'none'}: {escaped(_texts(event, 'what', '; '))}"
        for event in run.journal.events()
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


def facts(run: RunDir, records: Sequence[Record], verdict: Verdict) -> dict[str, str]:
    """Where it comes from: name → value, those without one left out."""
    measured = sum(record.measured for record in records)
    launches = {(record.trial, record.attempt) for record in records}
    spent = run.journal.gpu_hours_spent()
    hours = f"{spent:.2f}" if spent else f"about {gpu_hours(records):.2f} (estimated from the rows)"
    known = {
        "run": str(run.path),
        "engine": _distinct(f"{r.origin.engine} {r.origin.engine_version}" for r in records),
        "target": _distinct(r.origin.target for r in records),
        "GPUs": _distinct(r.origin.gpu_name for r in records),
        "GPU driver": _distinct(r.origin.driver_version for r in records),
        "hosts": _distinct(r.origin.host for r in records),
        "workload": _distinct(r.origin.workload for r in records),
        "all with": ", ".join(f"{name}={value}" for name, value in common(verdict).items()),
        "space": _space(run),
        "measured": _span(records),
        "rows": f"{measured} measured, {len(records) - measured} failed, from {len(launches)} launches",
        "GPU-hours": hours,
        "goal": (f"minimize {verdict.goal.minimize}" if verdict.goal.minimize else f"maximize {verdict.goal.maximize}")
        + "".join(f", {n} ≤ {v:g}" for n, v in verdict.goal.limits.items()),
        "the rows": "`results.load(...)`, or `pandas.read_parquet` on trials/; every column is documented in its schema",
    }
    if verdict.simulated:
        known = {"simulated": "yes: these are a performance model's numbers", **known}
    return {name: value for name, value in known.items() if value}


def _provenance(known: Mapping[str, str]) -> str:
    return "\n".join(
        f"- {'**simulated**' if name == 'simulated' else name}: {escaped(value)}" for name, value in known.items()
    )


def _space(run: RunDir) -> str:
    """What the rules saved: twins that were not launched twice, and settings that could never run."""
    counted = [event for event in run.journal.events() if event["event"] == "space_counted"]
    if not counted:
        return ""
    last = counted[-1]
    refused = sum(last["refused"].values())
    return f"{last['grid']} points, {last['legal']} distinct legal settings; not launched: {last['collapsed']} duplicates, {refused} that cannot run"


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
