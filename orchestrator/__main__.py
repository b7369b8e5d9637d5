"""The command line: one verb a job, everything else key=value.

    python -m orchestrator sweep conf=eagle3 [out=DIR] [key=value …]   run; prints where the results are
    python -m orchestrator resume RUN_DIR [key=value …]                go on with an interrupted sweep, or add budget
    python -m orchestrator plan conf=eagle3 [key=value …]              launch nothing: what would be launched, every argv
    python -m orchestrator inspect DRAFTER target=TARGET [key=value …] is this drafter fit, and for which algorithm
    python -m orchestrator report RUN_DIR [optuna=FILE]                write the reports of a run anew, and an Optuna study
    python -m orchestrator status RUN_DIR                              how far a running or dead sweep is
    python -m orchestrator compare RUN_A RUN_B                         what changed from one run to another, with intervals
    python -m orchestrator doctor [conf=… key=value …] [clean=true]    what this machine has and lacks for the job

Flags: -h and --json only; `plan conf=… -h` shows every key of a config with its meaning and its value there.
Exit codes: 0 a verdict, 1 a sweep without one, 2 a mistake (one message, no traceback), 130 interrupted and resumable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ConfError, SweepError
from orchestrator.nearest import nearest
from orchestrator.output import OutputLost, ReaderGone, answering

OK, NO_VERDICT, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    as_json = "--json" in given
    try:
        with answering():
            return _answer([word for word in given if word != "--json"], as_json)
    except KeyboardInterrupt:
        _say("Interrupted before anything was launched.")
        return INTERRUPTED
    except ReaderGone:
        return OK
    except (SweepError, OutputLost) as mistake:
        _say(str(mistake))
        return MISTAKE


def _say(words: str) -> None:
    with suppress(OSError):  # standard error is full, or gone
        print(words, file=sys.stderr, flush=True)


def _answer(words: list[str], as_json: bool) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(__doc__, flush=True)
        if words and words[0] in _TAKE_KEYS:
            _print_keys(words[1:])
        return OK if words else MISTAKE
    verb = _VERBS.get(words[0])
    if verb is None:
        raise ConfError([_no_such_verb(words[0])])
    return verb(words[1:], as_json)


def _sweep(words: list[str], as_json: bool) -> int:
    from orchestrator import commands

    return commands.sweep_command(words, as_json)


def _resume(words: list[str], as_json: bool) -> int:
    from orchestrator import commands

    return commands.resume_command(_run_word("resume", words, and_more="key=value"), words[1:], as_json)


def _plan(words: list[str], as_json: bool) -> int:
    from orchestrator.preview import plan_command

    return plan_command(words, as_json)


def _inspect(words: list[str], as_json: bool) -> int:
    from orchestrator.inspection import inspect_command

    return inspect_command(words, as_json)


def _report(words: list[str], as_json: bool) -> int:
    from orchestrator import reading

    path = _run_word("report", words, and_more="optuna=FILE")
    study = dict(word.split("=", 1) for word in words[1:]).get("optuna")
    return reading.report_command(path, as_json, Path(study) if study else None)


def _status(words: list[str], as_json: bool) -> int:
    from orchestrator import reading

    return reading.status_command(_run_word("status", words), as_json)


def _compare(words: list[str], as_json: bool) -> int:
    from orchestrator import reading

    if len(words) != 2 or any(word.startswith("-") or "=" in word for word in words):
        raise ConfError(["compare takes two run directories: python -m orchestrator compare RUN_A RUN_B"])
    return reading.compare_command(Path(words[0]), Path(words[1]), as_json)


def _doctor(words: list[str], as_json: bool) -> int:
    from orchestrator.doctor import doctor_command

    return doctor_command(words, as_json)


_VERBS: dict[str, Callable[[list[str], bool], int]] = {
    "sweep": _sweep, "resume": _resume, "plan": _plan, "report": _report, "status": _status, "compare": _compare,
    "doctor": _doctor, "inspect": _inspect,
}  # fmt: skip


_TAKE_KEYS = ("plan", "sweep", "resume")


def _print_keys(words: list[str]) -> None:
    """Every key of a config, with the values of the one that is named, if it can be read."""
    from orchestrator.config import load_plan
    from orchestrator.config.reference import keys_shown

    given = [word for word in words if "=" in word]
    conf = None
    if any(word.startswith("conf=") for word in given):
        with suppress(ConfError):
            conf = load_plan(given, to_run=False).conf
    print("\n".join(keys_shown(conf)), flush=True)


def _run_word(verb: str, words: list[str], and_more: str = "nothing else") -> Path:
    """The run directory that a verb takes first, and what may follow it."""
    flags = [word for word in words if word.startswith("-")]
    if not flags and (not words or "=" in words[0]):
        raise ConfError([f"{verb} takes a run directory first: python -m orchestrator {verb} runs/<conf>/<stamp>"])
    begins = {"key=value": "", "optuna=FILE": "optuna="}.get(and_more)
    wrong = flags or [word for word in words[1:] if begins is None or not word.startswith(begins) or "=" not in word]
    if wrong:
        why = "flags are -h and --json only" if flags else f"{verb} takes one run directory and {and_more}"
        raise ConfError([f"command line: {word!r}: {why}." for word in wrong])
    return Path(words[0])


def _no_such_verb(word: str) -> str:
    return f"{word!r} is not a verb.{nearest(word, _VERBS, ())} Verbs: {', '.join(_VERBS)}."


if __name__ == "__main__":
    sys.exit(main())
