"""The verb inspect: is this drafter fit for this target, and which algorithm is it for; nothing is launched.

    python -m orchestrator inspect DRAFTER target=TARGET [algorithm=… context_length=… tp_size=… version=…] [--json]

Not here: the checks (sweeps/drafter.py), what a sweep does about them (drafters.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.errors import ConfError
from orchestrator.nearest import near, nearest
from sweeps.checkpoint import Checkpoint, on_disk, read_checkpoint
from sweeps.drafter import algorithm_of, inspect_drafter
from sweeps.facts import KNOWN_VERSIONS
from sweeps.finding import Finding, shown
from sweeps.settings import ALGORITHMS

OK, MISTAKE = 0, 2
WORDS = ("target", "algorithm", "context_length", "tp_size", "version")
USAGE = "python -m orchestrator inspect DRAFTER target=TARGET [algorithm=… context_length=… tp_size=… version=…]"


@dataclass(frozen=True)
class Asked:
    drafter: str
    target: str
    algorithm: str | None
    """None: what the drafter is for."""
    context_length: int | None
    tp_size: int
    version: str


def inspect_command(words: list[str], as_json: bool) -> int:
    asked = _asked(words)
    drafter, target = read_checkpoint(asked.drafter), read_checkpoint(asked.target)
    found = inspect_drafter(
        drafter, target, asked.algorithm, asked.version, asked.context_length, asked.tp_size
    )  # fmt: skip
    fit = all(one.severity != "error" for one in found)
    print(_json(asked, drafter, target, found, fit) if as_json else _text(asked, drafter, target, found, fit))
    return OK if fit else MISTAKE


def _asked(words: list[str]) -> Asked:
    """Raises ConfError with every mistake of the words."""
    bare = [word for word in words if word.partition("=")[0] not in WORDS]
    given = dict(word.split("=", 1) for word in words if word not in bare and "=" in word)
    mistakes = [f"inspect: {shown(word)}: {_unknown(word)}" for word in bare[1:]]
    if not bare:
        mistakes.append(f"inspect takes a drafter's directory first: {USAGE}")
    if "target" not in given:
        mistakes.append(f"inspect: target: missing, the directory of the target model: {USAGE}")
    places = {"drafter": bare[0] if bare else "", "target": given.get("target", "")}
    places = {what: _place(path) for what, path in places.items()}
    mistakes += [_away(what, path) for what, path in places.items() if path and not Path(path).is_dir()]
    algorithm = given.get("algorithm")
    if algorithm is not None and algorithm not in ALGORITHMS[1:]:
        mistakes.append(
            f"inspect: algorithm: {shown(algorithm)} is not one of {', '.join(ALGORITHMS[1:])}.{nearest(algorithm, ALGORITHMS, ())}"
        )
    numbers = {name: _number(name, given[name], mistakes) for name in ("context_length", "tp_size") if name in given}
    if mistakes:
        raise ConfError(mistakes)
    return Asked(
        **places, algorithm=algorithm, context_length=numbers.get("context_length"), tp_size=numbers.get("tp_size", 1),
        version=given.get("version") or KNOWN_VERSIONS[0],
    )  # fmt: skip


def _place(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~/") else path


def _away(what: str, path: str) -> str:
    if on_disk(path):
        wrong = "is no directory" if Path(path).exists() else "is not there"
        return f"inspect: {what}: {shown(path)} {wrong}.{_beside(path)} Give the directory that holds its config.json."
    return (
        f"inspect: {what}: {shown(path)} is not on this disk. If it is a name on a hub, download it first and give its "
        "directory: inspect reads local directories only."
    )


def _beside(path: str) -> str:
    """The directories with a config.json that stand next to it under a similar name; empty where there are none."""
    there = {config.parent.name: config.parent for config in Path(path).parent.glob("*/config.json")}
    meant = [f"'{there[name]}'" for name in near(Path(path).name, there)]
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def _unknown(word: str) -> str:
    name, equals, _ = word.partition("=")
    if not equals:
        return f"one drafter at a time. {USAGE}"
    return f"no such key.{nearest(name, WORDS)}"


def _number(name: str, text: str, mistakes: list[str]) -> int:
    """At least 1; a mistake is noted, and 1 stands in."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
    if number < 1:
        mistakes.append(f"inspect: {name}: {shown(text)} is no whole number above 0.")
    return max(number, 1)


def _json(asked: Asked, drafter: Checkpoint, target: Checkpoint, found: list[Finding], fit: bool) -> str:
    return json.dumps(
        {
            **asdict(asked), "algorithm": asked.algorithm or algorithm_of(drafter), "is_for": algorithm_of(drafter),
            "architecture": drafter.architecture, "target_architecture": target.architecture,
            "fingerprint": drafter.fingerprint, "fit": fit, "findings": [asdict(one) for one in found],
        }
    )  # fmt: skip


def _text(asked: Asked, drafter: Checkpoint, target: Checkpoint, found: list[Finding], fit: bool) -> str:
    algorithm = algorithm_of(drafter)
    served = asked.context_length or target.context_length
    lines = [
        f"drafter  {shown(asked.drafter)}: {_about(drafter)}",
        f"target   {shown(asked.target)}: {_about(target)}",
        f"as       {asked.algorithm or algorithm or 'nothing known'}, SGLang {asked.version}, context length {served}, tp_size {asked.tp_size}",
        "",
        *(f"{one.severity:<8} {one.check}: {one}" for one in found),
        "",
        _verdict(found, fit, asked.algorithm or algorithm),
    ]
    return "\n".join(lines)


def _about(checkpoint: Checkpoint) -> str:
    if not checkpoint.config:
        return "cannot be read"
    sizes = {
        "hidden_size": checkpoint.whole("hidden_size"), "layers": checkpoint.whole("num_hidden_layers"),
        "vocab_size": checkpoint.whole("vocab_size"), "draft_vocab_size": checkpoint.whole("draft_vocab_size"),
        "context": checkpoint.context_length, "tensors": len(checkpoint.tensors) if checkpoint.tensors is not None else None,
    }  # fmt: skip
    words = [f"{name} {size}" for name, size in sizes.items() if size is not None]
    return ", ".join([shown(checkpoint.architecture or "no architecture"), *words])


def _verdict(found: list[Finding], fit: bool, algorithm: str | None) -> str:
    counts = {severity: sum(one.severity == severity for one in found) for severity in ("error", "warning")}
    said = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    if not fit:
        return f"Not fit: {', '.join(said)}."
    return f"Fit, as {algorithm}: no errors{''.join(f', {words}' for words in said)}."
