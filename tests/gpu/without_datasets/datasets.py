"""Stands in for the package `datasets` where an engine's environment lacks it.

sglang.bench_serving imports the name when it starts, for data sets that are not asked for here; it is never called.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0"


def load_dataset(*_: object, **__: object) -> NoReturn:
    raise ModuleNotFoundError("the package datasets is not installed in the engine's environment")
