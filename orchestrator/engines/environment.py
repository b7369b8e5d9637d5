"""Environment: the variables that an engine's processes get, a server's and whoever asks its interpreter.

Not here: which GPUs a server sees and to whom it belongs (engine.py).
"""

from __future__ import annotations

import os

from orchestrator.plan import EngineConf

PASSED_ON = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "SGLANG_CACHE_DIR", "NCCL_DEBUG", "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "MAX_JOBS",
)  # fmt: skip
"""Environment variables a server inherits; everything else comes from `engine.env`."""
SECRET = ("HF_TOKEN",)
"""Passed on too, but never stored."""


def inherited() -> dict[str, str]:
    """What a server takes over from this process."""
    return {name: os.environ[name] for name in (*PASSED_ON, *SECRET) if name in os.environ}


def server_environment(engine: EngineConf) -> dict[str, str]:
    """What a server of this conf sees, apart from its GPUs."""
    return {**inherited(), **engine.env}
