"""The tables of summary.md, each made from the verdict or from the rows; none where there is nothing to show.

Not here: the sentences around them (summary.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.acceptance import Acceptance, Pair
from results.answer import Answer, Contender
from results.comparison import Basis
from results.coverage import named
from results.evidence import Evidence, extras
from results.failure import FailureKind
from results.front import Offer, unbeaten
from results.gain import gain, gain_explained
from results.measurement import Effect, Flag, Measurement
from results.record import Record
from results.rundir import RunDir
from results.verdict import Verdict
from sweeps.settings import Settings

MOST_SETTINGS = 40
"""Rows of the table of all settings; the rest are counted and left to the Parquet files."""


LOSSLESS_TITLE = "Is the output unchanged"


@dataclass(frozen=True)
class Table:
    kind: str
    """answers, why, lossless, front, drafters, categories, settings, failures, flags or findings: titles carry counts."""
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    lead: str = ""
    """A sentence before it, or empty."""

    def __str__(self) -> str:
        """As Markdown, without title and lead."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines)


def tables(evidence: Evidence) -> list[Table]:
    """All that have something to show, in their order."""
    verdict, records = evidence.verdict, evidence.records
    found = [
        _answers(verdict), _why(verdict), _lossless(records, verdict), _front(evidence.offers, verdict), _drafters(verdict),
        _categories(evidence.by_category), _settings(verdict, evidence.common), _failures(evidence.run, records), _flags(records),
        _findings(evidence.events),
    ]  # fmt: skip
    return [table for table in found if table is not None]


def escaped(text: str) -> str:
    """One line that no pipe of its own cuts into cells."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def _answers(verdict: Verdict) -> Table | None:
    if not verdict.answers:
        return None
    unit = verdict.goal.metric
    header = (
        "concurrency", f"plain ({unit})", "best speculative setting", unit, gain(verdict.goal), "interval (95 %)",
        "over the same plain", "acceptance length", "TTFT p50 (plain), ms", "launches (plain)", "answer",
    )  # fmt: skip
    answers = [*verdict.answers, *([verdict.overall] if verdict.overall and verdict.goal.weights else [])]
    lines = [_answer_row(answer) for answer in answers]
    return Table("answers", "Per load point", header, lines, lead=gain_explained(verdict.goal))


def _answer_row(answer: Answer) -> tuple[str, ...]:
    interval = "–"
    if answer.speedup is not None:
        mark = "" if answer.basis is Basis.MEASURED else f" *{answer.basis}*"
        interval = f"[{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]{mark}"
    return (
        str(answer.concurrency or "all, weighted"), _figure(answer.plain_tok_s), str(answer.best_speculative or "–"),
        _figure(answer.best_tok_s), _times(answer.speedup), interval, _times(answer.speedup_same),
        _number(answer.acceptance_length, 2), f"{_number(answer.ttft_p50_ms, 1)} ({_number(answer.plain_ttft_p50_ms, 1)})",
        f"{_launches(answer)} ({answer.plain_launches})",
        f"**{'nothing meets the limits' if answer.nothing_meets else answer.answer}**",
    )  # fmt: skip


def _launches(answer: Answer) -> str:
    """Of the best setting, and by which of them it is judged where the one that picked it does not count."""
    if not 0 < answer.confirmations < answer.launches:
        return str(answer.launches)
    judged = "its relaunch" if answer.confirmations == 1 else f"its {answer.confirmations} relaunches"
    return f"{answer.launches}, judged on {judged}"


def _why(verdict: Verdict) -> Table | None:
    rows = [(answer, answer.why) for answer in verdict.answers if answer.why is not None]
    if not rows:
        return None
    header = (
        "concurrency", gain(verdict.goal), "= acceptance length", "÷ step time ratio", "× remainder", "step (plain), ms", "of it drafting",
    )  # fmt: skip
    lines = [
        (
            str(answer.concurrency), _times(answer.speedup), _number(why.acceptance_length, 2), _times(why.step_ratio),
            _number(why.remainder, 2), f"{_number(why.step_ms, 1)} ({_number(why.plain_step_ms, 1)})",
            "–" if why.drafting_share is None else f"{why.drafting_share:.0%}",
        )
        for answer, why in rows
    ]  # fmt: skip
    lead = "Speculation pays where a step yields more tokens than it takes longer; the remainder is prefill, queueing and the ends of answers."
    return Table("why", "Why", header, lines, lead=f"{lead}{_crossing(verdict)}")


def _crossing(verdict: Verdict) -> str:
    crossing = verdict.crossover
    if crossing is None:
        return ""
    low = "below the first load point" if crossing.low is None else f"{crossing.low:.0f}"
    high = "beyond the last load point" if crossing.high is None else f"{crossing.high:.0f}"
    return f" It stops paying near {crossing.concurrency:.0f} streams (95 %: {low} to {high})."


def _lossless(records: Sequence[Record], verdict: Verdict) -> Table | None:
    """What re-scoring by a plain server showed of the finalists' greedy answers, a line a launch; then what is recommended
    unchecked."""
    checked = {r.trial: r for r in records if r.measurement and r.measurement.lossless_tokens}
    if not checked:
        return _not_checked(verdict)
    header = (
        "settings", "tokens re-scored", "the target's choice (plain server)", "1 nat off or more (plain server)", "widest gap, nats",
        "answers equal to the plain server's", "output",
    )  # fmt: skip
    rows = [_lossless_row(record, record.measurement) for record in checked.values() if record.measurement]
    seen = {record.settings.key for record in checked.values()}
    rows += [(str(one), *["–"] * 5, "**not checked**") for one in _recommended(verdict) if one.key not in seen]
    lead = "A plain server re-scored what each finalist said. Rounding shows as tokens hardly less probable than the target's own choice, corruption as wide gaps."
    return Table("lossless", LOSSLESS_TITLE, header, rows, lead=lead)


def _not_checked(verdict: Verdict) -> Table | None:
    """None where nothing speculative is recommended."""
    rows = [(str(one), "**not checked**") for one in _recommended(verdict)]
    lead = "Nothing was re-scored by a plain server in this run: that is done in the final race (`budget.finalists`)."
    return Table("lossless", LOSSLESS_TITLE, ("settings", "output"), rows, lead=lead) if rows else None


def _recommended(verdict: Verdict) -> list[Settings]:
    """The speculative settings to run, at a load point or at all of them."""
    answers = [*verdict.answers, *([verdict.overall] if verdict.overall else [])]
    return list(dict.fromkeys(answer.settings for answer in answers if answer.settings))


def _lossless_row(record: Record, seen: Measurement) -> tuple[str, ...]:
    changed = Flag.OUTPUT_CHANGED in record.flags
    return (
        str(record.settings), str(seen.lossless_tokens),
        f"{_share(seen.lossless_argmax_share)} ({_share(seen.lossless_control_argmax_share)})",
        f"{_share(seen.lossless_far_share)} ({_share(seen.lossless_control_far_share)})",
        _number(seen.lossless_gap_max_nats, 2), _share(seen.lossless_same_share), "**changed**" if changed else "unchanged",
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _front(every: Sequence[Offer], verdict: Verdict) -> Table | None:
    """What no other setting at no other load beats in both, speed for a user and throughput."""
    found = unbeaten(every)
    if not found:
        return None
    priced = verdict.goal.price_per_gpu_hour is not None
    metered = any(one.tokens_per_joule is not None for one in found)
    header: tuple[str, ...] = ("concurrency", "settings", "user_tok_s", "output_tok_s per GPU")
    header += ("tokens per joule",) * metered + ("cost of a million tokens",) * priced
    rows = [
        (
            str(one.concurrency), str(one.settings), _number(one.user_tok_s, 1), _number(one.output_tok_s_per_gpu, 1),
            *([_number(one.tokens_per_joule, 2)] if metered else []),
            *([_number(one.cost_per_million_tokens, 3)] if priced else []),
        )
        for one in found
    ]  # fmt: skip
    lead = "Speed for one user against throughput per GPU: whatever is not here is beaten in both by something that is. Means over the launches that a setting is judged by: its relaunches, where it has some."
    return Table("front", "What to choose from", header, rows, lead=lead)


def _drafters(verdict: Verdict) -> Table | None:
    """The best of each drafter at each load point, the best drafter first, those with nothing to show last."""
    every = {
        named(pair): {load: one for load, one in points.items() if one.cannot_win is None}
        for pair, points in verdict.best_by_pair().items()
    }
    best = {name: points for name, points in every.items() if points}
    if not verdict.coverage or not verdict.contenders:
        return None
    header = ("drafter", *(f"at {concurrency}" for concurrency in verdict.contenders), "acceptance length", "tried")
    covered = {one.name: one for one in verdict.coverage}
    rows = [
        (name, *_best_row(best[name], list(verdict.contenders)), _num_settings(covered[name].num_settings))
        for name in sorted(best, key=lambda name: -_mean_log(best[name].values()))
    ]
    by = "" if verdict.goal.metric == "output_tok_s" else f" ({gain(verdict.goal)})"
    nothing = ["–"] * (len(verdict.contenders) + 1)
    rows += [
        (name, *nothing, (one.gap or "may not win").replace("was never launched", "not launched"))
        for name, one in covered.items()
        if name not in best
    ]
    return Table("drafters", f"Drafters, by their best settings{by}", header, rows)


def _categories(found: Mapping[Pair, Mapping[str, Acceptance]]) -> Table | None:
    """Acceptance length of each drafter on each category of prompts."""
    names = sorted({name for categories in found.values() for name in categories})
    if not names:
        return None
    rows = [
        (named(pair), *(_number(categories[name].length, 2) if name in categories else "–" for name in names))
        for pair, categories in found.items()
    ]
    lead = (
        "Over all settings, load points and launches of a drafter that may win; categories are the prompt file's own."
    )
    return Table("categories", "Acceptance length by category of prompts", ("drafter", *names), rows, lead=lead)


def _best_row(best: Mapping[int, Contender], concurrencies: Sequence[int]) -> tuple[str, ...]:
    lengths = [one.acceptance_length for one in best.values() if one.acceptance_length is not None]
    ends = [f"{end:.2f}" for end in (min(lengths), max(lengths))] if lengths else []
    span = " – ".join(dict.fromkeys(ends)) or "–"
    return (*(_best_cell(best.get(concurrency)) for concurrency in concurrencies), span)


def _num_settings(count: int) -> str:
    return f"best of {count} settings" if count > 1 else "one setting"


def _best_cell(one: Contender | None) -> str:
    if one is None:
        return "–"
    triple = [
        value for value in (one.settings.num_steps, one.settings.eagle_topk, one.settings.num_draft_tokens) if value
    ]
    return " ".join(filter(None, (_times(one.speedup), ".".join(map(str, triple)), one.settings.attention_backend)))


def _settings(verdict: Verdict, shared: Mapping[str, str]) -> Table | None:
    found: dict[str, dict[int, Contender]] = {}
    for concurrency, contenders in verdict.contenders.items():
        for one in contenders:
            found.setdefault(one.settings.key, {})[concurrency] = one
    if not found:
        return None
    ranked = sorted(found.values(), key=lambda points: -_mean_log(points.values()))
    shown = ranked[:MOST_SETTINGS]
    several = len(verdict.contenders) > 1
    title = f"All settings, by {'mean ' if several else ''}{gain(verdict.goal)} over the best plain server"
    if len(ranked) > len(shown):
        title += f" (the first {MOST_SETTINGS} of {len(ranked)}; the rest is in trials/)"
    header = (
        "settings",
        *(f"at {concurrency}" for concurrency in verdict.contenders),
        *(["mean"] if several else []),
        "launches",
        "may not win because",
    )
    return Table(
        "settings", title, header, [_settings_row(points, list(verdict.contenders), shared) for points in shown]
    )


def _settings_row(
    points: Mapping[int, Contender], concurrencies: Sequence[int], shared: Mapping[str, str]
) -> tuple[str, ...]:
    one = next(iter(points.values()))
    cells = [_speed_cell(points.get(concurrency)) for concurrency in concurrencies]
    barred = sorted({f"{reason} (at {c})" for c, point in points.items() if (reason := point.cannot_win)})
    return (
        _in_full(one.settings, shared),
        *cells,
        *([_mean_speedup(points.values())] if len(concurrencies) > 1 else []),
        str(max(point.launches for point in points.values())),
        "; ".join(barred),
    )


def _mean_speedup(points: Iterable[Contender]) -> str:
    """Geometric, over the load points that were measured; what the settings are sorted by."""
    found = list(points)
    return _times(math.exp(_mean_log(found)) if all(point.speedup for point in found) else None)


def _speed_cell(one: Contender | None) -> str:
    return "–" if one is None else f"{_times(one.speedup)} ({_figure(one.tok_s)})"


def _in_full(settings: Settings, shared: Mapping[str, str]) -> str:
    """The short name and what tells it from the others, for two settings must not look the same."""
    told = [f"{name}={value}" for name, value in extras(settings).items() if shared.get(name) != value]
    return " ".join([str(settings), *told])


def _mean_log(points: Iterable[Contender]) -> float:
    logs = [math.log(point.speedup) if point.speedup else math.log(point.tok_s) - 99 for point in points]
    return sum(logs) / len(logs)


def _failures(run: RunDir, records: Sequence[Record]) -> Table | None:
    failed = [(record, record.failure) for record in records if record.failure is not None]
    if not failed:
        return None
    rows: list[tuple[str, ...]] = []
    for kind, count in Counter(failure.kind for _, failure in failed).most_common():
        record, first = next(pair for pair in failed if pair[1].kind is kind)
        log = _log(run, record, first.log)
        rows.append((str(kind), str(count), str(first.stage), first.cause_in_short(), log, FailureKind(kind).remedy))
    return Table(
        "failures", "What failed, by kind", ("kind", "times", "stage", "first cause", "its log", "what to do"), rows
    )


def _log(run: RunDir, record: Record, named: str | None) -> str:
    """Relative to the run directory, also when that was carried elsewhere."""
    if named is None:
        return "–"
    return record.origin.log or named.removeprefix(f"{run.path}/")


def _flags(records: Sequence[Record]) -> Table | None:
    seen = Counter(flag for record in records for flag in record.flags)
    if not seen:
        return None
    order = [Effect.INVALID, Effect.NEVER_BEST, Effect.NOTE]
    rows = [
        (str(flag), str(count), str(flag.effect), flag.doc)
        for flag, count in sorted(seen.items(), key=lambda item: (order.index(item[0].effect), -item[1]))
    ]
    return Table(
        "flags", "What lowers the trust in rows", ("flag", "rows", "effect", "meaning"), rows,
        lead="A *note* does not keep a row from winning; *never best* and *invalid* do.",
    )  # fmt: skip


def _findings(events: Sequence[Mapping[str, Any]]) -> Table | None:
    """What inspection said of the drafters; a resume says it again."""
    found = [event for event in events if event["event"] == "drafter_finding"]
    rows = dict.fromkeys(map(_finding_row, found))
    if not rows:
        return None
    header = ("drafter", "severity", "launched", "finding")
    return Table("findings", "What inspection found in the drafters", header, list(rows))


def _finding_row(event: Mapping[str, Any]) -> tuple[str, ...]:
    name = " ".join(filter(None, (event["algorithm"], event["drafter"])))
    return name, event["severity"], "no" if event["refused"] else "yes", event["text"]


def _figure(value: float | None) -> str:
    """Of the goal's metric, to three digits or more."""
    return _number(value, 1 if value is None or value >= 10 else 2)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"
