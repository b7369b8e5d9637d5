"""How long rows take to load and to take up: a run of many trials, as it stands and compacted, beside plain pandas.

    python benchmarks/ledger.py [trials=1000] [compacted=10000] [folder=DIR]

Every figure is the median of three, each in a process of its own, on files that were just written; a ratio is against
`pandas.read_parquet` of the same folder in the same run.  Seconds are by the clock; beside them those the process itself
had a core for, which say what an idle machine would have taken (pandas reads on all cores).  `resume` is what a resumed driver does before it draws its first
trial: Ledger.open (tidy, read, check), a sampler taught with every row, and a Schedule that recalls what was begun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import pandas as pd
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import results  # noqa: E402
from orchestrator.facts import facts_of  # noqa: E402
from orchestrator.plan import Budget, Workload  # noqa: E402
from orchestrator.schedule import Schedule  # noqa: E402
from orchestrator.sweep import _sampler  # noqa: E402
from results.ledger import Ledger, _parquet, compact  # noqa: E402
from results.rundir import RunDir  # noqa: E402
from sweeps.settings import Settings  # noqa: E402
from sweeps.space import Range  # noqa: E402
from sweeps.trial import LoadPoint, Trial  # noqa: E402
from tests.fakes.plans import plan  # noqa: E402
from tests.fakes.records import measured  # noqa: E402

POINTS = (1, 8, 32)
TIMES = 3

LIMITS_S = {("trials", "load"): 4.0, ("trials", "resume"): 6.0, ("compacted", "load"): 2.0}


def main(words: list[str]) -> None:
    given = {"trials": "1000", "compacted": "10000", "folder": "", **dict(word.split("=", 1) for word in words)}
    with tempfile.TemporaryDirectory(dir=given["folder"] or None) as folder:
        for name in ("trials", "compacted"):
            report(name, Path(folder) / name, int(given[name]))


def report(name: str, path: Path, trials: int) -> None:
    """Make a run, time every way to read it, say it."""
    make(path, trials)
    if name == "compacted":
        began = time.perf_counter()
        compacted(path)
        print(f"{trials:,} trials were compacted in {time.perf_counter() - began:.1f} s")
    size_mib = sum(file.stat().st_size for file in (path / "trials").iterdir()) / 2**20
    print(
        f"\n{trials:,} trials, {trials * len(POINTS):,} rows, {size_mib:.0f} MiB in trials/, {'' if name == 'compacted' else 'not '}compacted"
    )
    print(f"  others on {os.cpu_count()} cores just now: load average {os.getloadavg()[0]:.1f}")
    plain_s, plain_cpu_s = timed("pandas", path)
    kinds = ["load", "records", "resume"] if name == "trials" else ["load", "records", "pandas of the compacted file"]
    print(f"  {'':42} clock    CPU      clock against pandas")
    print(f"  {NAMES['pandas']:42} {plain_s:6.2f} s {plain_cpu_s:6.2f} s  1.00", flush=True)
    for kind in kinds:
        spent_s, cpu_s = timed(kind, path)
        limit_s = LIMITS_S.get((name, kind))
        says = "" if limit_s is None else f"   limit {limit_s:g} s: {'met' if spent_s <= limit_s else 'MISSED'}"
        print(f"  {NAMES[kind]:42} {spent_s:6.2f} s {cpu_s:6.2f} s  {spent_s / plain_s:.2f}{says}", flush=True)


NAMES = {
    "pandas": "pandas.read_parquet(trials/)",
    "load": "results.load(run)",
    "records": "results.load_records(run)",
    "resume": "resume: ledger, sampler, schedule",
    "pandas of the compacted file": "pandas.read_parquet(compact/)",
}


def timed(kind: str, path: Path) -> tuple[float, float]:
    """Seconds of one way to read, by the clock and of CPU, the imports not counted."""
    words = [sys.executable, __file__, "one", kind, str(path)]
    done = [subprocess.run(words, capture_output=True, text=True, check=True, env=environment()) for _ in range(TIMES)]
    figures = [tuple(map(float, one.stdout.split()[-2:])) for one in done]
    return median(figure[0] for figure in figures), median(figure[1] for figure in figures)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def one(kind: str, path: Path) -> None:
    """Print the seconds of one way to read, by the clock and of CPU."""
    run = RunDir(path)
    ways = {
        "pandas": lambda: pd.read_parquet(run.trials_dir),
        "load": lambda: results.load(run),
        "records": lambda: results.load_records(run),
        "resume": lambda: resume(run),
        "pandas of the compacted file": lambda: pd.read_parquet(run.compact_file),
    }
    began, began_cpu = time.perf_counter(), time.process_time()
    ways[kind]()
    print(time.perf_counter() - began, time.process_time() - began_cpu)


def resume(run: RunDir) -> None:
    """Everything between the word `resume` and the first launch that grows with the run."""
    wide = {"num_steps": Range(1, 16), "num_draft_tokens": Range(2, 128)}
    asked = plan(wide, workload=Workload(concurrency=list(POINTS)), budget=Budget(launches=100_000, finalists=0))
    ledger = Ledger.open(run)
    facts = facts_of(asked)
    Schedule(asked, run, ledger, _sampler(asked, run, ledger, facts), lambda: None, facts)


def make(path: Path, trials: int) -> None:
    """A run as a sweep leaves it: begun/, trials/ and a journal; rows as wide as real ones."""
    run = RunDir.at(path)
    run.journal.note("sweep_started")
    for number in range(trials):
        settings = Settings(
            algorithm="EAGLE3", drafter="own", num_steps=1 + number % 16, eagle_topk=2, num_draft_tokens=2 + number % 127,
            attention_backend="fa3", max_running_requests=8,
        )  # fmt: skip
        rows = [
            measured(
                settings, 100.0 + number % 97, trial=number, launch=number // 2032, concurrency=concurrency,
                ttft_p99_ms=80.0, tpot_p50_ms=6.5, itl_p99_ms=12.0, workload="w", requests=48, input_tokens=9000,
            )
            for concurrency in POINTS
        ]  # fmt: skip
        points = tuple(LoadPoint(concurrency, 0) for concurrency in POINTS)
        coordinates = {"num_steps": settings.num_steps, "draft_fill": 0.5, "eagle_topk": 2, "drafter": "own"}
        begun = Trial(number, settings, "trial", points, launch=number // 2032, coordinates=coordinates)
        quickly(run, begun)
        run.trial_file(number).write_bytes(_parquet(rows))
        run.journal.note("trial_ended", trial=number, held_s=180.0, gpus=["0"], complete=True)


def quickly(run: RunDir, trial: Trial) -> None:
    """As RunDir.begin, without waiting for the disk."""
    entry = {
        "trial": trial.number, "attempt": 1, "kind": trial.kind, "launch": trial.launch, "settings": trial.settings.as_dict(),
        "load_points": [[p.concurrency, p.repeat] for p in trial.load_points], "coordinates": dict(trial.coordinates),
        "started_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    run.begun_file(trial.number).write_text(json.dumps(entry, indent=1))


def compacted(path: Path) -> None:
    run = RunDir(path)
    assert compact(run)
    assert pq.read_metadata(run.compact_file).num_rows == sum(1 for _ in run.trials_dir.iterdir()) * len(POINTS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
