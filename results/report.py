"""The report of a run: summary.md for a person, best.yaml for a program, launch.sh to run the winner.

Everything said here comes from the rows and the verdict over them; nothing is judged here.  Not here: the judgement
(verdict.py), the DataFrame for an analyst (`results.load`).
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from results.acceptance import flagged, ineffective
from results.failure import FailureKind
from results.measurement import Flag
from results.record import Record
from results.rundir import RunDir
from results.verdict import SIMULATED, Answer, Contender, Verdict, judge
from sweeps.observation import Goal
from sweeps.settings import Settings, knobs

MOST_SETTINGS = 40
"""Rows of the table of all settings; the rest are counted and left to the Parquet files."""
FRIENDLY_PORT = "30000"
_OF_ONE_LAUNCH = ("--served-model-name", "--nccl-port")
"""Arguments that mark one launch of a sweep and mean nothing to whoever runs the winner."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write_report(
    run: RunDir,
    records: Sequence[Record],
    goal: Goal,
    conf: Mapping[str, Any],
    commands: Mapping[str, Sequence[str]] | None = None,
) -> Verdict:
    """Judge `records` and write summary.md, best.yaml and launch.sh, each whole or not at all.

    `conf` is the resolved config of the run.  `commands` (settings key → the server's command line) goes before what the
    rows themselves remember.

    Raises:
        DiskFull: no room; what could not be written keeps its old content.
    """
    records = flagged(records)
    verdict = judge(records, goal)
    lines = {**_commands(records), **{key: friendly(argv) for key, argv in (commands or {}).items()}}
    run.write_text(run.summary, summary(run, records, verdict))
    run.write_text(run.best, best_yaml(verdict, conf, lines))
    run.write_text(run.launch_script, launch_script(run, verdict, conf, lines), mode=0o755)
    return verdict


def friendly(argv: Sequence[str]) -> tuple[str, ...]:
    """A server's command line without what belongs to one launch, on port 30000."""
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in _OF_ONE_LAUNCH or name == "--port":
            if not equals:
                next(rest, None)
            if name == "--port":
                words += ["--port", FRIENDLY_PORT]
        else:
            words.append(word)
    return tuple(words)


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


def _commands(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """Settings key → the command line of a launch that was measured."""
    return {r.settings.key: friendly(r.origin.argv) for r in records if r.measured and r.origin.argv}


def _winner(answer: Answer) -> Settings | None:
    """What to run at a load point; None only when the plain server wins and was never measured."""
    return answer.settings or answer.best_plain


# summary.md


def summary(run: RunDir, records: Sequence[Record], verdict: Verdict) -> str:
    """The whole text of summary.md."""
    tables = [
        _table_of_answers(verdict), _table_of_drafters(verdict), _table_of_settings(verdict), _table_of_failures(records),
        _table_of_flags(records), _table_of_findings(run),
    ]  # fmt: skip
    parts = [_headline(verdict), *_notes(verdict), *_ineffective(records), *_left_behind(run)]
    for title, header, rows in filter(None, tables):
        parts += [f"## {title}", _caption(verdict, _table(header, rows))]
    return "\n\n".join([*parts, "## Where this comes from", _provenance(run, records, verdict)]) + "\n"


_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def _headline(verdict: Verdict) -> str:
    warning = "**simulated** (a performance model answered, no GPU was measured): " if verdict.simulated else ""
    return f"{warning}**{_escaped(verdict.sentence.removeprefix(SIMULATED))}**"


def _notes(verdict: Verdict) -> list[str]:
    notes = [
        f"- At concurrency {answer.concurrency}: {_escaped(answer.note)}" for answer in verdict.answers if answer.note
    ]
    if any(answer.basis == "assumed" for answer in verdict.answers):
        notes.append(
            "- Intervals marked *assumed*: too few launches were repeated to measure the spread between launches, so "
            "it is taken from experience (12 % for a speculative server, 2 % for the plain one). Relaunches "
            "(`budget.finalists`) settle it."
        )
    ties = [a for a in verdict.answers if a.ties]
    notes += [
        f"- At concurrency {a.concurrency} not to be told apart from {a.best_speculative}: {_listed(a.ties)}."
        for a in ties
    ]
    return ["\n".join(notes)] if notes else []


def _ineffective(records: Sequence[Record]) -> list[str]:
    lines = [
        f"- **{_escaped(' '.join(filter(None, pair)))} is ineffective**: acceptance length {acceptance.length:.2f} over "
        f"{acceptance.verify_steps:.0f} verify steps: it guesses nothing, and was launched no more. Usually EAGLE where "
        "EAGLE3 was meant, or a drafter trained for another target; `python -m orchestrator inspect` shows which fits."
        for pair, acceptance in ineffective(records).items()
    ]
    return ["\n".join(lines)] if lines else []


def _left_behind(run: RunDir) -> list[str]:
    """What servers left behind: those GPUs were not used again."""
    lines = [
        f"- After trial {event.get('trial')} GPUs {_texts(event, 'gpus', ', ') or 'none'}: {_escaped(_texts(event, 'what', '; '))}"
        for event in run.events()
        if event["event"] == "left_behind"
    ]
    return ["\n".join(["**Not handed over clean**, and not used again in that sweep:", "", *lines])] if lines else []


def _texts(event: Mapping[str, Any], name: str, between: str) -> str:
    """A list of an event as one text, whatever a damaged journal holds there."""
    values = event.get(name)
    return between.join(map(str, values)) if isinstance(values, list) else ""


def _listed(settings: Sequence[Settings], most: int = 5) -> str:
    more = f" and {len(settings) - most} more" if len(settings) > most else ""
    return _escaped(", ".join(map(str, settings[:most])) + more)


def _caption(verdict: Verdict, table: str) -> str:
    return f"**simulated**\n\n{table}" if verdict.simulated else table


def _table_of_answers(verdict: Verdict) -> _Table | None:
    if not verdict.answers:
        return None
    unit = verdict.goal.metric
    header = (
        "concurrency", f"plain ({unit})", "best speculative setting", unit, "speedup", "interval (95 %)",
        "over the same plain", "acceptance length", "TTFT p50 (plain), ms", "launches (plain)", "answer",
    )  # fmt: skip
    return "Per load point", header, [_answer_row(answer) for answer in verdict.answers]


def _answer_row(answer: Answer) -> tuple[str, ...]:
    interval = "–"
    if answer.speedup is not None:
        interval = (
            f"[{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]{' *assumed*' if answer.basis == 'assumed' else ''}"
        )
    return (
        str(answer.concurrency), _number(answer.plain_tok_s, 1), str(answer.best_speculative or "–"),
        _number(answer.best_tok_s, 1), _times(answer.speedup), interval, _times(answer.speedup_same),
        _number(answer.acceptance_length, 2), f"{_number(answer.ttft_p50_ms, 1)} ({_number(answer.plain_ttft_p50_ms, 1)})",
        f"{answer.launches} ({answer.plain_launches})", f"**{answer.answer}**",
    )  # fmt: skip


def _table_of_drafters(verdict: Verdict) -> _Table | None:
    """The best of each drafter at each load point, the best drafter first."""
    best: dict[str, dict[int, Contender]] = {}
    for concurrency, contenders in verdict.contenders.items():
        for one in contenders:
            if one.settings.speculative and one.cannot_win is None:
                name = " ".join(filter(None, (one.settings.algorithm, one.settings.drafter)))
                best.setdefault(name, {}).setdefault(concurrency, one)
    if not best:
        return None
    header = ("drafter", *(f"at {concurrency}" for concurrency in verdict.contenders), "acceptance length")
    rows = []
    for name in sorted(best, key=lambda name: -_mean_log(best[name].values())):
        cells = [_best_cell(best[name].get(concurrency)) for concurrency in verdict.contenders]
        lengths = [one.acceptance_length for one in best[name].values() if one.acceptance_length is not None]
        span = f"{min(lengths):.2f} – {max(lengths):.2f}" if lengths else "–"
        rows.append((name, *cells, span))
    return "Drafters, by their best settings", header, rows


def _best_cell(one: Contender | None) -> str:
    if one is None:
        return "–"
    triple = [
        value for value in (one.settings.num_steps, one.settings.eagle_topk, one.settings.num_draft_tokens) if value
    ]
    return " ".join(filter(None, (_times(one.speedup), ".".join(map(str, triple)), one.settings.attention_backend)))


def _table_of_settings(verdict: Verdict) -> _Table | None:
    found: dict[str, dict[int, Contender]] = {}
    for concurrency, contenders in verdict.contenders.items():
        for one in contenders:
            found.setdefault(one.settings.key, {})[concurrency] = one
    if not found:
        return None
    ranked = sorted(found.values(), key=lambda points: -_mean_log(points.values()))
    shown = ranked[:MOST_SETTINGS]
    title = "All settings, by speedup over the best plain server"
    if len(ranked) > len(shown):
        title += f" (the first {MOST_SETTINGS} of {len(ranked)}; the rest is in trials/)"
    header = (
        "settings",
        *(f"at {concurrency}" for concurrency in verdict.contenders),
        "launches",
        "may not win because",
    )
    common = _common(verdict)
    return title, header, [_settings_row(points, list(verdict.contenders), common) for points in shown]


def _settings_row(
    points: Mapping[int, Contender], concurrencies: Sequence[int], common: Mapping[str, str]
) -> tuple[str, ...]:
    one = next(iter(points.values()))
    cells = [_speed_cell(points.get(concurrency)) for concurrency in concurrencies]
    barred = sorted({f"{reason} (at {c})" for c, point in points.items() if (reason := point.cannot_win)})
    return (
        _in_full(one.settings, common),
        *cells,
        str(max(point.launches for point in points.values())),
        "; ".join(barred),
    )


def _speed_cell(one: Contender | None) -> str:
    return "–" if one is None else f"{_times(one.speedup)} ({_number(one.tok_s, 1)})"


def _extras(settings: Settings) -> dict[str, str]:
    """The server's knobs that are given and that the short name leaves out."""
    shown = {"algorithm", "drafter", "num_steps", "eagle_topk", "num_draft_tokens", "attention_backend", "server_args"}
    default = Settings()
    given = {n: getattr(settings, n) for n in knobs() if n not in shown and getattr(settings, n) != getattr(default, n)}
    return {name: str(value) for name, value in {**given, **dict(settings.server_args)}.items() if value is not None}


def _common(verdict: Verdict) -> dict[str, str]:
    """What every setting of the run has: said once instead of in every line."""
    every = [set(_extras(one.settings).items()) for points in verdict.contenders.values() for one in points]
    return dict(sorted(set.intersection(*every))) if every else {}


def _in_full(settings: Settings, common: Mapping[str, str]) -> str:
    """The short name and what tells it from the others, for two settings must not look the same."""
    told = [f"{name}={value}" for name, value in _extras(settings).items() if common.get(name) != value]
    return " ".join([str(settings), *told])


def _mean_log(points: Iterable[Contender]) -> float:
    logs = [math.log(point.speedup) if point.speedup else math.log(point.tok_s) - 99 for point in points]
    return sum(logs) / len(logs)


def _table_of_failures(records: Sequence[Record]) -> _Table | None:
    failed = [record.failure for record in records if record.failure is not None]
    if not failed:
        return None
    rows: list[tuple[str, ...]] = []
    for kind, count in Counter(failure.kind for failure in failed).most_common():
        first = next(failure for failure in failed if failure.kind is kind)
        rows.append((str(kind), str(count), str(first.stage), _short(first.message), FailureKind(kind).remedy))
    return "What failed, by cause", ("cause", "times", "stage", "first message", "what to do"), rows


def _table_of_flags(records: Sequence[Record]) -> _Table | None:
    seen = Counter(flag for record in records for flag in record.flags)
    if not seen:
        return None
    rows: list[tuple[str, ...]] = [
        (str(flag), str(count), str(Flag(flag).effect), flag.doc) for flag, count in seen.most_common()
    ]
    return "What lowers the trust in rows", ("flag", "rows", "effect", "meaning"), rows


def _table_of_findings(run: RunDir) -> _Table | None:
    """What inspection said of the drafters; a resume says it again."""
    found = [event for event in run.events() if event["event"] == "drafter_finding"]
    rows = dict.fromkeys(map(_finding_row, found))
    if not rows:
        return None
    return "What inspection found in the drafters", ("drafter", "severity", "launched", "finding"), list(rows)


def _finding_row(event: Mapping[str, Any]) -> tuple[str, ...]:
    name = " ".join(filter(None, (event["algorithm"], event["drafter"])))
    return name, event["severity"], "no" if event["refused"] else "yes", event["text"]


def _provenance(run: RunDir, records: Sequence[Record], verdict: Verdict) -> str:
    measured = sum(record.measured for record in records)
    launches = {(record.trial, record.attempt) for record in records}
    spent = run.gpu_hours_spent()
    hours = f"{spent:.2f}" if spent else f"about {gpu_hours(records):.2f} (estimated from the rows)"
    facts = {
        "run": str(run.path),
        "engine": _distinct(f"{r.origin.engine} {r.origin.engine_version}" for r in records),
        "target": _distinct(r.origin.target for r in records),
        "GPUs": _distinct(r.origin.gpu_name for r in records),
        "GPU driver": _distinct(r.origin.driver_version for r in records),
        "hosts": _distinct(r.origin.host for r in records),
        "workload": _distinct(r.origin.workload for r in records),
        "all with": ", ".join(f"{name}={value}" for name, value in _common(verdict).items()),
        "measured": _span(records),
        "rows": f"{measured} measured, {len(records) - measured} failed, from {len(launches)} launches",
        "GPU-hours": hours,
        "goal": f"maximize {verdict.goal.maximize}" + "".join(f", {n} ≤ {v:g}" for n, v in verdict.goal.limits.items()),
        "the rows": "`results.load(...)`, or `pandas.read_parquet` on trials/; every column is documented in its schema",
    }
    if verdict.simulated:
        facts = {"**simulated**": "yes: these are a performance model's numbers", **facts}
    return "\n".join(f"- {name}: {_escaped(value)}" for name, value in facts.items() if value)


def _span(records: Sequence[Record]) -> str:
    days = sorted(record.started_at for record in records)
    return f"{days[0]:%Y-%m-%d %H:%M} to {days[-1]:%Y-%m-%d %H:%M} UTC" if days else ""


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value.strip()}))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(text: str) -> str:
    """One line that no pipe of its own cuts into cells."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def _short(text: str, most: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


# best.yaml


def best_yaml(verdict: Verdict, conf: Mapping[str, Any], commands: Mapping[str, Sequence[str]]) -> str:
    """`answers:` per load point and `conf:`, runnable as `conf=best.yaml`."""
    document = {
        "simulated": verdict.simulated,
        "verdict": verdict.sentence,
        "answers": [_answer_entry(answer, commands) for answer in verdict.answers],
        "conf": _held_to(_best_settings(verdict), conf),
    }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Without anchors: the same list twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the dumper's own signature
        return True


def _answer_entry(answer: Answer, commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    winner = _winner(answer)
    return {
        "concurrency": answer.concurrency,
        "settings": _given(answer.settings) if answer.settings else "baseline",
        "speedup": _rounded(answer.speedup),
        "speedup_low": _rounded(answer.speedup_low),
        "speedup_high": _rounded(answer.speedup_high),
        "answer": answer.answer,
        "basis": answer.basis or None,
        "best_speculative": _given(answer.best_speculative) if answer.best_speculative else None,
        "command": list(commands.get(winner.key, ())) if winner else [],
    }


def _given(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.as_dict().items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _best_settings(verdict: Verdict) -> Settings | None:
    """The winner of the load point where speculation pays most, else the plain server that won; None: no verdict."""
    winning = [answer for answer in verdict.answers if answer.settings is not None]
    if winning:
        return max(winning, key=lambda answer: answer.speedup or 0.0).settings
    return next((answer.best_plain for answer in verdict.answers if answer.best_plain), None)


def _held_to(settings: Settings | None, conf: Mapping[str, Any]) -> dict[str, Any]:
    """`conf` with every knob of its space held to the value in `settings`; a knob that has none there is left out."""
    if settings is None:
        return dict(conf)
    held = {name: getattr(settings, name) for name in conf.get("space") or {} if name in knobs()}
    space = {"algorithm": settings.algorithm} | {name: value for name, value in held.items() if value is not None}
    changed: dict[str, Any] = {**conf, "space": space}
    if conf.get("server_args"):
        known = dict(settings.server_args)
        changed["server_args"] = {name: known.get(name, value) for name, value in conf["server_args"].items()}
    return changed


# launch.sh


def launch_script(run: RunDir, verdict: Verdict, conf: Mapping[str, Any], commands: Mapping[str, Sequence[str]]) -> str:
    """A bash script: `./launch.sh 8` runs the winner for concurrency 8, without an argument it prints the table."""
    title = ["SIMULATED: a performance model answered, no GPU was measured.", ""] if verdict.simulated else []
    table = [*title, verdict.sentence, "", *(f"  ./launch.sh {_choice(answer)}" for answer in verdict.answers)]
    cases = [_case(answer, commands) for answer in verdict.answers]
    known = " ".join(str(answer.concurrency) for answer in verdict.answers) or "none: nothing was measured"
    environment = [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in ((conf.get("engine") or {}).get("env") or {}).items()
        if _VARIABLE.fullmatch(str(name))
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# Runs the best server found by {_escaped(str(run.path))}, one load point a case.",
        "set -euo pipefail",
        *environment,
        'case "${1:-}" in',
        *cases,
        "  \"\") printf '%s\\n' " + " ".join(shlex.quote(line) for line in table) + " ;;",
        "  *) printf '%s\\n' \"launch.sh: no load point $1; there is: \"" + shlex.quote(known) + " >&2; exit 2 ;;",
        "esac",
    ]
    return "\n".join(lines) + "\n"


def _choice(answer: Answer) -> str:
    winner = answer.settings or "the plain server"
    speed = f", {answer.speedup:.2f}x [{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]" if answer.speedup else ""
    about = f" for {answer.best_speculative}" if answer.settings is None and answer.best_speculative else ""
    return f"{answer.concurrency:<5} {winner} ({answer.answer}{speed}{about})"


def _case(answer: Answer, commands: Mapping[str, Sequence[str]]) -> str:
    winner = _winner(answer)
    words = commands.get(winner.key, ()) if winner else ()
    if not words:
        return f"  {answer.concurrency}) echo 'launch.sh: no command is known for this load point; see summary.md' >&2; exit 1 ;;"
    return f"  {answer.concurrency}) exec {shlex.join(words)} ;;"
