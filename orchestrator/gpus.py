"""GpuSet: the GPUs one worker owns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuSet:
    """GPU indices or UUIDs, as CUDA_VISIBLE_DEVICES names them; empty for a CPU engine.  `pretend`: none of them exists."""

    ids: tuple[str, ...]
    name: str = ""
    """E.g. NVIDIA H200."""
    driver_version: str = ""
    pretend: bool = False
