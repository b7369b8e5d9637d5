"""Settings: every knob of one server launch, declared once.

A knob is one field of `Settings`. From it come the check of a YAML's `space:`, the search space, the argument of the
server, the comparison with the server's own info, the Parquet column with its doc, and the line in the report.  To add
one, add one field here (and, if SGLang calls it something else, its `server_name`).

Not here: which combinations a server accepts (`rules.py`), which values a sweep tries (`space.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

Scalar = str | int | float | bool
Scope = Literal["speculation", "server"]

ARGS = "server_args."
"""Prefix of the name of an argument that is passed through, where it stands among knobs."""
ALGORITHMS = ("none", "EAGLE3", "EAGLE", "NEXTN", "STANDALONE", "NGRAM", "DFLASH")


@dataclass(frozen=True)
class Knob:
    """What is known of one knob, whatever its value today."""

    name: str
    type: type
    doc: str
    scope: Scope
    """`speculation`: the plain server does not have it.  `server`: it changes the plain server too."""
    server_name: str
    """SGLang's name for it, as in `/server_info`; the flag is `--` + this name with dashes."""
    choices: tuple[Scalar, ...] | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None

    def mistake(self, value: object) -> str | None:
        """Why `value` cannot be a value of this knob, in words for a person; None when it can."""
        if isinstance(value, bool) and self.type is not bool:
            return f"{value} is a boolean (YAML reads no, off, yes and on so): quote it, or write none"
        if self.type is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, self.type):
            return f"{value!r} is not {_article(self.type)}"
        if self.choices is not None and value not in self.choices:
            return f"{value!r} is not one of {', '.join(map(str, self.choices))}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.low is not None and value < self.low:
                return f"{value} is below {self.low:g}"
            if self.high is not None and value > self.high:
                return f"{value} is above {self.high:g}"
        return None


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]


def _knob(default: Any, doc: str, scope: Scope, server_name: str, **bounds: Any) -> Any:
    return field(default=default, metadata={"doc": doc, "scope": scope, "server_name": server_name, **bounds})


@dataclass(frozen=True)
class Settings:
    """One server launch.  None means: not given, the server decides (or, for a speculation knob, there is none)."""

    algorithm: str = _knob(
        "none", "Speculative algorithm; none is the plain server.", "speculation", "speculative_algorithm",
        choices=ALGORITHMS,
    )  # fmt: skip
    drafter: str | None = _knob(
        None, "Name of the drafter under `drafters:` in the config.", "speculation", "speculative_draft_model_path"
    )
    num_steps: int | None = _knob(
        None, "Draft depth: how many tokens ahead the drafter runs.", "speculation", "speculative_num_steps",
        low=1, high=64, unit="steps",
    )  # fmt: skip
    eagle_topk: int | None = _knob(
        None, "Branches kept per draft step; 1 is a chain.", "speculation", "speculative_eagle_topk", low=1, high=64
    )
    num_draft_tokens: int | None = _knob(
        None, "Nodes verified per step, the root included.", "speculation", "speculative_num_draft_tokens",
        low=2, high=512, unit="tokens",
    )  # fmt: skip
    attention_backend: str | None = _knob(
        None, "Attention kernels of the target (and of the drafter unless it has its own).", "server",
        "attention_backend",
    )  # fmt: skip
    draft_attention_backend: str | None = _knob(
        None, "Attention kernels of the drafter.", "speculation", "speculative_draft_attention_backend"
    )
    cuda_graph: bool = _knob(True, "Whether decoding runs in CUDA graphs.", "server", "disable_cuda_graph")
    page_size: int | None = _knob(None, "Tokens per KV page.", "server", "page_size", low=1, high=1024, unit="tokens")
    max_running_requests: int | None = _knob(
        None, "Requests the server decodes at once; the same for every launch, never below the largest concurrency.",
        "server", "max_running_requests", low=1, high=65536, unit="requests",
    )  # fmt: skip
    mem_fraction_static: float | None = _knob(
        None, "Share of GPU memory for weights and KV cache.", "server", "mem_fraction_static", low=0.01, high=1.0
    )
    tp_size: int = _knob(1, "GPUs of one server, tensor parallel.", "server", "tp_size", low=1, high=64, unit="GPUs")
    server_args: tuple[tuple[str, Any], ...] = ()
    """Arguments passed through under SGLang's own names, as `passed` spells them; one of several words has a tuple."""

    @property
    def speculative(self) -> bool:
        return self.algorithm != "none"

    @cached_property
    def key(self) -> str:
        """Twelve hex digits that are equal exactly when two settings are the same launch."""
        given = {name: value for name, value in self.as_dict().items() if value is not None}
        text = json.dumps(given, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def plain(self) -> Settings:
        """The plain server with the same values: these settings without any speculation."""
        return self._plain

    @cached_property
    def _plain(self) -> Settings:
        kept = {k.name: getattr(self, k.name) for k in knobs().values() if k.scope == "server"}
        return Settings.from_dict({**kept, "server_args": dict(self.server_args)})

    def replace(self, **values: Any) -> Settings:
        return dataclasses.replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Knob name → value, `server_args` as a plain dict; what YAML, JSON and the key are made from (tuples as lists)."""
        values = {name: getattr(self, name) for name in knobs()}
        return {**values, "server_args": dict(self.server_args)} if self.server_args else values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        given = dict(values)
        args = given.pop("server_args", None) or {}
        return cls(**given, server_args=passed(args))

    def __str__(self) -> str:
        if not self.speculative:
            extra = [self.attention_backend or ""]
            return " ".join(["plain server", *filter(None, extra)])
        triple = [v for v in (self.num_steps, self.eagle_topk, self.num_draft_tokens) if v is not None]
        words = [self.algorithm, self.drafter, ".".join(map(str, triple)), self.attention_backend]
        return " ".join(word for word in words if word)


def spelt(name: str) -> str:
    """An argument's name as the engine's own parser holds it, where a dash and an underscore are the same."""
    return name.lstrip("-").replace("-", "_")


def passed(arguments: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Arguments so that what is the same in words of a command line is the same here, sorted.

    Underscores, numbers as numbers, several words as a tuple (one word as itself), and a flag that is false left out.
    """
    found = {spelt(n): v for n, given in sorted(arguments.items()) if (v := _as_words(given)) is not False}
    return tuple(sorted(found.items()))


def worded(value: Any) -> str:
    """A value for a person: several words in brackets, as a config has them."""
    return f"[{', '.join(map(worded, value))}]" if isinstance(value, tuple) else str(value)


def _as_words(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _as_number(value)
    words = tuple(map(_as_words, value))
    return words[0] if len(words) == 1 else words


def _as_number(value: Any) -> Any:
    """What text means that is a number's own spelling."""
    kinds = (int, float) if isinstance(value, str) else ()
    for kind in kinds:
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value and math.isfinite(number):
            return number
    return value


@cache
def knobs() -> dict[str, Knob]:
    """Every knob by name, in the order of their declaration."""
    found = {}
    for item in dataclasses.fields(Settings):
        if "doc" in item.metadata:
            kind = {"str": str, "int": int, "float": float, "bool": bool}[str(item.type).split(" |")[0]]
            found[item.name] = Knob(name=item.name, type=kind, **item.metadata)
    return found
