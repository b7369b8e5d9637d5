"""Imports: what a server of a known version and its children import, so that a launcher can do it ahead of them.

Read from the engine's own source.  For any other version, and for settings under which a server starts other processes,
there is a reason in its place, and the launch is a plain one.  Not here: doing it (serving/launcher.py).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.serving.processes import MARKER

PATIENCE_S = 120.0
"""How long a child that was begun ahead waits to be needed, once its server is being started."""
LAUNCHER = Path(__file__).parents[1] / "serving" / "launcher.py"


@dataclass(frozen=True)
class Kind:
    """Processes that a server spawns to run one function."""

    name: str
    function: str
    imports: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Imports:
    server: tuple[str, ...]
    """Modules, in the order of a plain start, after what the server's main module imports; `module:function` is called, too."""
    kinds: tuple[Kind, ...] = ()
    sets: Mapping[str, str] = field(default_factory=dict)
    """Environment that a server gives its children in any case."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Environment that a server gives its children unless it has it itself."""
    late: tuple[str, ...] = ()
    """Environment that a server gives its children and that no import of theirs reads."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all processes that import when a standby is made."""
        return ("server", *(kind.name for kind in self.kinds for _ in range(kind.count)))

    def first(self, children: int) -> Imports:
        """With so many children at most."""
        kinds = []
        for kind in self.kinds:
            kinds.append(dataclasses.replace(kind, count=min(kind.count, children)))
            children -= kinds[-1].count
        return dataclasses.replace(self, kinds=tuple(kinds))

    def launcher(self, argv: Iterable[str], waits: bool) -> tuple[str, ...]:
        """The launcher's command line for a server of `PYTHON -m MODULE words…`, without the words."""
        python, _, module, *_ = argv
        spec = {
            "module": module, "waits": waits, "imports": self.server, "kinds": [dataclasses.asdict(k) for k in self.kinds],
            "sets": dict(self.sets), "defaults": dict(self.defaults), "late": self.late, "marker": MARKER,
            "patience_s": PATIENCE_S,
        }  # fmt: skip
        return (python, str(LAUNCHER), json.dumps(spec))


_SGLANG_0_5_17 = Imports(
    server=("sglang.srt.plugins:load_plugins", "sglang.srt.entrypoints.http_server"),
    kinds=(
        Kind("scheduler", "run_scheduler_process", ("sglang.srt.managers.scheduler",)),
        Kind("detokenizer", "run_detokenizer_process", ("sglang.srt.managers.detokenizer_manager",)),
    ),
    sets={
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",  # entrypoints/engine.py:1597
        "CUDA_MODULE_LOADING": "AUTO",
        "SGLANG_ENABLE_TORCH_COMPILE": "0",  # server_args.py:7712; only some arguments make it 1, and the start cold
        "SGLANG_DISABLE_OUTLINES_DISK_CACHE": "0",
        "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "0",
    },
    defaults={
        "NCCL_CUMEM_ENABLE": "0",  # entrypoints/engine.py:1582
        "NCCL_NVLS_ENABLE": "0",
        "TRTLLM_ENABLE_PDL": "1",
        "CUTE_DSL_LOG_LEVEL": "30",
        "CUTE_DSL_LOG_TO_CONSOLE": "1",
    },
    late=(
        "SGLANG_RUN_ID",
        "PROMETHEUS_MULTIPROC_DIR",
        "SGLANG_USE_CUDA_IPC_TRANSPORT",
        "SGLANG_OPT_FP8_WO_A_GEMM",  # server_args.py:7764, on GPUs without FP4; models/deepseek_v4.py reads it, which loads with the weights
    ),
)
SGLANG: Mapping[str, Imports] = {"0.5.17": _SGLANG_0_5_17}
"""By version."""
SGLANG_OTHERWISE = (
    "dp_size", "pp_size", "nnodes", "ep_join_mode", "encoder_only", "grpc_mode", "smg_grpc_mode", "use_ray",
    "disaggregation_mode", "detokenizer_worker_num", "tokenizer_worker_num", "enable_memory_saver", "weight_cache_mode",
    "SGLANG_RUST_SERVER",
)  # fmt: skip
"""Arguments and environment under which a server starts other processes, or starts them in another way."""


def sglang_imports(version: str, tp_size: int, given: Mapping[str, object]) -> Imports | str:
    """What SGLang imports; or why that is not known.  `given`: what else it is given, arguments and environment."""
    if (known := SGLANG.get(version)) is None:
        return f"what SGLang {version} imports is not known ({', '.join(SGLANG)} is)"
    if others := [name for name in SGLANG_OTHERWISE if name in given]:
        return f"with {', '.join(others)} a server starts its processes in another way"
    scheduler, *rest = known.kinds
    return dataclasses.replace(known, kinds=(dataclasses.replace(scheduler, count=tp_size), *rest))
