"""Checkpoint: what a model's directory says of itself, from config.json and the headers of its safetensors files.

No weights are read, and no more than a bounded part of any file; whatever is damaged, missing or malicious becomes a
Finding.  Local directories only.  Not here: whether two checkpoints fit each other (drafter.py).
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeps.bounded import UnreadableError, read_bytes, read_object, whole, words_of
from sweeps.finding import Finding, error, shown
from sweeps.headers import Tensor, read_tensors

CONFIG_BYTES = 16 * 2**20
TOKENIZER_BYTES = 128 * 2**20
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""The first that is present counts (utils/hf_transformers/common.py:451-485 of SGLang 0.5.17)."""
DEFAULT_CONTEXT_LENGTH = 2048
TEXT_CONFIGS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where a multimodal model keeps the config of its language model, the first that is present (same file, :333)."""


@dataclass(frozen=True)
class Checkpoint:
    """One model on this disk.  `config` is empty and `tensors` None where `findings` say that they cannot be read."""

    path: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] | None = None
    findings: tuple[Finding, ...] = ()
    fingerprint: str = ""
    """Twelve hex digits over config.json and every header; the weights themselves are not in it."""

    @property
    def architecture(self) -> str | None:
        """The class that serves it, as config.json names it first."""
        named = self.config.get("architectures")
        first = named[0] if isinstance(named, list) and named else None
        return first if isinstance(first, str) and first else None

    @property
    def text(self) -> Mapping[str, Any]:
        """The config of the language model, which is a part of the whole in a multimodal one."""
        found: Mapping[str, Any] = self.config
        for name in TEXT_CONFIGS:
            inner = found.get(name)
            if isinstance(inner, dict):
                found = {**found, **inner}
        return found

    def whole(self, name: str) -> int | None:
        """A whole number of the (text) config; None when it is absent or something else."""
        return whole(self.text.get(name))

    def flag(self, name: str) -> bool:
        return bool(self.text.get(name))

    @property
    def context_length(self) -> int:
        """The longest context in tokens that SGLang derives from the config."""
        lengths = [length for key in CONTEXT_KEYS if (length := self.whole(key)) is not None]
        return int((lengths or [DEFAULT_CONTEXT_LENGTH])[0] * self._context_factor())

    def _context_factor(self) -> float:
        scaling = self.text.get("rope_scaling")
        if not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
            return 1.0
        factor = scaling.get("factor", 1)
        sound = isinstance(factor, int | float) and 0 < factor < 1e6
        return float(factor) if sound and scaling.get("rope_type") != "llama3" else 1.0

    @property
    def rope_theta(self) -> float | None:
        parameters = self.text.get("rope_parameters")
        inner = parameters.get("rope_theta") if isinstance(parameters, dict) else None
        theta = inner if inner is not None else self.text.get("rope_theta")
        return float(theta) if isinstance(theta, int | float) and 0 < theta < 1e30 else None

    @property
    def dtype(self) -> str | None:
        named = self.text.get("dtype") or self.text.get("torch_dtype")
        return named.removeprefix("torch.") if isinstance(named, str) else None

    @property
    def quantized(self) -> bool:
        return bool(self.text.get("quantization_config") or self.text.get("compression_config"))

    @property
    def parameters(self) -> int | None:
        """Numbers in its files, packed ones as they are; None where no file can be read."""
        return None if self.tensors is None else sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @cached_property
    def vocabulary(self) -> Mapping[str, int] | None:
        """Token → id of tokenizer.json, or of vocab.json and added_tokens.json; None when there is none to be read."""
        for read in (_fast_vocabulary, _slow_vocabulary):
            try:
                return read(Path(self.path))
            except UnreadableError:
                continue
        return None


def read_checkpoint(path: str) -> Checkpoint:
    """Whatever can be learnt of the directory `path`; never raises for what is in it."""
    folder = Path(path)
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return Checkpoint(path, findings=(_no_directory(path, "is not a directory"),))
    except (OSError, ValueError) as reason:
        return Checkpoint(path, findings=(_no_directory(path, words_of(reason)),))
    digest = hashlib.sha256()
    config, wrong = _read_config(folder, digest)
    tensors, damaged = read_tensors(folder, digest.update)
    return Checkpoint(path, config, tensors, (*wrong, *damaged), digest.hexdigest()[:12])


def on_disk(path: str) -> bool:
    """Whether `path` is a place on a disk, there or not, rather than a name on a hub."""
    return path.startswith(("/", ".", "~")) or os.path.lexists(path)


def _no_directory(path: str, reason: str) -> Finding:
    return error(
        "directory", f"{shown(path)}: {reason}", "there is no checkpoint to read",
        "Give the directory that holds its config.json. A model on a hub must be downloaded first.",
    )  # fmt: skip


def _read_config(folder: Path, digest: Any) -> tuple[Mapping[str, Any], tuple[Finding, ...]]:
    try:
        content = read_bytes(folder / "config.json", CONFIG_BYTES)
        digest.update(content)
        return read_object(content), ()
    except UnreadableError as reason:
        return {}, (
            error(
                "config", f"{shown(str(folder))}/config.json {reason}", "nothing can be said of the model, nor would it load",
                "Copy the checkpoint again.",
            ),
        )  # fmt: skip


def _fast_vocabulary(folder: Path) -> Mapping[str, int]:
    tokenizer = read_object(read_bytes(folder / "tokenizer.json", TOKENIZER_BYTES))
    model = tokenizer.get("model")
    listed_tokens = model.get("vocab") if isinstance(model, dict) else None
    pairs: list[tuple[Any, Any]]
    if isinstance(listed_tokens, list):  # Unigram: [token, score], the id is the place
        pairs = [(entry[0], at) for at, entry in enumerate(listed_tokens) if isinstance(entry, list) and entry]
    elif isinstance(listed_tokens, dict):
        pairs = list(listed_tokens.items())
    else:
        raise UnreadableError("has no vocabulary")
    added = tokenizer.get("added_tokens")
    if isinstance(added, list):
        pairs += [(token.get("content"), token.get("id")) for token in added if isinstance(token, dict)]
    return _ids(pairs)


def _slow_vocabulary(folder: Path) -> Mapping[str, int]:
    tokens = read_object(read_bytes(folder / "vocab.json", TOKENIZER_BYTES))
    try:
        added = read_object(read_bytes(folder / "added_tokens.json", TOKENIZER_BYTES))
    except UnreadableError:
        added = {}
    return _ids([*tokens.items(), *added.items()])


def _ids(pairs: list[tuple[Any, Any]]) -> Mapping[str, int]:
    return {name: at for name, at in pairs if isinstance(name, str) and whole(at) is not None}
