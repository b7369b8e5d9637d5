"""A start, stage by stage: the log's milestones, what memory allows, and the faults that were asked for.

Runs before the event loop: as in SGLang nothing answers and no port is bound until all of it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from orchestrator.simulator import console
from orchestrator.simulator.console import log, plain
from orchestrator.simulator.faults import ECC_ERROR, Fault, Faults
from orchestrator.simulator.flags import ServerArgs
from orchestrator.simulator.model import MemoryUse, largest_tree, memory_use
from orchestrator.simulator.profile import Profile

LEAST_KV_TOKENS = 256
CAPTURED_BATCH = 256
"""The largest captured batch when --cuda-graph-max-bs-decode is not given."""
MOST_RUNNING = 2048
"""Requests at once on a plain server when --max-running-requests is not given."""

NO_KV_ROOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
TREE_TOO_LARGE = "RuntimeError: selected index k out of range"
PATH_TOO_LONG = "RuntimeError: The expanded size of the tensor ({0}) must match the existing size ({1}) at non-singleton dimension 1.  Target sizes: [1, {0}].  Tensor sizes: [{1}]"


@dataclass
class Started:
    """What a start arrived at."""

    memory: MemoryUse
    captured_batch: int
    max_running: int
    """Effective: never more than half the KV cache's tokens."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""


@dataclass(frozen=True)
class Startup:
    args: ServerArgs
    profile: Profile
    faults: Faults

    def run(self) -> Started:
        """All stages up to the port.  Ends the process where SGLang would end."""
        wanted = self.args["max_running_requests"] or MOST_RUNNING
        captured = min(wanted, self.args["cuda_graph_max_bs_decode"] or CAPTURED_BATCH)
        memory = memory_use(self.profile, self.args.launch, self.args["mem_fraction_static"], captured)
        started = Started(memory, captured, wanted)
        self._stage(started, "validate", self.profile.start.validate_s, self._validate)
        log(f"server_args={self.args}")
        self._stage(started, "weights", self.profile.start.weights_s, self._weights)
        self._stage(started, "kv_pool", self.profile.start.kv_pool_s, self._kv_pool)
        started.max_running = min(wanted, max(1, self.kv_tokens(memory) // 2))
        self._stage(started, "graph_capture", self.profile.start.graph_capture_s, self._graphs)
        self._summary(started)
        return started

    def kv_tokens(self, memory: MemoryUse) -> int:
        limit = self.args["max_total_tokens"]
        return min(memory.kv_tokens, limit) if limit else memory.kv_tokens

    def _stage(self, started: Started, stage: str, seconds: float, run: Callable[[MemoryUse, float], None]) -> None:
        """One stage with the faults it was told to have, noting how long it took."""
        begun = time.monotonic()
        if fault := self.faults.find("slow", stage):
            self._slow(fault)
        if self.faults.find("crash", stage):
            self._crash(stage)
        if self.faults.find("oom", stage):
            self._out_of_memory(stage)
        if self.faults.find("sick", stage):
            console.scheduler_exception(ECC_ERROR)
        while self.faults.find("hang", stage):
            time.sleep(3600)
        run(started.memory, seconds)
        started.seconds[stage] = time.monotonic() - begun

    def _slow(self, fault: Fault) -> None:
        ends = time.monotonic() + fault.amount
        pieces = 0
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
            pieces += 1
            if not fault.silent:
                plain(f"Multi-thread loading shards: {pieces}/{max(pieces, round(fault.amount / 0.1))} ({fault.stage})")

    def _crash(self, stage: str) -> NoReturn:
        cause = f"RuntimeError: simulated crash in {stage}"
        if stage == "validate":
            console.refuse(cause)
        console.scheduler_exception(cause)

    def _out_of_memory(self, stage: str) -> NoReturn:
        cause = console.no_memory_left(self.profile.memory.memory_gib)
        if stage == "kv_pool":
            cause = NO_KV_ROOM
        if stage == "graph_capture":
            cause = self._capture_failed(cause)
        console.scheduler_exception(cause)

    def _capture_failed(self, cause: str) -> str:
        said = cause.partition(": ")[2]
        return (
            f"Exception: Capture cuda graph failed: {said}\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
            "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
        )

    def _validate(self, _memory: MemoryUse, seconds: float) -> None:
        time.sleep(seconds)

    def _weights(self, memory: MemoryUse, seconds: float) -> None:
        log("Init torch distributed begin.")
        if self.args["tp_size"] > self.profile.gpus:
            console.scheduler_exception(
                "torch.AcceleratorError: CUDA error: invalid device ordinal "
                f"(tp_size {self.args['tp_size']}, but profile {self.profile.name} has {self.profile.gpus} GPUs)"
            )
        log("Init torch distributed ends. elapsed=0.00 s, mem usage=0.09 GB")
        size = self.profile.memory.memory_gib
        self._load(self.profile.target.architecture, memory.weights_gib, size, 0.8 * seconds)
        if self.args.launch.speculative and self.args.launch.algorithm != "NGRAM":
            self._load_drafter(memory, size - memory.weights_gib, 0.2 * seconds)

    def _load(self, architecture: str, needed_gib: float, free_gib: float, seconds: float) -> None:
        log(f"Load weight begin. avail mem={free_gib:.2f} GB")
        if needed_gib > free_gib:
            console.scheduler_exception(console.out_of_memory(needed_gib, self.profile.memory.memory_gib, free_gib))
        time.sleep(seconds)
        left = free_gib - needed_gib
        log(
            f"Load weight end. elapsed={seconds:.2f} s, type={architecture}, avail mem={left:.2f} GB, "
            f"mem usage={needed_gib:.2f} GB."
        )

    def _load_drafter(self, memory: MemoryUse, free_gib: float, seconds: float) -> None:
        launch, architecture = self.args.launch, self.profile.target.architecture
        drafter = self.profile.drafters[launch.drafter] if launch.drafter else None
        drafter_class = f"{architecture}Eagle3" if drafter and drafter.algorithm == "EAGLE3" else architecture
        self._load(drafter_class, memory.drafter_gib, free_gib, seconds)
        fits = drafter and (
            drafter.algorithm == launch.algorithm or (drafter.algorithm, launch.algorithm) == ("EAGLE3", "EAGLE")
        )
        if not fits:
            console.scheduler_exception(f"AttributeError: '{drafter_class}' object has no attribute 'hot_token_id'")

    def _kv_pool(self, memory: MemoryUse, seconds: float) -> None:
        tokens = self.kv_tokens(memory)
        if tokens < LEAST_KV_TOKENS:
            console.scheduler_exception(NO_KV_ROOM)
        time.sleep(seconds)
        half = tokens * self.profile.target.kv_gib_per_ktoken / 2000.0 / self.args["tp_size"]
        left = self.profile.memory.memory_gib - memory.weights_gib - memory.drafter_gib - 2 * half
        pools = 2 if self.args.launch.drafter else 1
        for pool in range(pools):
            gib = half if pool == 0 else half / 32
            log(
                f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: {gib:.2f} GB, V size: {gib:.2f} GB"
            )
            log(f"Memory pool end. avail mem={left:.2f} GB")

    def _graphs(self, memory: MemoryUse, seconds: float) -> None:
        launch = self.args.launch
        if not launch.cuda_graph:
            return
        free = memory.free_gib + memory.graph_gib
        which = "target verify" if launch.speculative else "target decode"
        log(
            f"Capture {which} CUDA graph begin. backend=full, num_tokens_per_req={launch.num_draft_tokens}, avail mem={free:.2f} GB"
        )
        if memory.free_gib < 0:
            wanted = memory.graph_gib - free
            cause = console.out_of_memory(wanted, self.profile.memory.memory_gib, free)
            console.scheduler_exception(self._capture_failed(cause))
        time.sleep(seconds)
        left = f"mem usage={memory.graph_gib:.2f} GB, avail mem={memory.free_gib:.2f} GB."
        log(f"Capture {which} CUDA graph end. elapsed={seconds:.2f} s, {left}")
        if launch.speculative and launch.algorithm != "NGRAM" and launch.num_steps > 1:
            log(f"Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req={launch.eagle_topk}")
            if self.tree_too_large():
                console.scheduler_exception(self._capture_failed(TREE_TOO_LARGE))
            log(f"Capture draft decode CUDA graph end. elapsed=0.00 s, {left}")

    def tree_too_large(self) -> bool:
        """SGLang does not check this; it dies when it first builds the tree."""
        launch = self.args.launch
        return self._drafts() and launch.num_draft_tokens > largest_tree(launch.num_steps, launch.eagle_topk)

    def first_step_fails(self) -> str | None:
        """What SGLang dies of in its first step, for want of a check before; None: it decodes."""
        launch = self.args.launch
        if self.tree_too_large():
            return TREE_TOO_LARGE
        if self._drafts() and launch.num_draft_tokens < launch.num_steps + 1:
            return PATH_TOO_LONG.format(launch.num_draft_tokens, launch.num_steps + 1)
        return None

    def _drafts(self) -> bool:
        return self.args.launch.speculative and self.args.launch.algorithm != "NGRAM"

    def _summary(self, started: Started) -> None:
        values, seconds = self.args.values, started.seconds
        log(
            f"max_total_num_tokens={self.kv_tokens(started.memory)}, chunked_prefill_size={values['chunked_prefill_size']}, "
            f"max_prefill_tokens={values['max_prefill_tokens']}, max_running_requests={started.max_running}, "
            f"context_len={values['context_length'] or self.profile.target.context_length}, "
            f"available_gpu_mem={started.memory.free_gib:.2f} GB"
        )
        log(
            f"Engine startup timings (s): load_weight={seconds['weights']:.2f}, "
            f"kv_cache_allocation={seconds['kv_pool']:.2f}, cuda_graph={seconds['graph_capture']:.2f}"
        )
