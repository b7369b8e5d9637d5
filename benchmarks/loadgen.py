"""How true and how cheap the load generator is: beside AIPerf and sglang.bench_serving, on a server that knows the truth.

    python benchmarks/loadgen.py [levels=1,8,32,128,256] [sglang=PYTHON] [model=DIRECTORY] [aiperf=no]

The server (tests/fakes/paced_server.py) sends every chunk at a time known in advance, several tokens in each, and tells what it
really did; a figure's error is against that, in the same run.  Every tool is started as a program of its own, one after the
other at each level, without warm-up, over the same prompts.  AIPerf is installed into an environment of its own on first use;
bench_serving is that of an SGLang environment (`make engine-sglang-cpu`).  Seconds of CPU are of all processes a tool starts.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fakes.paced import Paced, paced  # noqa: E402

AIPERF = "aiperf==0.13.0"
PEERS = Path.home() / ".cache" / "speculation-sweep" / "peers" / "aiperf"
REQUESTS_PER_STREAM = 6
CHUNKS = 50
TOKENS_PER_CHUNK = [3, 1, 4]
GAPS_S = {1: 0.01, 8: 0.01, 32: 0.02, 128: 0.03, 256: 0.04}
"""Between chunks: larger batches take longer steps."""


@dataclass(frozen=True)
class Read:
    """What a tool says of a run.  Milliseconds; None: it does not say."""

    output_tok_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float | None
    tokens: int
    flags: str = ""
    inside_s: float | None = None
    """Seconds of the measuring alone, where the tool is a part of a longer-lived program."""


@dataclass(frozen=True)
class Run:
    read: Read
    kept: dict[str, Any]
    wall_s: float
    cpu_s: float

    @property
    def traffic_s(self) -> float:
        return float(self.kept["tokens"] / self.kept["output_tok_s"])

    @property
    def right(self) -> bool:
        """Within 1 % or 1 ms of what the server did; a request may have lain unseen at it before it began to count."""
        kept, read = self.kept, self.read
        late_ms = read.ttft_p50_ms - kept["ttft_p50_ms"]
        ttft_allowed_ms = max(0.01 * kept["ttft_p50_ms"], 1.0)
        tpot_off_ms = abs((read.tpot_p50_ms or math.inf) - kept["tpot_p50_ms"])
        return (
            abs(read.output_tok_s / kept["output_tok_s"] - 1) <= 0.01
            and -ttft_allowed_ms <= late_ms <= ttft_allowed_ms + kept["unseen_mean_ms"]
            and tpot_off_ms <= max(0.01 * kept["tpot_p50_ms"], 1.0)
        )


Tool = Callable[[str, int, int, Path], Read]
"""Puts (url, streams, requests) on a server; the folder is the run's own."""


def ours(url: str, streams: int, requests: int, folder: Path) -> Read:
    out = folder / "ours.json"
    subprocess.run([sys.executable, __file__, "measure", url, str(streams), str(requests), str(out)], check=True)
    return Read(**json.loads(out.read_text()))


def measure_here(url: str, streams: int, requests: int, out: Path) -> None:
    """Our own client, as a sweep's worker calls it."""
    from orchestrator.measuring.load import measure
    from orchestrator.measuring.workload import Draw
    from orchestrator.plan import Workload
    from sweeps.trial import LoadPoint

    draw = Draw((), tuple(texts(requests)))
    began_s = time.perf_counter()
    found, flags = measure(url, draw, Workload(concurrency=[streams]), LoadPoint(streams, 0), 60.0)
    inside_s = time.perf_counter() - began_s
    keep = ("output_tok_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms")
    figures = {name: getattr(found, name) for name in keep}
    said = " ".join(flag for flag in flags if flag == "client_bound")
    out.write_text(json.dumps({**figures, "tokens": found.output_tokens, "flags": said, "inside_s": inside_s}))


def aiperf(url: str, streams: int, requests: int, folder: Path) -> Read:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(requests)))
    words = [str(PEERS / "bin" / "aiperf"), "profile", "--model", "paced", "--url", url, "--endpoint-type", "chat"]
    words += ["--streaming", "--concurrency", str(streams), "--request-count", str(requests)]
    words += ["--input-file", str(prompts), "--custom-dataset-type", "single_turn", "--tokenizer", str(PEERS / "words")]
    words += ["--use-server-token-count", "--output-artifact-dir", str(folder / "artifacts"), "--ui", "none"]
    words += ["--no-gpu-telemetry", "--no-server-metrics"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"aiperf: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    said = json.loads((folder / "artifacts" / "profile_export_aiperf.json").read_text())
    ttft, tpot = said["time_to_first_token"], said["inter_token_latency"]
    tokens = round(said["output_sequence_length"]["avg"] * said["request_count"]["avg"])
    return Read(said["output_token_throughput"]["avg"], ttft["p50"], ttft["p99"], tpot["p50"], tokens)


def install_aiperf() -> None:
    """AIPerf, and a tokenizer that needs no network: it loads one even when the server counts."""
    if not (PEERS / "bin" / "aiperf").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(PEERS / "bin" / "python"), "-m", "pip", "install", "-q", AIPERF], check=True)
    make = (
        "import sys; from tokenizers import Tokenizer, models, pre_tokenizers as p; from transformers import"
        " PreTrainedTokenizerFast as F; t = Tokenizer(models.WordLevel({'?': 0}, unk_token='?')); t.pre_tokenizer ="
        " p.Whitespace(); F(tokenizer_object=t, unk_token='?').save_pretrained(sys.argv[1])"
    )
    if not (PEERS / "words").exists():
        subprocess.run([str(PEERS / "bin" / "python"), "-c", make, str(PEERS / "words")], check=True)


def bench_serving(python: str, model: str) -> Tool:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "tests" / "sglang_cpu" / "shim"), "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def run(url: str, streams: int, requests: int, _folder: Path) -> Read:
        import asyncio

        from orchestrator.measuring.bench_serving import BenchServing

        sampling = {"temperature": 0.0, "max_new_tokens": 256}
        told = asyncio.run(BenchServing(python, environment, model).run(url, texts(requests), sampling, streams))
        assert told.output_tok_s
        assert told.ttft_p50_ms
        assert told.ttft_p99_ms
        assert told.output_tokens
        return Read(told.output_tok_s, told.ttft_p50_ms, told.ttft_p99_ms, told.tpot_p50_ms, told.output_tokens)

    return run


def texts(requests: int) -> list[str]:
    return [f"Question {number}: what would you say is the weather like" for number in range(requests)]


def run_once(tool: Tool, server: Paced, streams: int) -> Run:
    requests = max(6, REQUESTS_PER_STREAM * streams)
    server.forget()
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        read = tool(server.url, streams, requests, Path(folder))
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(read, server.kept(), wall_s, cpu_s)


HEAD = (
    "| streams | tool | tok/s | TTFT p50 | TTFT p99 | TPOT p50 | tokens | within | fixed s | CPU s | server late p99 | says |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(streams: int, name: str, run: Run) -> str:
    read, kept = run.read, run.kept
    tpot = "–" if read.tpot_p50_ms is None else f"{read.tpot_p50_ms - kept['tpot_p50_ms']:+.3f} ms"
    fixed = f"{run.wall_s - run.traffic_s:.1f}"
    if read.inside_s is not None:
        fixed += f", {read.inside_s - run.traffic_s:.2f} in a worker"
    return (
        f"| {streams} | {name} | {100 * (read.output_tok_s / kept['output_tok_s'] - 1):+.2f} % |"
        f" {read.ttft_p50_ms - kept['ttft_p50_ms']:+.2f} ms | {read.ttft_p99_ms - kept['ttft_p99_ms']:+.2f} ms | {tpot} |"
        f" {read.tokens - kept['tokens']:+d} | {'yes' if run.right else 'no'} | {fixed} | {run.cpu_s:.2f} |"
        f" {kept['late_p99_ms']:.1f} ms | {read.flags} |"
    )


def marginal(name: str, runs: dict[int, Run]) -> str:
    """CPU per token without what a start costs: between the smallest and the largest level."""
    small, large = runs[min(runs)], runs[max(runs)]
    spent_s, tokens = large.cpu_s - small.cpu_s, large.kept["tokens"] - small.kept["tokens"]
    return f"{name}: {1e6 * spent_s / tokens:.0f} ms of CPU per 1,000 further tokens" if tokens else ""


def main(words: list[str]) -> None:
    given = {
        "levels": "1,8,32,128,256", "sglang": str(ROOT / ".engines/sglang-cpu/bin/python"),
        "model": str(ROOT / ".engines/models/llama6"), "aiperf": "yes", **dict(word.split("=", 1) for word in words),
    }  # fmt: skip
    tools: dict[str, Tool] = {"ours": ours}
    if given["aiperf"] == "yes":
        install_aiperf()
        tools["AIPerf"] = aiperf
    if Path(given["sglang"]).exists():
        tools["bench_serving"] = bench_serving(given["sglang"], given["model"])
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n\n{HEAD}", flush=True)
    found: dict[str, dict[int, Run]] = {name: {} for name in tools}
    for streams in map(int, given["levels"].split(",")):
        script = {"ttft_s": 0.1, "spread_s": 0.1, "itl_s": GAPS_S[streams], "chunks": CHUNKS}
        with paced(**script, tokens_per_chunk=TOKENS_PER_CHUNK) as server:
            for name, tool in tools.items():
                found[name][streams] = run_once(tool, server, streams)
                print(row(streams, name, found[name][streams]), flush=True)
    print()
    for name, runs in found.items():
        print(marginal(name, runs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure_here(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main(sys.argv[1:])
