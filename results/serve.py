"""serve/: how to start the winners with SGLang's own means: a `--config` file a load point, and one server for all loads.

    serve/concurrency-8.yaml    python -m sglang.launch_server --config serve/concurrency-8.yaml
    serve/adaptive.yaml         one server that takes the steps that won at each load (its table is serve/adaptive.json)

SGLang's adaptive steps exist for EAGLE and EAGLE3 chains (topk 1) alone, so serve/adaptive.* is written where the winners are
such chains of one drafter, or the plain server, that differ in their steps and nothing else.  Its table is the schedule of
best.yaml: SGLang takes the largest key that is not above the batch size (as padded to a CUDA graph), so a key is where a
range of loads begins.  Each has one candidate: what was measured, and no probing.  The switching itself was not measured.

Not here: launch.sh (launch.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from results.answer import Answer
from results.files import explained
from results.rundir import RunDir
from results.verdict import Verdict
from sweeps.settings import Settings, passed

SERVER = "sglang.launch_server"


def write_serve(run: RunDir, verdict: Verdict, commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Write what there is to write, take away what an earlier report wrote; names relative to the run directory.

    Raises:
        RunDirProblem: there is no room, or no permission.
    """
    folder = run.path / "serve"
    files = serve_files(verdict, commands)
    with explained(folder, "write the files that start the winners"):
        for stale in folder.glob("*") if folder.is_dir() else ():
            if stale.name not in files:
                stale.unlink()
        if files:
            folder.mkdir(exist_ok=True)
    for name, text in files.items():
        run.write_text(folder / name, text)
    return [f"serve/{name}" for name in files]


def serve_files(verdict: Verdict, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Name → content; empty without a verdict, and for servers that are not SGLang's."""
    files = {}
    for answer in verdict.answers if verdict.reached else ():
        words = commands.get(answer.winner.key, ()) if answer.winner else ()
        if SERVER in words:
            about = f"{answer.winner} at concurrency {answer.concurrency} ({answer.answer})"
            files[f"concurrency-{answer.concurrency}.yaml"] = _config(words, about)
    return files | (_adaptive(verdict, commands) if files else {})


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """A command line of SGLang as the mapping that its `--config` file holds: a flag without a value is true."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words[words.index(SERVER) + 1 :]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return {name: _value(values) for name, values in found.items()}


def schedule(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """What to run from how many to how many streams; `to` of the last is None.

    Between two load points with different winners the change lies at their geometric mean, for nothing was measured there.
    """
    ranges: list[dict[str, Any]] = []
    last: Answer | None = None
    for answer in answers:
        if answer.winner is None:
            continue
        if last is not None and answer.winner == last.winner:
            last = answer
            continue
        if last is not None:
            ranges[-1]["to"] = int((last.concurrency * answer.concurrency) ** 0.5)
        start = ranges[-1]["to"] + 1 if ranges else 1
        ranges.append({"from": start, "to": None, "settings": str(answer.winner), "load_point": answer.concurrency})
        last = answer
    return ranges


def _value(values: Sequence[str]) -> Any:
    if not values:
        return True
    numbers = [dict(passed({"value": value}))["value"] for value in values]
    return numbers[0] if len(numbers) == 1 else numbers


def _config(words: Sequence[str], about: str) -> str:
    head = f"# {about}\n# {shlex.quote(words[0])} -m {SERVER} --config THIS_FILE; further words go before what stands here.\n"
    return head + yaml.safe_dump(arguments(words), sort_keys=False, allow_unicode=True, default_flow_style=False)


def _adaptive(verdict: Verdict, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    winners = {answer.concurrency: answer.winner for answer in verdict.answers if answer.winner is not None}
    chains = [one for one in winners.values() if one.speculative]
    steps = {one["from"]: _steps(winners[one["load_point"]]) for one in schedule(verdict.answers)}
    if not _switchable(list(winners.values()), chains) or len(set(steps.values())) < 2:
        return {}
    deepest = max(chains, key=lambda one: one.num_steps or 0)
    words = commands.get(deepest.key, ())
    if SERVER not in words:
        return {}
    table = {str(start): {"candidate_steps": [count]} for start, count in steps.items()}
    given = arguments(words) | {"speculative-adaptive": True, "speculative-adaptive-config": "serve/adaptive.json"}
    head = (
        "# One server for all loads: SGLang switches the steps by batch size, as serve/adaptive.json says.\n"
        "# A key is where a range of best.yaml's schedule begins; its steps were measured at a load, the switching was not.\n"
        f"# From the run directory: {shlex.quote(words[0])} -m {SERVER} --config serve/adaptive.yaml\n"
    )
    body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return {"adaptive.json": json.dumps(table, indent=2) + "\n", "adaptive.yaml": head + body}


def _steps(settings: Settings) -> int:
    """As SGLang's table counts them: a plain server takes none."""
    return settings.num_steps or 0 if settings.speculative else 0


def _switchable(winners: Sequence[Settings], chains: Sequence[Settings]) -> bool:
    """Whether they differ in nothing that a running server cannot change."""
    kinds = {one.replace(num_steps=None, num_draft_tokens=None).key for one in chains}
    fit = all(one.algorithm in ("EAGLE", "EAGLE3") and one.eagle_topk == 1 for one in chains)
    return len(kinds) == 1 and fit and len({one.plain().key for one in winners}) == 1
