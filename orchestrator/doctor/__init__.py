"""The verb doctor: what this machine has and lacks for a sweep, and what to do about it.

    python -m orchestrator doctor                       the machine alone
    python -m orchestrator doctor conf=eagle3 key=…     also what that conf needs
    python -m orchestrator doctor clean=true [out=DIR]  first end what killed runs left, by our marker only

Nothing is launched but, once each, the engine's interpreter and a process that joins the Ray of `cluster.address`.
Not here: the looks themselves, a file a group in this package.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.doctor.check import Check, Level, Question, ask
from orchestrator.doctor.packages import packages, requirements
from orchestrator.errors import ConfError

if TYPE_CHECKING:
    from orchestrator.plan import Plan

OK, FOUND_RED = 0, 2
COLOURS = {Level.GREEN: "green", Level.YELLOW: "yellow", Level.RED: "bold red"}
CLEAN_S = 60.0

Answers = list[tuple[str, Check]]
"""(group, check), in the order in which they are shown."""


def doctor_command(words: list[str], as_json: bool) -> int:
    clean, rest = _clean_word(words)
    answers: Answers = [("Product", check) for check in packages(requirements())]
    if any(check.level is Level.RED for _, check in answers):  # the other looks need some of these packages themselves
        sys.stdout.write(_as_json(answers) if as_json else _plain(answers))
        return FOUND_RED
    answers += _look(rest, clean)
    if as_json:
        sys.stdout.write(_as_json(answers))
    else:
        _show(answers)
    return FOUND_RED if any(check.level is Level.RED for _, check in answers) else OK


def _clean_word(words: list[str]) -> tuple[bool, list[str]]:
    """Whether `clean=true` was given, and the words of the conf."""
    given = [word for word in words if word.startswith("clean=")]
    if wrong := [word for word in given if word not in ("clean=true", "clean=false")]:
        raise ConfError([f"command line: {wrong[0]}: clean takes true or false."])
    return given[-1:] == ["clean=true"], [word for word in words if word not in given]


def _look(words: list[str], clean: bool) -> Answers:
    """Cleaning comes first, so that everything else is seen as it is afterwards."""
    from orchestrator.doctor.conf import mistakes

    plan, wrong = _plan(words)
    out = plan.out if plan else Path("runs").absolute()
    conf_given = any(word.startswith("conf=") for word in words)
    cleaned = ask(_leftovers(out, clean))
    machine = ask(_of_the_machine(plan if conf_given else None, out))
    needs = ask(_of_the_conf(plan)) if plan and conf_given else []
    found = [(question.group, check) for question, checks in (*machine, *needs, *cleaned) for check in checks]
    return [*found, *(("Config", check) for check in mistakes(wrong))] if wrong else found


def _plan(words: list[str]) -> tuple[Plan | None, ConfError | None]:
    """Whatever can be said about a conf is said together with the rest."""
    from orchestrator.config import load_plan

    if not words:
        return None, None
    others = [word for word in words if not word.startswith("out=")]
    if not any(word.startswith("conf=") for word in words) and others:
        raise ConfError([f"command line: {others[0]}: without conf= doctor looks at the machine, and takes clean=true and out=DIR only."])  # fmt: skip
    try:
        return load_plan(words, to_run=False, otherwise="demo"), None
    except ConfError as error:
        return None, error


def _leftovers(out: Path, clean: bool) -> list[Question]:
    from orchestrator.doctor.leftovers import leftovers, ray_folders

    return [
        Question("Earlier runs", "leftovers", lambda: leftovers(out, clean), CLEAN_S),
        Question("Earlier runs", "Ray's folders", lambda: ray_folders(clean), CLEAN_S),
    ]


def _of_the_machine(plan: Plan | None, out: Path) -> list[Question]:
    from orchestrator.doctor import cards, disk, engine, machine

    required = None if plan is None else wants_gpus(plan)
    asked = "all" if plan is None else plan.cluster.gpus
    several = plan is not None and bool(required) and max(map(int, plan.space.domains["tp_size"].values())) > 1
    host = machine.LOOPBACK[0] if plan is None else plan.engine.host
    conf = None if plan is None else plan.engine
    questions = [
        Question("Machine", "CPUs", machine.cpus),
        Question("Machine", "memory", machine.memory),
        Question("Machine", "shared memory", lambda: machine.shared_memory(several_gpus=several)),
        Question("Machine", "limits", machine.limits),
        Question("Machine", "ports", lambda: machine.ports(host)),
        Question("Machine", "clock", lambda: machine.clock(disk.nearest_existing(out))),
        Question("Machine", "environment", machine.environment),
        Question("Disk", "disks", lambda: disk.disks(out)),
        Question("GPUs", "GPUs", lambda: cards.gpus(asked, required)),
    ]
    if required is not False:
        questions.append(Question("Compiling", "compilers", lambda: engine.compilers(conf)))
        questions.append(Question("Compiling", "compiled kernels", lambda: engine.kernel_caches(conf)))
    return questions


def _of_the_conf(plan: Plan) -> list[Question]:
    from orchestrator.doctor import conf, engine

    questions = [
        Question("Config", "checkpoints", lambda: conf.checkpoints(plan), conf.ANSWERS_S),
        Question("Config", "drafters", lambda: conf.drafters(plan)),
        Question("Config", "prompts", lambda: conf.prompts(plan), 60.0),
        Question("Config", "server_args", lambda: conf.arguments(plan), 60.0),
        Question("Config", "Ray cluster", lambda: conf.cluster(plan), conf.ANSWERS_S),
    ]
    if plan.engine.name not in ("attached", "replay"):  # these start no server
        questions.insert(-1, Question("Config", "tp_size", lambda: conf.tensor_parallel(plan)))
    if plan.engine.name == "sglang":
        look = Question("Engine", "interpreter", lambda: engine.engine(plan.engine, wants_gpus(plan)), engine.PROBE_S + 15)  # fmt: skip
        questions.insert(0, look)
    return questions


def wants_gpus(plan: Plan) -> bool:
    """Whether this machine's GPUs are needed."""
    return plan.engine.name != "simulated" and plan.cluster.gpus != "none" and plan.cluster.address == "local"


def _as_json(answers: Answers) -> str:
    found: list[dict[str, Any]] = [
        {"group": group, "name": check.name, "level": check.level, "what": check.what, "remedy": check.remedy}
        for group, check in answers
    ]
    return json.dumps(found, indent=1) + "\n"


def _plain(answers: Answers) -> str:
    lines = [f"{check.level:6} {check.name:18} {check.what} {check.remedy}".rstrip() for _, check in answers]
    return "\n".join([*lines, summary([check for _, check in answers])]) + "\n"


def _show(answers: Answers) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    group = None
    for at, check in answers:
        if at != group:
            group = at
            console.print(Text(f"\n{at}", style="bold"))
        line = Text.assemble("  ", (f"{check.level:6}", COLOURS[check.level]), f" {check.name:18} {check.what}")
        console.print(line, soft_wrap=True)
        if check.remedy:
            console.print(Text(f"{'':28}{check.remedy}"), soft_wrap=True)
    console.print(Text(f"\n{summary([check for _, check in answers])}"), soft_wrap=True)


def summary(checks: Sequence[Check]) -> str:
    """One line, the worst first: `1 red (target), 2 yellow (ninja, swap), 14 green.`"""
    counted = Counter(check.level for check in checks)
    words = []
    for level in (Level.RED, Level.YELLOW):
        names = ", ".join(dict.fromkeys(check.name for check in checks if check.level is level))
        words += [f"{counted[level]} {level} ({names})"] if names else []
    verdict = "Not ready" if counted[Level.RED] else "Ready, with doubts" if counted[Level.YELLOW] else "Ready"
    return f"{verdict}: {', '.join([*words, f'{counted[Level.GREEN]} green'])}."
