"""Asks an SGLang what it makes of command lines, on GPUs that are only pretended; starts no server.

Runs in SGLang's own interpreter and imports nothing of the product (README.md has the whole command):

    .engines/sglang-cpu/bin/python tests/upstream/resolve.py < questions.jsonl

A question is {"gpu": "sm90", "argv": [words after the program's name]}.  Its answer, one line each and in order, is
{"refused": null or {"where", "type", "text"}, "ran": {argument: value SGLang settled on}}; `where` is the first of

    parser       argparse does not know a word, or cannot read its value
    resolution   ServerArgs cannot be built and resolved
    check        ServerArgs.check_server_args(), the last thing before processes are started
    tree, attention, draft     what its processes would say after loading (guards.py)

The first line that is written says the version and every option of its parser.

Not here: what is asked, and what the answers should be (test_contract.py).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import logging
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import guards
import msgspec.structs
from pretended_gpu import GPUS, pretend

ARGUMENTS = (
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_draft_attention_backend", "attention_backend",
    "prefill_attention_backend", "decode_attention_backend", "page_size", "max_running_requests", "mem_fraction_static",
    "enable_mixed_chunk", "disable_overlap_schedule", "chunked_prefill_size", "kv_cache_dtype", "tp_size", "dp_size",
    "speculative_attention_mode", "dcp_size", "speculative_adaptive", "speculative_use_rejection_sampling", "disable_cuda_graph", "disable_radix_cache", "device",
)  # fmt: skip
IMPORTED_ON_A_CPU = (
    "sglang.srt.server_args", "sglang.srt.configs.model_config", "sglang.srt.model_loader",
    "sglang.srt.speculative.spec_info", "sglang.srt.speculative.eagle_utils", "sglang.srt.speculative.draft_utils",
    "sglang.srt.speculative.dflash_utils", "sglang.srt.layers.attention.attention_registry",
    "sglang.srt.layers.attention.flashinfer_mla_backend",
)  # fmt: skip
"""While SGLang still sees a CPU: at their top they import kernels for the hardware they see."""


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for name in IMPORTED_ON_A_CPU:
            importlib.import_module(name)
        upstream = Upstream()
        say(answers, {"version": upstream.version, "options": upstream.options})
        for line in sys.stdin:
            question = json.loads(line)
            say(answers, upstream.answer(question["gpu"], question["argv"]))


def say(answers: Any, answer: dict[str, Any]) -> None:
    print(json.dumps(answer, default=str), file=answers, flush=True)


class Upstream:
    """SGLang's argument handling in this process."""

    def __init__(self) -> None:
        self.module = importlib.import_module("sglang.srt.server_args")
        self.version = importlib.import_module("sglang").__version__
        self.parser = argparse.ArgumentParser(prog="sglang serve")
        self.module.ServerArgs.add_cli_args(self.parser)
        self.options = sorted(self.parser._option_string_actions)
        self.keep_parser()
        msgspec.structs.fields = functools.cache(msgspec.structs.fields)  # the second of what takes long
        self.environment = dict(os.environ)
        self.gpu = ""

    def keep_parser(self) -> None:
        """Making the parser is nine tenths of prepare_server_args(): it gets the one that is there."""
        self.module.ServerArgs.add_cli_args = staticmethod(lambda _parser: None)
        names = {name: getattr(argparse, name) for name in dir(argparse)}
        self.module.argparse = SimpleNamespace(**{**names, "ArgumentParser": lambda **_: self.parser})

    def answer(self, gpu: str, argv: list[str]) -> dict[str, Any]:
        self.see(gpu)
        where, ran = "resolution", {}
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed):
                args = self.module.prepare_server_args(argv)
            if hasattr(args, "resolve_once"):  # later versions resolve apart from parsing
                args.resolve_once()
            ran = values(args, argv)
            where = "check"
            args.check_server_args()
            where = "tree"
            guards.tree(ran)
            where = "attention"
            guards.attention(args, ran)
            where = "draft"
            guards.draft(args, ran)
        except SystemExit:
            return refused("parser", "SystemExit", printed.getvalue().strip().splitlines()[-1], ran)
        except guards.RefusalError as refusal:
            return refused(where, refusal.kind, str(refusal), ran)
        except Exception as error:  # noqa: BLE001  (whatever SGLang raises is the answer)
            return refused(where, type(error).__name__, str(error), ran)
        return {"refused": None, "ran": ran}

    def see(self, gpu: str) -> None:
        """The environment as at the start (SGLang's resolution writes to it), and this GPU."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
        if gpu != self.gpu:
            pretend(GPUS[gpu])
            guards.ANSWERS.clear()
            self.gpu = gpu


def values(args: Any, argv: list[str]) -> dict[str, Any]:
    """The arguments that are always of interest, and those that were given."""
    result = getattr(importlib.import_module("sglang.srt.server_args"), "resolution_result", getattr)
    given = [word.removeprefix("--").replace("-", "_") for word in argv if word.startswith("--")]
    names = dict.fromkeys([*ARGUMENTS, *given])
    return {name: result(args, name) for name in names if hasattr(args, name)}


def refused(where: str, kind: str, text: str, ran: dict[str, Any]) -> dict[str, Any]:
    return {"refused": {"where": where, "type": kind, "text": text}, "ran": ran}


if __name__ == "__main__":
    main()
