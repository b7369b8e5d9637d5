"""Capabilities: what the model classes of an SGLang version can do for speculation.

The table, capabilities.json, is made from SGLang's own sources: class → version → words.  `head`: hands its embedding
and output head to a drafter (get_embed_and_head); `eagle3`, `dflash`, `dspark`: hands the hidden states of chosen layers
to such a drafter (set_*_layers_to_capture); `delegates`: passes what it lacks on to the model inside it.  No words: the
class is served, but not to a drafter.
Not here: which algorithm a drafter is for (architectures.py).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from sweeps.facts import KNOWN_VERSIONS

_TABLE = Path(__file__).with_name("capabilities.json")


@cache
def table() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(_TABLE.read_text())
    return found


def can(model_class: str, version: str) -> frozenset[str] | None:
    """The words of a class in a version; None when that version has no such class.

    Of a version that is not known: what the class can do in any version that is.
    """
    of_class = table().get(model_class)
    if of_class is None or (version in KNOWN_VERSIONS and version not in of_class):
        return None
    words = [of_class[version]] if version in of_class else list(of_class.values())
    return frozenset(word for text in words for word in text.split())


def exists(model_class: str, version: str) -> bool:
    return can(model_class, version) is not None
