"""Reading checkpoints: config.json and headers, bounded, and a Finding for whatever is wrong with the files."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.checkpoint import Checkpoint, on_disk, read_checkpoint
from sweeps.headers import HEADER_BYTES, INDEX, Tensor
from tests.fakes.checkpoints import (
    LLAMA_8B,
    SMOLLM2_TARGET,
    write_checkpoint,
    write_header,
    write_real_head,
    write_tensors,
)

SMALL = {"norm.weight": (4,), "fc.weight": (4, 12)}


def found(folder: Path | str) -> dict[str, str]:
    """Check → everything said, of the errors and warnings."""
    return {one.check: str(one) for one in read_checkpoint(str(folder)).findings}


def test_a_checkpoint_is_its_config_and_the_types_and_shapes_of_its_tensors(tmp_path: Path) -> None:
    """Of a real head: 15 tensors, by their header alone."""
    head = read_checkpoint(str(write_real_head(tmp_path / "head")))
    assert head.findings == ()
    assert head.architecture == "LlamaForCausalLMEagle3"
    assert head.tensors is not None
    assert len(head.tensors) == 15
    assert head.tensors["fc.weight"] == Tensor("BF16", (576, 1728))
    assert head.tensors["d2t"] == Tensor("I64", (8192,))
    assert len(head.fingerprint) == 12


def test_shards_are_read_together(tmp_path: Path) -> None:
    """By the index where there is one; without one all safetensors files belong to the checkpoint."""
    folder = write_checkpoint(tmp_path, LLAMA_8B)
    write_tensors(folder / "a.safetensors", {"norm.weight": (4,)})
    write_tensors(folder / "b.safetensors", {"fc.weight": (4, 12)})
    without = read_checkpoint(str(folder))
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {"norm.weight": "a.safetensors", "fc.weight": "b.safetensors"}})
    )
    with_index = read_checkpoint(str(folder))
    assert set(without.tensors or ()) == set(with_index.tensors or ()) == set(SMALL)
    assert with_index.findings == ()


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    """A download that was broken off."""
    folder = write_checkpoint(tmp_path, LLAMA_8B)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"norm.weight": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors is missing" in found(folder)["weights"]


def test_tensors_that_only_the_index_knows_are_named(tmp_path: Path) -> None:
    """The index promises more than the files hold."""
    folder = write_checkpoint(tmp_path, LLAMA_8B, SMALL)
    names = dict.fromkeys((*SMALL, "lm_head.weight"), "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    assert "lm_head.weight" in found(folder)["weights"]


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "..", ""])
def test_an_index_cannot_lead_out_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    """Nothing outside the directory is opened."""
    folder = write_checkpoint(tmp_path / "model", LLAMA_8B)
    write_tensors(tmp_path / "elsewhere.safetensors", SMALL)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": name}}))
    assert "outside the checkpoint" in found(folder)["weights"]


def test_weights_in_pytorch_files_leave_the_config_to_check(tmp_path: Path) -> None:
    """A warning, and no tensors."""
    folder = write_checkpoint(tmp_path, LLAMA_8B)
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.tensors is None
    assert [(one.severity, one.check) for one in checkpoint.findings] == [("warning", "weights_format")]


BROKEN = {
    "empty": (b"", "cut off"),
    "seven bytes": (b"\1\0\0\0\0\0\0", "cut off"),
    "header longer than the file": (struct.pack("<Q", 5000) + b"{}", "cut off"),
    "two gigabytes of header": (struct.pack("<Q", 2 * 2**30) + b"{}", f"safetensors allows {HEADER_BYTES}"),
    "sixteen exbibytes of header": (b"\xff" * 8 + b"{}", "claims a header"),
    "no JSON": (struct.pack("<Q", 4) + b"nope", "not JSON"),
    "no object": (struct.pack("<Q", 2) + b"[]", "holds no object"),
    "no UTF-8": (struct.pack("<Q", 4) + b'"\xff\xfe"', "not JSON"),
    "a tensor without a shape": (struct.pack("<Q", 7) + b'{"a":1}', "tensor a lacks"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 19\n", "git lfs pull"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_safetensors_file_is_a_finding(tmp_path: Path, name: str) -> None:
    """Never a traceback; a claimed length is not read, let alone allocated."""
    content, words = BROKEN[name]
    folder = write_checkpoint(tmp_path, LLAMA_8B)
    (folder / "model.safetensors").write_bytes(content)
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.tensors is None
    assert [(one.severity, one.check) for one in checkpoint.findings] == [("error", "weights")]
    assert words in str(checkpoint.findings[0])


def test_weights_that_were_cut_off_are_told_by_the_file_s_size(tmp_path: Path) -> None:
    """The header is whole, the data is not."""
    folder = write_checkpoint(tmp_path, LLAMA_8B, SMALL)
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    assert "cut off" in found(folder)["weights"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b'"x"', b"{} {}", b"\xff\xfe{", b"[" * 100_000, b"9" * 5000]
)
def test_a_damaged_config_is_a_finding(tmp_path: Path, content: bytes) -> None:
    """Cut off, of another type, in another encoding, nested without end."""
    (tmp_path / "config.json").write_bytes(content)
    assert read_checkpoint(str(tmp_path)).config == {}
    assert "config.json" in found(tmp_path)["config"]


def test_a_config_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    """A hole of four gibibytes: refused by its size."""
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(4 * 2**30)
    assert "far more than such a file can have" in found(tmp_path)["config"]


def test_what_is_no_directory_is_a_finding(tmp_path: Path) -> None:
    """Missing, a file, a symlink loop, a name that no file system takes."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path / "loop", "a\0b", "x" * 5000, ""):
        checkpoint = read_checkpoint(str(path))
        assert [one.check for one in checkpoint.findings if one.check in ("directory", "config")] != []


def test_files_that_are_loops_pipes_or_directories_are_findings(tmp_path: Path) -> None:
    """A pipe would block whoever opens it: it is not opened."""
    (tmp_path / "config.json").symlink_to("config.json")
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "other.safetensors").mkdir()
    assert set(found(tmp_path)) == {"config", "weights"}
    assert sum(one.check == "weights" for one in read_checkpoint(str(tmp_path)).findings) == 2


@pytest.mark.parametrize(
    "name", ["two words", "моя модель", "模型", "it's [bold]; $(touch x) %s\n", os.fsdecode(b"caf\xe9")]
)
def test_any_path_that_the_file_system_takes_is_read(tmp_path: Path, name: str) -> None:
    """Spaces, other scripts, bytes that are no UTF-8; and what is said of them can be written anywhere."""
    good = write_checkpoint(tmp_path / name, LLAMA_8B, SMALL)
    assert read_checkpoint(str(good)).findings == ()
    (good / "config.json").unlink()
    found(good)["config"].encode()


def test_the_language_model_of_a_multimodal_one_is_what_counts() -> None:
    """Its sizes stand under text_config."""
    checkpoint = Checkpoint(
        "x", {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"hidden_size": 7168}}
    )
    assert checkpoint.whole("hidden_size") == 7168


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({}, 2048),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"factor": 8, "original_max_position_embeddings": 8192}},
            8192,
        ),
        ({"model_max_length": 1024, "max_position_embeddings": 8192}, 1024),
    ],
)
def test_the_context_length_is_derived_as_sglang_does(config: dict[str, object], length: int) -> None:
    """The first of several keys, times a factor of the rope."""
    assert Checkpoint("x", config).context_length == length


def test_vocabularies_are_read_from_any_of_their_files(tmp_path: Path) -> None:
    """tokenizer.json of either kind, else vocab.json; added tokens count."""
    folder = write_checkpoint(tmp_path, SMOLLM2_TARGET)
    assert read_checkpoint(str(folder)).vocabulary is None
    (folder / "vocab.json").write_text('{"a": 0, "b": 1}')
    (folder / "added_tokens.json").write_text('{"<s>": 2}')
    assert read_checkpoint(str(folder)).vocabulary == {"a": 0, "b": 1, "<s>": 2}
    unigram = {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"content": "<s>", "id": 2}]}
    (folder / "tokenizer.json").write_text(json.dumps(unigram))
    assert read_checkpoint(str(folder)).vocabulary == {"a": 0, "b": 1, "<s>": 2}


def test_hub_names_are_told_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory that exists is a path, whatever it looks like."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "head").mkdir(parents=True)
    assert [on_disk(path) for path in ("/models/x", "./x", "own/head", "public/head")] == [True, True, True, False]


@given(header=st.binary(max_size=300), length=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_no_bytes_of_a_weights_file_bring_the_reading_down(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, length: int | None
) -> None:
    """Any header, of its own length or of a claimed one: tensors or a finding."""
    folder = write_checkpoint(tmp_path_factory.mktemp("fuzz"), {})
    if length is None:
        write_header(folder / "model.safetensors", header)
    else:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + header)
    checkpoint = read_checkpoint(str(folder))
    assert (checkpoint.tensors is None) == bool(checkpoint.findings)
