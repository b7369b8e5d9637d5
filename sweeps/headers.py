"""Headers: names, types and shapes of a checkpoint's tensors, from its safetensors files; no weights are read.

A safetensors file is 8 bytes (the header's length, little-endian), the header in JSON, and the data.
Not here: which tensors there should be (eagle3_heads.py, draft_models.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.bounded import UnreadableError, names_in, read_bytes, read_object, whole, words_of
from sweeps.finding import Finding, error, listed, shown, warning

INDEX = "model.safetensors.index.json"
INDEX_BYTES = 64 * 2**20
HEADER_BYTES = 100_000_000
"""Of one file; safetensors itself refuses longer headers."""
ALL_HEADERS_BYTES = 400_000_000
MOST_SHARDS = 4096


@dataclass(frozen=True)
class Tensor:
    dtype: str
    """As safetensors names it, e.g. BF16."""
    shape: tuple[int, ...]


def read_tensors(
    folder: Path, digest: Callable[[bytes], None]
) -> tuple[Mapping[str, Tensor] | None, tuple[Finding, ...]]:
    """Every tensor of a checkpoint, None when its files are damaged or none; `digest` is fed every header."""
    try:
        names, wanted = _weight_files(folder)
    except UnreadableError as reason:
        return None, (_damaged(str(reason)),)
    if not names:
        return None, (_no_safetensors(folder),)
    tensors: dict[str, Tensor] = {}
    wrong: list[str] = []
    left = ALL_HEADERS_BYTES
    for name in names:
        try:
            header = _header(folder / name, min(HEADER_BYTES, left))
            digest(header)
            left -= len(header)
            tensors |= _tensors(header, (folder / name).stat().st_size)
        except (UnreadableError, OSError) as reason:
            wrong.append(f"{shown(name)} {reason}")
    if wrong:
        return None, tuple(_damaged(text) for text in wrong[:5])
    absent = sorted(wanted - tensors.keys())
    if absent:
        return tensors, (_damaged(f"{INDEX} names tensors that are in no file: {listed(absent)}"),)
    return tensors, ()


def _damaged(what: str) -> Finding:
    return error("weights", what, "the weights would not load", "Copy the checkpoint again.")


def _no_safetensors(folder: Path) -> Finding:
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names_in(folder)):
        return warning(
            "weights_format", "the weights are PyTorch files, not safetensors",
            "they have no header, so that only config.json is checked",
            "Convert them to safetensors to have tensors and shapes checked too.",
        )  # fmt: skip
    return _damaged("there are no weights beside config.json")


def _weight_files(folder: Path) -> tuple[list[str], set[str]]:
    """Names of the safetensors files, and the tensors that the index promises."""
    there = names_in(folder)
    if INDEX not in there:
        files = [name for name in there if name.endswith(".safetensors")]
        return [name for name in files if not name.startswith("consolidated")] or files, set()
    try:
        index = read_object(read_bytes(folder / INDEX, INDEX_BYTES)).get("weight_map")
    except UnreadableError as reason:
        raise UnreadableError(f"{INDEX} {reason}") from None
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UnreadableError(f"{INDEX} has no weight_map of tensors to files")
    names = sorted(set(index.values()))
    outside = [name for name in names if "/" in name or "\0" in name or name in ("", ".", "..")]
    if outside:
        raise UnreadableError(f"{INDEX} names files outside the checkpoint: {listed(outside)}")
    if len(names) > MOST_SHARDS:
        raise UnreadableError(f"{INDEX} names {len(names)} files")
    return names, set(index)


def _header(path: Path, most: int) -> bytes:
    """The header of a safetensors file: JSON, behind its length in 8 bytes, little-endian."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UnreadableError("is no file")
        with path.open("rb") as file:
            first = file.read(8)
            if first == b"version ":
                raise UnreadableError("is a git-lfs pointer, not the weights: run git lfs pull")
            if len(first) < 8:
                raise UnreadableError(f"is cut off: {size} bytes are no safetensors file")
            length = struct.unpack("<Q", first)[0]
            if length > most:
                raise UnreadableError(f"claims a header of {length} bytes; safetensors allows {HEADER_BYTES}")
            if length > size - 8:
                raise UnreadableError(f"is cut off: its header should have {length} bytes, the file has {size}")
            return file.read(length)
    except FileNotFoundError:
        raise UnreadableError("is missing") from None
    except (OSError, ValueError) as reason:
        raise UnreadableError(f"cannot be read: {words_of(reason)}") from None


def _tensors(header: bytes, file_bytes: int) -> dict[str, Tensor]:
    try:
        entries = read_object(header)
    except UnreadableError as reason:
        raise UnreadableError(f"has a damaged header: it {reason}") from None
    entries.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in entries.items():
        tensors[name], stop = _tensor(name, entry)
        end = max(end, stop)
    expected = 8 + len(header) + end
    if file_bytes < expected:
        raise UnreadableError(f"is cut off: {file_bytes} of {expected} bytes are there")
    return tensors


def _tensor(name: str, entry: Any) -> tuple[Tensor, int]:
    """A tensor and where its data ends."""
    given = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = given.get("dtype"), _wholes(given.get("shape")), _wholes(given.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise UnreadableError(f"has a damaged header: tensor {shown(name)} lacks a dtype, shape or place")
    return Tensor(dtype, shape), offsets[1]


def _wholes(values: Any) -> tuple[int, ...] | None:
    found = [whole(value) for value in values] if isinstance(values, list) else [None]
    return None if None in found else tuple(number for number in found if number is not None)
