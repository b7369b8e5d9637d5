"""launch.sh: the winner of each load point as a script, its command line freed of what belonged to one launch.

Not here: launching servers in a sweep (orchestrator/serving).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.answer import Answer
from results.gain import metric_named
from results.record import Record
from results.rundir import RunDir
from results.tables import escaped
from results.verdict import Verdict

FRIENDLY_PORT = "30000"
_OF_ONE_LAUNCH = ("--served-model-name", "--nccl-port")
"""Arguments that mark one launch of a sweep and mean nothing to whoever runs the winner."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


def commands_of(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """Settings key → the friendly command line of a launch that was measured."""
    found = {r.settings.key: r.origin.argv for r in records if r.measured and r.origin.argv}
    return {key: friendly(argv) for key, argv in found.items()}


def launch_script(run: RunDir, verdict: Verdict, conf: Mapping[str, Any], commands: Mapping[str, Sequence[str]]) -> str:
    """A bash script: `./launch.sh 8` runs the winner for concurrency 8, without an argument it prints the table.

    Words after the first go to the server, whose parser lets the last of a flag win.
    """
    title = ["SIMULATED: a performance model answered, no GPU was measured.", ""] if verdict.simulated else []
    table = [
        *title,
        verdict.sentence,
        "",
        *(f"  ./launch.sh {_choice(answer, metric_named(verdict.goal, answer.speedup))}" for answer in verdict.answers),
        *_further_words(verdict, commands),
    ]
    cases = [_case(answer, commands) for answer in verdict.answers]
    known = " ".join(str(answer.concurrency) for answer in verdict.answers)
    environment = [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in ((conf.get("engine") or {}).get("env") or {}).items()
        if _VARIABLE.fullmatch(str(name))
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# Runs the best server found by {escaped(str(run.path))}, one load point a case.",
        "set -euo pipefail",
        *environment,
        'case "${1:-}" in',
        *cases,
        "  \"\") printf '%s\\n' " + " ".join(shlex.quote(line) for line in table) + " ;;",
        "  *) printf '%s\\n' \"launch.sh: no load point $1; there is: \"" + shlex.quote(known) + " >&2; exit 2 ;;",
        "esac",
    ]
    return "\n".join(lines) + "\n"


def _further_words(verdict: Verdict, commands: Mapping[str, Sequence[str]]) -> list[str]:
    """With an example that can be run; empty where none can."""
    known = [answer for answer in verdict.answers if answer.winner and commands.get(answer.winner.key)]
    example = "Further words go to the server and win over these: ./launch.sh {} --port 30001 --host 0.0.0.0"
    return ["", example.format(known[0].concurrency)] if known else []


def _choice(answer: Answer, by: str) -> str:
    winner = answer.settings or ("the plain server" if answer.best_plain else "no answer")
    speed = (
        f", {answer.speedup:.2f}x{by} [{answer.speedup_low:.2f}, {answer.speedup_high:.2f}]" if answer.speedup else ""
    )
    about = f" for {answer.best_speculative}" if answer.settings is None and answer.best_speculative else ""
    said = f"nothing meets {answer.nothing_meets}" if answer.nothing_meets else answer.answer
    return f"{answer.concurrency:<5} {winner} ({said}{speed}{about})"


def _case(answer: Answer, commands: Mapping[str, Sequence[str]]) -> str:
    winner = answer.winner
    words = commands.get(winner.key, ()) if winner else ()
    if not words:
        return f"  {answer.concurrency}) echo 'launch.sh: no command is known for this load point; see summary.md' >&2; exit 1 ;;"
    return f'  {answer.concurrency}) {_warning(answer)}exec {shlex.join(words)} "${{@:2}}" ;;'


def _warning(answer: Answer) -> str:
    """A command that says on standard error that the server breaks a limit; empty where it does not."""
    if not answer.nothing_meets:
        return ""
    text = (
        f"launch.sh: nothing meets {answer.nothing_meets} at concurrency {answer.concurrency}; neither does this server"
    )
    return f"printf '%s\\n' {shlex.quote(text)} >&2; "
