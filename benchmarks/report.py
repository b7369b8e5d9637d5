"""How long a long run's report takes to write and to open, and `status` to answer: a compacted run of many trials.

    python benchmarks/report.py [trials=10000] [folder=DIR]

Rows are as a sweep writes them (three load points a trial, a whole command line); the journal and begun/ are whole.  Each
figure is the median of three, each verb in a process of its own, its imports counted; `opens` is from the click to the load
event in a headless Chromium that has just opened an empty page (left out where there is none).  Not here: reading the rows (ledger.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.config import load_plan, to_yaml  # noqa: E402
from results.begun import entry_of  # noqa: E402
from results.ledger import _MADE_FROM, _bytes, _fingerprint  # noqa: E402
from results.record import Record, schema  # noqa: E402
from results.rundir import RunDir  # noqa: E402
from sweeps.settings import Settings  # noqa: E402
from sweeps.trial import LoadPoint, Trial  # noqa: E402
from tests.fakes.browser import BROWSER, browser  # noqa: E402
from tests.fakes.records import measured  # noqa: E402

POINTS = (1, 8, 32)
TIMES = 3
LAUNCH_S = 120
LIMITS_S = {"report": 10.0, "opens": 2.0, "status": 1.0}


def main(words: list[str]) -> None:
    given = {"trials": "10000", "folder": "", **dict(word.split("=", 1) for word in words)}
    with tempfile.TemporaryDirectory(dir=given["folder"] or None) as folder:
        run = make(Path(folder) / "run", int(given["trials"]))
        size_mib = run.compact_file.stat().st_size / 2**20
        print(f"{given['trials']} trials, {int(given['trials']) * len(POINTS)} rows, compacted to {size_mib:.1f} MiB")
        print(f"others on {os.cpu_count()} cores just now: load average {os.getloadavg()[0]:.1f}")
        say("status", [verb("status", run) for _ in range(TIMES)])
        say("report", [verb("report", run) for _ in range(TIMES)])
        print(f"report.html: {run.report.stat().st_size / 2**20:.1f} MiB")
        if BROWSER is None:
            print("opens: not measured, there is no Chromium here")
        else:
            say("opens", asyncio.run(opens(run.report)))


def say(name: str, figures: list[tuple[float, float]]) -> None:
    clock_s = median(clock for clock, _ in figures)
    cpu_s = median(cpu for _, cpu in figures)
    met = "met" if clock_s <= LIMITS_S[name] else "MISSED"
    cpu = f"{cpu_s:6.2f} s CPU" if cpu_s else " " * 12
    each = ", ".join(f"{clock:.2f}" for clock, _ in figures)
    print(f"{name:8} {clock_s:6.2f} s {cpu}   limit {LIMITS_S[name]:g} s: {met} by the clock   ({each})", flush=True)


def verb(name: str, run: RunDir) -> tuple[float, float]:
    """Seconds by the clock, and of CPU."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "orchestrator", name, str(run.path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), done.stderr
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime


async def opens(page: Path) -> list[tuple[float, float]]:
    """The CPU of a browser is spread over processes that outlive a page: 0 stands for not measured."""
    with tempfile.TemporaryDirectory() as profile:
        async with browser(Path(profile)) as tab:
            await tab.look(1200, dark=False)
            return [(await tab.open(page), 0.0) for _ in range(TIMES)]


def make(path: Path, trials: int) -> RunDir:
    run = RunDir.at(path)
    plan = load_plan(["conf=demo", f"budget.launches={trials}"])
    run.plan.write_text(f"# conf: demo\n{to_yaml(plan)}")
    chance = random.Random(1)  # noqa: S311 - pretended rows, not secrets
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows: list[Record] = []
    lines = [{"at": start.isoformat(), "event": "sweep_started", "conf": "demo"}]
    for number in range(trials):
        found = launch(number, chance)
        rows += found
        run.trial_file(number).write_bytes(b"")  # what is read is the compacted file; its fingerprint is of these names
        trial = Trial(number, found[0].asked, found[0].kind, tuple(LoadPoint(c, 0) for c in POINTS))
        run.begun_file(number).write_text(json.dumps(entry_of(trial)))
        at = start + timedelta(seconds=LAUNCH_S * (number // 2 + 1))
        lines.append({"at": at.isoformat(), "event": "trial_ended", "trial": number, "held_s": LAUNCH_S - 5.0, "gpus": [str(number % 2)], "complete": True})  # type: ignore[dict-item]  # fmt: skip
    run.journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.compact_file.parent.mkdir()
    table = pa.Table.from_pylist([row.row() for row in rows], schema=schema())
    run.compact_file.write_bytes(
        _bytes(table.replace_schema_metadata({**schema().metadata, _MADE_FROM: _fingerprint(run)}))
    )
    return run


def launch(number: int, chance: random.Random) -> list[Record]:
    """One of many settings, a plain server among forty, and now and then the same settings again."""
    backend = f"kernels{number % 4}"
    plain = Settings(attention_backend=backend, max_running_requests=32)
    speculative = plain.replace(
        algorithm="EAGLE3", drafter=chance.choice(["own", "public"]), num_steps=chance.randint(1, 8), eagle_topk=chance.choice([1, 2, 4, 8]),
        num_draft_tokens=chance.randint(2, 64), mem_fraction_static=round(chance.uniform(0.5, 0.9), 2),
    )  # fmt: skip
    settings = plain if number % 40 == 0 else speculative
    gain = 1.0 if not settings.speculative else chance.uniform(0.6, 1.8)
    return [
        measured(
            settings, 100.0 * concurrency**0.8 * gain * chance.uniform(0.98, 1.02), trial=number, launch=number, concurrency=concurrency,
            user_tok_s=100.0 / concurrency**0.2 * gain, acceptance_length=1.0 + gain if settings.speculative else None,
            itl_p50_ms=10.0 * concurrency**0.2 * (1.0 + 0.1 * (settings.num_draft_tokens or 0)) * chance.uniform(0.98, 1.02),
        )
        for concurrency in POINTS
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
