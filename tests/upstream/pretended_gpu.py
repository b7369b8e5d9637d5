"""Makes SGLang's probes see GPUs that are not there; nothing is computed on them.

Only what SGLang asks the machine is answered here; what it concludes is its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    capability: tuple[int, int]
    memory_mib: int
    name: str


GPUS = {
    "sm80": Gpu((8, 0), 81920, "NVIDIA A100-SXM4-80GB"),
    "sm86": Gpu((8, 6), 24564, "NVIDIA RTX A5000"),
    "sm89": Gpu((8, 9), 46068, "NVIDIA L40S"),
    "sm90": Gpu((9, 0), 143771, "NVIDIA H200"),
    "sm100": Gpu((10, 0), 183359, "NVIDIA B200"),
    "sm120": Gpu((12, 0), 97887, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
}
CUDA = "13.0"
COUNT = 8
KERNELS = ("flashinfer", "flash_mla", "sgl_kernel.flash_mla")
"""Packages that are found and imported, and hold whatever is looked up in them; calling it is a MissingKernelError."""


class MissingKernelError(Exception):
    """Something was to be computed on a GPU that is not there."""


class Kernel(type):
    """A name in a package of kernels: a class, so that it can be called, subclassed and looked into."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise MissingKernelError(cls.__name__)


class Kernels(MetaPathFinder, Loader):
    """Finds the packages of KERNELS and all that is inside them."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in KERNELS):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = lambda name: Kernel(name, (), {})


def pretend(gpu: Gpu) -> None:
    """From now on SGLang sees `COUNT` of these.  Its modules must have been imported while it still saw a CPU."""
    import torch

    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    torch.version.cuda = CUDA
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: COUNT
    torch.cuda.get_device_capability = lambda _device=None: gpu.capability
    torch.cuda.get_device_name = lambda _device=None: gpu.name
    common = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: gpu.memory_mib
    common._get_device_sm_via_nvml = lambda: None
    if not any(isinstance(finder, Kernels) for finder in sys.meta_path):
        sys.meta_path.insert(0, Kernels())
    use_cuda_platform()
    forget_answers(common)


def use_cuda_platform() -> None:
    platforms = importlib.import_module("sglang.srt.platforms")
    cuda = importlib.import_module("sglang.srt.platforms.cuda").CudaSRTPlatform()
    platforms._current_platform = cuda
    for module in sglang_modules():
        if "current_platform" in vars(module):
            module.current_platform = cuda


def forget_answers(common: Any) -> None:
    """The probes remember their first answer (lru_cache)."""
    for probe in vars(common).values():
        if hasattr(probe, "cache_clear"):
            probe.cache_clear()


def sglang_modules() -> list[Any]:
    return [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "sglang"]
