"""The same server launched plainly, with imports side by side, and from a standby: what is saved, and is it the same server?

    python -m tests.gpu.launch_modes out=DIR gpus=0 [modes=plain,overlap,standby] [launches=3] [made=beside] conf=… [key=value …]

One setting, the first speculative one of the config (or what the words say: space.num_steps=5 …), is launched `launches`
times in each mode, in turn.  A standby is made while the launch before it boots, as in a sweep; whether that launch is a
plain one or an overlapped one changes from round to round, so that both are measured alone and beside a standby that waits.
(`made=alone`: it is made when nothing else runs, for a machine whose few cores would be shared.)
`gpus=` (none) is for an engine on the CPU.  Each launch: seconds from go to ready (and from the standby's start), token ids of eight greedy
answers, acceptance length and throughput at each concurrency of the config, max_total_num_tokens (leave max_total_tokens out, or
it says nothing), GPU memory before it is told to go and as the server finds it.
Prints a line a launch and a table; all of it goes to DIR/launches.json.  Not a test by itself: it needs an engine and minutes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.engine import ServedEngine
from orchestrator.engines.launching import Departure, Launching, Mode
from orchestrator.facts import facts_of
from orchestrator.gpus import GpuSet, discover, processes, used_mib, wait_free
from orchestrator.measuring.chat_template import ChatTemplate
from orchestrator.measuring.workload import load_prompts
from orchestrator.plan import Plan
from orchestrator.serving.faults import ServerFault
from orchestrator.serving.logs import read_log
from orchestrator.serving.processes import find_marked
from orchestrator.trials import load_points
from results.record import Record
from results.rundir import RunDir
from sweeps.rules import problems, settle
from sweeps.settings import Settings
from sweeps.trial import Trial
from tests.gpu.strikes import say

PROMPTS = 8
TOKENS = 64


@dataclass
class Launched:
    """What was seen of one launch."""

    mode: Mode
    beside: bool
    """Whether a standby waited while it was measured."""
    how: str = ""
    launch_s: float | None = None
    standby_s: float | None = None
    cpu_s: float | None = None
    """CPU seconds of all its processes from go to ready: on a machine that others use, the truer figure."""
    held_mib: dict[str, int] = field(default_factory=dict)
    """GPU memory in use just before it was told to go, less what was in use before the first launch: a standby's."""
    on_gpu: int = 0
    """Processes that the driver finds on the GPUs just before it was told to go."""
    max_total_num_tokens: int | None = None
    free_gb: float | None = None
    """GPU memory that the server found before it loaded weights, by its log."""
    token_ids: list[list[int]] = field(default_factory=list)
    acceptance_length: dict[int, float | None] = field(default_factory=dict)
    """By concurrency."""
    output_tok_s: dict[int, float | None] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    fault: str = ""


class Chosen(Launching):
    """Launches in the mode that is asked for; a standby is made only where the next launch is to use it."""

    next_mode: Mode | None = None
    cpu_s: float | None = None
    """Of the last server, from go to ready."""
    alone = False
    """Whether the standby is made just before it is used, when nothing else runs."""

    def depart(self, *given: Any) -> Departure:
        self._memory_is_known = not self.alone  # what one holds is what is to be seen here
        departure = super().depart(*given)
        self._marker = departure.launch.marker
        self._spent_s = cpu_s(departure.standby.pids() if departure.standby is not None else [])
        return departure

    def hold(self, stopping: threading.Event) -> None:
        """Called as soon as a server is ready."""
        self.cpu_s = cpu_s(find_marked(self._marker)) - self._spent_s
        super().hold(stopping)

    def prepare(self, trial: Trial, departure: Departure) -> None:
        now, self.mode = self.mode, "plain" if self.alone else self.next_mode or "plain"
        super().prepare(trial, departure)
        self.mode = now


class Watched(ServedEngine):
    """Asks each server for its greedy answers before anything else is measured on it."""

    launched: Launched

    def _record(self, trial: Trial, settings: Settings, info: Mapping[str, Any], *more: Any) -> Record:  # type: ignore[override]
        if not self.launched.token_ids:
            draws = [self._prompts.for_point(point) for point in load_points(self._plan)]
            texts = [text for draw in draws for text in (*draw.measured, *chain.from_iterable(draw.warm_up))]
            found = re.search(r"Load weight begin\. avail mem=([\d.]+)", read_log(more[2]))
            self.launched.free_gb = float(found[1]) if found else None
            most = min(TOKENS, self._plan.workload.output_tokens)
            self.launched.max_total_num_tokens = _found(info, "max_total_num_tokens")
            self.launched.token_ids = [greedy(more[1], text, most) for text in list(dict.fromkeys(texts))[:PROMPTS]]
        return super()._record(trial, settings, info, *more)


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds that processes have used, with those of their children that have ended."""
    spent = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def greedy(url: str, text: str, most: int) -> list[int]:
    question = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": most}}
    body = json.dumps(question).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})  # noqa: S310 - always http
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - always http
        return list(json.load(response)["output_ids"])


def _found(info: Any, name: str) -> Any:
    """The first value of this name in what a server says of itself, however deep."""
    if isinstance(info, Mapping):
        here = [info[name]] if info.get(name) is not None else [_found(value, name) for value in info.values()]
        return next((value for value in here if value is not None), None)
    return next((v for v in (_found(value, name) for value in info) if v is not None), None) if isinstance(info, list) else None  # fmt: skip


def order(modes: Sequence[Mode], launches: int) -> list[Mode]:
    """Round after round; whoever comes before the standby, and so is measured beside one that waits, changes."""
    others = [mode for mode in modes if mode != "standby"]
    last = ["standby"] if "standby" in modes else []
    return [mode for turn in range(launches) for mode in [*(others if turn % 2 else others[::-1]), *last]]  # type: ignore[list-item]


def chosen(plan: Plan) -> Settings:
    """The first speculative setting of the space that can run, as the server would settle it."""
    facts = facts_of(plan)
    drafting = [value for value in plan.space.domains["algorithm"].values() if value != "none"]
    points = (settle(settings, facts).settings for settings in plan.space.grid() if settings.algorithm in drafting)
    return next((settings for settings in points if not problems(settings, facts)), plan.space.settings({}))


def run(
    plan: Plan, folder: RunDir, gpus: GpuSet, modes: Sequence[Mode], launches: int, alone: bool
) -> Iterator[Launched]:
    """Each launch as it ends."""
    settings, idle = chosen(plan), used_mib(gpus)
    template = ChatTemplate.from_directory(plan.target.path) if plan.engine.name == "sglang" else None
    engine = Watched(plan, folder, dialect_for(plan), load_prompts(plan.workload, template))
    launching = engine.launching = Chosen(plan, folder, engine.dialect)
    launching.alone = alone
    say(f"{settings} of {plan.engine.name} {engine.dialect.version}, {launches} launches in each of {', '.join(modes)}")
    turns: list[Mode] = order(modes, launches)
    for number, mode in enumerate(turns):
        launching.mode, launching.next_mode = mode, next(iter(turns[number + 1 :]), None)
        before = {id_: used - idle.get(id_, 0) for id_, used in used_mib(gpus).items()}
        waits = launching.next_mode == "standby" and not alone
        engine.launched = Launched(mode, beside=waits, held_mib=before, on_gpu=len(processes(gpus)))
        trial = Trial(number, settings, "trial", load_points(plan))
        try:
            for event in engine.run(trial, gpus, threading.Event(), threading.Event()):
                if isinstance(event, Record):
                    _note(engine.launched, event)
        except (ServerFault, OSError) as error:
            engine.launched.fault = f"{type(error).__name__}: {error}"
        engine.launched.cpu_s = launching.cpu_s
        engine.launched.how = engine.launched.how or str(engine.origin(trial, gpus).launched)
        engine.launched.left_over += list(engine.teardown.left_over) if engine.teardown else []
        late = wait_free(gpus, idle, timeout_s=2 if waits else 20)
        engine.launched.left_over += [] if waits else late
        yield engine.launched
    launching.next_mode = None
    engine.close()


def _note(launched: Launched, record: Record) -> None:
    assert record.point is not None
    launched.how, launched.launch_s = record.origin.launched or "", record.launch_s
    launched.standby_s = record.origin.standby_s
    measured = record.measurement
    launched.acceptance_length[record.point.concurrency] = measured.acceptance_length if measured else None
    launched.output_tok_s[record.point.concurrency] = measured.output_tok_s if measured else None
    launched.flags = sorted({*launched.flags, *map(str, record.flags)})


def line(launched: Launched, first: Launched) -> str:
    same = sum(a == b for a, b in zip(launched.token_ids, first.token_ids, strict=False))
    speeds = ", ".join(f"{c}: {value:.0f}" for c, value in launched.output_tok_s.items() if value is not None)
    accepted = ", ".join(f"{value:.3f}" for value in launched.acceptance_length.values() if value is not None)
    held = "+".join(map(str, launched.held_mib.values())) or "no"
    standby = f", {launched.standby_s:.1f} s from the standby's start" if launched.standby_s else ""
    ready = (
        f"{launched.launch_s:5.1f} s ({launched.cpu_s or 0:.1f} s of CPU)"
        if launched.launch_s is not None
        else f"failed ({launched.fault[:300]})"
    )
    beside = " beside a standby" if launched.beside else ""
    left = f", LEFT: {launched.left_over}" if launched.left_over else ""
    return (
        f"{launched.mode:8}{ready} from go{standby}; {held} MiB and {launched.on_gpu} processes on the GPU before go; {same}/{len(launched.token_ids)} answers as the first's; "
        f"acceptance {accepted}; tok/s {speeds}; max_total_num_tokens {launched.max_total_num_tokens}, {launched.free_gb} GB free{beside} [{launched.how}]{left}"
    )


def table(seen: Sequence[Launched]) -> list[str]:
    """A row a mode against plain: seconds saved, and each thing that must be the same."""
    plain = [one for one in seen if one.mode == "plain" and one.launch_s is not None]
    rows = ["", "mode      launches  ready s (min-max)   of plain  saved s  CPU s  of plain  ids  acceptance  tokens  held MiB  throughput / plain (plain's own spread)"]  # fmt: skip
    for mode in dict.fromkeys(one.mode for one in seen):
        of_mode = [one for one in seen if one.mode == mode and one.launch_s is not None]
        if of_mode:
            rows.append(_row(mode, of_mode, plain or of_mode))
    alone, beside = ([one for one in plain if one.beside is there] for there in (False, True))
    if alone and beside:
        ready = [median(one.launch_s for one in some if one.launch_s is not None) for some in (beside, alone)]
        rows.append(
            f"plain beside a standby that waits / plain alone: {_speeds(beside, alone)}; "
            f"ready {ready[0]:.1f} s while that is made, {ready[1]:.1f} s alone"
        )
    return [*rows, f"failed: {sum(1 for one in seen if one.launch_s is None)}, with something left: {sum(1 for one in seen if one.left_over)}"]  # fmt: skip


def _row(mode: str, of_mode: Sequence[Launched], plain: Sequence[Launched]) -> str:
    ready = [one.launch_s for one in of_mode if one.launch_s is not None]
    usual = median(one.launch_s for one in plain if one.launch_s is not None)
    first, spent = plain[0], [median(one.cpu_s or 0.0 for one in some) for some in (of_mode, plain)]
    yes = {True: "same", False: "DIFFER"}
    held = max((mib for one in of_mode for mib in one.held_mib.values()), default=0)
    return (
        f"{mode:10}{len(of_mode):8}  {median(ready):7.1f} ({min(ready):.1f}-{max(ready):.1f})  {median(ready) / usual:8.0%}  {usual - median(ready):7.1f}"
        f"  {spent[0]:5.1f}  {spent[0] / spent[1] if spent[1] else 0:8.0%}"
        f"  {yes[all(one.token_ids == first.token_ids for one in of_mode)]}"
        f"  {yes[all(one.acceptance_length == first.acceptance_length for one in of_mode)]}"
        f"  {yes[all(one.max_total_num_tokens == first.max_total_num_tokens for one in of_mode)]}"
        f"  {held:8}  {_speeds(of_mode, plain)}"
    )


def _speeds(some: Sequence[Launched], plain: Sequence[Launched]) -> str:
    """At each concurrency: the ratio of the medians, and how far the plain launches themselves lie apart."""
    found = []
    for concurrency in plain[0].output_tok_s:
        usual = [value for one in plain if (value := one.output_tok_s.get(concurrency))]
        here = [value for one in some if (value := one.output_tok_s.get(concurrency))]
        if usual and here:
            apart = max(usual) / min(usual) - 1
            found.append(f"{concurrency}: {median(here) / median(usual):.3f} ({apart:.1%})")
    return ", ".join(found)


def main(words: list[str]) -> int:
    given = dict(
        word.partition("=")[::2] for word in words if word.split("=")[0] in ("out", "gpus", "modes", "launches", "made")
    )
    plan = load_plan([word for word in words if word.split("=")[0] not in given])
    folder = RunDir.at(Path(given["out"]).absolute())
    ids = [word for word in given.get("gpus", "").split(",") if word]
    gpus = GpuSet(tuple(ids), discover(ids)[0].name if ids else "")
    modes: Any = given.get("modes", "plain,overlap,standby").split(",")
    seen: list[Launched] = []
    for launched in run(plan, folder, gpus, modes, int(given.get("launches", 3)), given.get("made") == "alone"):
        seen.append(launched)
        say(line(launched, seen[0]))
        told = {"words": words, "gpu": gpus.name, "launches": [dataclasses.asdict(one) for one in seen]}
        (folder.path / "launches.json").write_text(json.dumps(told, indent=1))
    print("\n".join(table(seen)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
