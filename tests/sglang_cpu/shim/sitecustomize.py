"""Lets torchvision be imported beside a torch without CUDA; Python runs this before anything else.

The published torchvision is linked against CUDA.  Its C++ library does not load on a CPU-only torch, so the two operators
it would have declared are missing, and importing torchvision ends with `operator torchvision::nms does not exist`.
SGLang imports torchvision and never calls them here: declaring them is enough.
"""

import importlib.abc
import sys
from importlib.machinery import ModuleSpec


class TorchvisionOperators(importlib.abc.MetaPathFinder):
    """Finds nothing itself: declares the operators when torchvision is first looked for, then steps aside."""

    library: object = None
    """torch forgets a declaration when the object that made it is collected: kept for the life of the process."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare_operators()
        return None


def declare_operators() -> None:
    import torch

    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        TorchvisionOperators.library = library


sys.meta_path.insert(0, TorchvisionOperators())
