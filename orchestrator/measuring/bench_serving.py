"""BenchServing: SGLang's own `bench_serving`, run from the engine's environment over the same prompts, for a cross-check.

It is started as a program; nothing of SGLang is imported here.  Its figures go to the columns that mean the same: throughput,
TTFT, TPOT, tokens.  Left empty are ITL (it divides a chunk's gap by its tokens) and acceptance (it has only the server's
average since start).  Read from SGLang 0.5.17 and 0.5.23, benchmark/serving.py.  Not here: our own client (load.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.measuring.faults import MeasureError
from results.measurement import Measurement

SEED = 1
LEAST_OUTPUT_TOKENS = 4
"""It refuses less."""
_OUTPUT_TAIL = 600


@dataclass(frozen=True)
class BenchServing:
    python: str
    """Interpreter of the engine's environment."""
    environment: Mapping[str, str]
    tokenizer: str
    """Directory or name: the target's."""

    async def run(
        self, url: str, texts: Sequence[str], sampling: Mapping[str, Any], streams: int, **more: Any
    ) -> Measurement:
        """Send `texts` in their order, `streams` at once; `more` are metrics that it does not tell.

        Raises:
            MeasureError: it ended with an error, or no request did well.
        """
        with tempfile.TemporaryDirectory(prefix="bench-serving-") as folder:
            prompts, figures = Path(folder) / "prompts.jsonl", Path(folder) / "figures.jsonl"
            prompts.write_text("".join(_line(text) for text in _unshuffled(texts)), encoding="utf-8")
            words = [self.python, "-m", "sglang.bench_serving", *self._words(url, prompts, figures, sampling)]
            words += ["--num-prompts", str(len(texts)), "--max-concurrency", str(streams)]
            said = await _finished(words, self.environment)
            if not figures.is_file():
                raise MeasureError(f"sglang.bench_serving wrote no figures; it said: …{said[-_OUTPUT_TAIL:]}")
            told = json.loads(figures.read_text(encoding="utf-8").splitlines()[-1])
        return _measurement(told, len(texts), more)

    def _words(self, url: str, prompts: Path, figures: Path, sampling: Mapping[str, Any]) -> list[str]:
        words = ["--backend", "sglang", "--base-url", url, "--dataset-name", "custom", "--dataset-path", str(prompts)]
        words += ["--model", self.tokenizer, "--tokenizer", self.tokenizer, "--output-file", str(figures)]
        words += ["--sharegpt-output-len", str(max(sampling["max_new_tokens"], LEAST_OUTPUT_TOKENS))]
        words += ["--extra-request-body", json.dumps({"sampling_params": dict(sampling)})]
        return [*words, "--warmup-requests", "0", "--seed", str(SEED), "--disable-tqdm"]


def _line(text: str) -> str:
    """Of its dataset `custom`: a conversation whose first turn is asked."""
    return json.dumps({"conversations": [{"content": text}, {"content": "-"}]}) + "\n"


def _unshuffled(texts: Sequence[str]) -> list[str]:
    """In the order from which its shuffle (random.seed(SEED), then one shuffle of all) makes that of `texts`."""
    order = list(range(len(texts)))
    random.Random(SEED).shuffle(order)  # noqa: S311  # an order, not a secret
    placed = dict(zip(order, texts, strict=True))
    return [placed[place] for place in range(len(texts))]


IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""What it printed stands before the traceback it ends with, which is quoted."""


async def _finished(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What it said until it ended; when this is cancelled, it and all that it started are killed."""
    process = await asyncio.create_subprocess_exec(
        *words, env=dict(environment) | IN_ORDER, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return said.decode(errors="replace")


def _measurement(told: Mapping[str, Any], sent: int, more: Mapping[str, Any]) -> Measurement:
    """Raises MeasureError when nothing ended well."""
    if not told.get("completed"):
        raise MeasureError(f"sglang.bench_serving: none of {sent} requests ended well")
    spread = {
        f"{name}_{ours}_ms": told.get(f"{theirs}_{name}_ms")
        for name in ("ttft", "tpot")
        for ours, theirs in (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99"))
    }
    tpot_ms = spread["tpot_p50_ms"]
    return Measurement(
        output_tok_s=told["output_throughput"],
        user_tok_s=1000 / tpot_ms if tpot_ms else None,
        **spread,
        success_rate=told["completed"] / sent,
        requests=sent,
        input_tokens=told["total_input_tokens"],
        output_tokens=told["total_output_tokens"],
        achieved_concurrency=told.get("concurrency"),
        **more,
    )
