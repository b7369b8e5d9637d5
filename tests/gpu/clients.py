"""Our client beside sglang.bench_serving on a server that already runs: do two programs read the same speed?

    python -m tests.gpu.clients out=DIR url=http://127.0.0.1:PORT [passes=3] [log=SERVER.log] conf=… [key=value …]

Config and words are those of a sweep that would launch such a server (engine.name sglang: target.path, engine.python and
engine.env as there), or say engine.name=attached.  At each concurrency both clients ask the same prompts in the same order,
the cache flushed and the server warmed up alike before each pass; passes are interleaved: own, bench, bench, own, ….
A speculative server's speed moves by 10 % and more from pass to pass.  With `log` each pass is also divided by the pace that the
server itself logged in it, which leaves what the clients read differently (`paced`).
Prints a line a pass and a table of medians; everything goes to DIR/clients.json.  Reads no network: the tokenizer is the
target's directory.  A pass of bench_serving costs some ten seconds of imports beside its load.
Not a test by itself: it needs a server, its engine and minutes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.config import load_plan
from orchestrator.engines.attached import server_info
from orchestrator.gpus import GpuSet
from orchestrator.plan import Plan
from orchestrator.worker import Worker
from results.measurement import Measurement
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.space import SearchSpace
from sweeps.trial import LoadPoint, Trial
from tests.gpu.strikes import say

OWN, BENCH = "own", "bench_serving"
AGREED_WITHIN = 0.02
COMPARED = (
    "output_tok_s",
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "tpot_p50_ms",
    "output_tokens",
)
"""What both clients tell.  ITL is not among it: bench_serving divides a chunk's gap by its tokens."""
KEPT = (
    *COMPARED,
    "itl_p50_ms",
    "requests",
    "input_tokens",
    "success_rate",
    "acceptance_length",
    "achieved_concurrency",
)
SHIM = Path(__file__).parent / "without_datasets"
OURS = ("out=", "url=", "passes=", "log=")
FLUSHED = "Cache flushed"
"""What the server logs before the warm-up and before what is measured."""
DECODED = re.compile(r"Decode batch.*#running-req: (\d+).*accept len: ([\d.]+).*gen throughput \(token/s\): ([\d.]+)")
FULL = 0.9
"""Share of the most requests that ever ran at once from which a server counts as fully loaded."""


def plans(words: list[str], url: str) -> dict[str, Plan]:
    """The plan of each client; nothing is chosen of a server that runs."""
    found = {}
    for client in (OWN, BENCH):
        plan = load_plan([*words, f"workload.client={client}"])
        engine = dataclasses.replace(plan.engine, name="attached", url=url, env=_environment(plan))
        found[client] = dataclasses.replace(plan, engine=engine, space=SearchSpace({}))
    return found


def _environment(plan: Plan) -> dict[str, str]:
    """`engine.env`, with a stand-in for `datasets` where the engine has none: bench_serving starts with its import."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('datasets') is None)"
    env = dict(plan.engine.env)
    lacks = subprocess.run([str(plan.engine.python), "-c", ask], env={**os.environ, **env}, check=False).returncode
    path = [str(SHIM), *filter(None, [env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])]
    return {**env, "PYTHONPATH": os.pathsep.join(path)} if lacks else env


def order(passes: int) -> Iterator[str]:
    """Own, bench, bench, own, own, …: whatever drifts meanwhile meets both alike."""
    for number in range(passes):
        yield from (OWN, BENCH) if number % 2 == 0 else (BENCH, OWN)


def measured(worker: Worker, number: int, concurrency: int) -> Record:
    """One pass.  Raises SystemExit with the worker's words when nothing was measured."""
    trial = Trial(number, Settings(), "baseline", (LoadPoint(concurrency, 0),))
    row = next(event for event in worker.run(trial) if isinstance(event, Record))
    if row.measurement is None:
        raise SystemExit(f"nothing was measured: {row.failure.message if row.failure else row.flags}")
    return row


def pace_tok_s(log: str) -> float | None:
    """A speculative server's speed at full load since its cache was flushed last, by its log; None: too little is there.

    Tokens over time, each decode line standing for equally many steps.  The first may reach back into the warm-up.
    """
    lines = [(int(r), float(a), float(s)) for r, a, s in DECODED.findall(log.rpartition(FLUSHED)[2])][1:]
    most = max((running for running, _, _ in lines), default=0)
    full = [(running * accepted, speed) for running, accepted, speed in lines if running >= FULL * most and speed > 0]
    time = sum(tokens / speed for tokens, speed in full)
    return sum(tokens for tokens, _ in full) / time if time else None


def told(measurement: Measurement) -> dict[str, Any]:
    return {name: getattr(measurement, name) for name in KEPT}


def compared(passes: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Of each metric the median of either client, and theirs over ours."""
    found = {}
    for name in (*COMPARED, "paced"):
        values = {c: [p[name] for p in passes if p["client"] == c and p.get(name) is not None] for c in (OWN, BENCH)}
        own, bench = (median(v) if v else None for v in values.values())
        found[name] = {OWN: own, BENCH: bench, "ratio": bench / own if own and bench is not None else None}
    return found


def line(one: dict[str, Any]) -> str:
    flags = f"  {', '.join(one['flags'])}" if one["flags"] else ""
    return (
        f"concurrency {one['concurrency']:>3}  {one['client']:<13} {one['output_tok_s']:9.1f} tok/s"
        f"  TTFT p50 {one['ttft_p50_ms']:8.2f} ms  TPOT p50 {one['tpot_p50_ms'] or 0:7.3f} ms"
        f"  {one['output_tokens']} tokens of {one['requests']} requests{flags}"
    )


def table(medians: dict[int, dict[str, dict[str, float | None]]]) -> str:
    rows = ["| concurrency | metric | own, median | bench_serving, median | bench ÷ own |", "|---|---|---|---|---|"]
    for concurrency, metrics in medians.items():
        for name, value in metrics.items():
            ratio = f"{value['ratio']:.4f}" if value["ratio"] is not None else "–"
            rows.append(f"| {concurrency} | {name} | {_number(value[OWN])} | {_number(value[BENCH])} | {ratio} |")
    return "\n".join(rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3f}"


def verdict(medians: dict[int, dict[str, dict[str, float | None]]]) -> str:
    off = {c: abs((m["output_tok_s"]["ratio"] or 0) - 1) for c, m in medians.items()}
    apart = ", ".join(f"{100 * share:.2f} % at concurrency {c}" for c, share in off.items())
    paced = ", ".join(f"{100 * abs(r - 1):.2f} % at {c}" for c, m in medians.items() if (r := m["paced"]["ratio"]))
    agreed = "agree" if max(off.values()) <= AGREED_WITHIN else "DO NOT AGREE"
    return f"output_tok_s: the clients {agreed} within {100 * AGREED_WITHIN:.0f} %: apart by {apart}" + (
        f"; as shares of the server's own pace in each pass: {paced}" if paced else ""
    )


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words if word.startswith(OURS))
    out, passes = Path(given["out"]).resolve(), int(given.get("passes", "3"))
    log = Path(given["log"]) if "log" in given else None
    info = server_info(given["url"])
    both = plans([word for word in words if not word.startswith(OURS)], given["url"])
    run = RunDir.at(out)
    workers = {client: Worker(plan, run, GpuSet(())) for client, plan in both.items()}
    found: list[dict[str, Any]] = []
    rows: list[Record] = []
    medians: dict[int, dict[str, dict[str, float | None]]] = {}
    for concurrency in both[OWN].workload.concurrency:
        for client in order(passes):
            rows.append(measured(workers[client], len(rows), concurrency))
            assert rows[-1].measurement
            found.append({"concurrency": concurrency, "client": client, **told(rows[-1].measurement)})
            if log is not None and (pace := pace_tok_s(log.read_text(errors="replace"))):
                found[-1] |= {"server_pace_tok_s": pace, "paced": found[-1]["output_tok_s"] / pace}
            found[-1]["flags"] = [str(flag) for flag in rows[-1].flags]
            say(line(found[-1]))
        medians[concurrency] = compared([one for one in found if one["concurrency"] == concurrency])
    (out / "clients.json").write_text(json.dumps({
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"), "url": given["url"], "passes": passes,
        "engine_version": info.get("version"), "target": both[OWN].target.path or info.get("model_path"),
        "settings": rows[0].settings.as_dict() if rows[0].settings else None, "workload": rows[0].origin.workload,
        "cores": os.cpu_count(), "load_average": os.getloadavg(), "medians": medians, "each": found,
    }, indent=1))  # fmt: skip
    print(f"\n{rows[0].settings}\n\n{table(medians)}\n\n{verdict(medians)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
