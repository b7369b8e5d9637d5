"""The lossless gate with the real SGLang: speculation that is lossless is not accused, other weights are caught."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from orchestrator.config import load_plan
from orchestrator.engines.sglang import SGLang
from orchestrator.measuring.lossless import OutputCheck
from orchestrator.serving.ports import free_port
from orchestrator.serving.server import Launch, Server
from sweeps.settings import Settings
from tests.sglang_cpu.product import CONF, PROJECT

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PLAIN = Settings(attention_backend="torch_native", cuda_graph=False, mem_fraction_static=0.1, max_running_requests=16)
TREE = PLAIN.replace(algorithm="EAGLE3", drafter="tiny", num_steps=3, eagle_topk=2, num_draft_tokens=6)
ARGS = (("device", "cpu"), ("max_total_tokens", 8192), ("skip_server_warmup", True))
TEXTS = [f"What is the word number {number}?" for number in range(12)]


@contextmanager
def starting(settings: Settings, folder: Path, *words: str) -> Iterator[Server]:
    """A server on its way up; `wait_ready` waits for it."""
    plan = load_plan([f"conf={CONF}", *words])
    dialect, port, marker = SGLang(plan), free_port("127.0.0.1"), f"lossless/{folder.name}/1"
    folder.mkdir()
    launch = Launch(
        argv=tuple(dialect.argv(settings.replace(server_args=ARGS), port, marker)),
        environment={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **plan.engine.env},
        log=folder / "server.log", host="127.0.0.1", port=port, marker=marker,
    )  # fmt: skip
    with Server(launch, plan.deadlines) as server:
        yield server


def with_other_weights(target: Path, folder: Path) -> Path:
    """A copy of the target whose output layer has two rows in ten exchanged."""
    shutil.copytree(target, folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + size])["lm_head.weight"]
    begin, end = (8 + size + offset for offset in head["data_offsets"])
    rows = np.frombuffer(bytes(content[begin:end]), np.uint8).reshape(head["shape"][0], -1).copy()
    rows[::10], rows[1::10] = rows[1::10].copy(), rows[::10].copy()
    content[begin:end] = rows.tobytes()
    path.write_bytes(content)
    return folder


def test_a_real_tree_is_lossless_and_other_weights_are_not(
    engine_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EAGLE-3 tree says what the plain server says; a server of slightly other weights says other things, and is caught."""
    monkeypatch.setenv("PWD", str(PROJECT))
    wrong = with_other_weights(PROJECT / ".engines" / "models" / "llama6", tmp_path / "wrong-weights")
    check = OutputCheck(tmp_path / "outputs", request_s=60)
    with ExitStack() as servers:
        tree = servers.enter_context(starting(TREE, tmp_path / "tree"))
        other = servers.enter_context(starting(PLAIN, tmp_path / "other", f"target.path={wrong}"))
        plain = servers.enter_context(starting(PLAIN, tmp_path / "plain"))
        for trial, server in enumerate((tree, other)):
            server.wait_ready()
            check.take(trial, server.url, TEXTS)
        plain.wait_ready()
        found = dict(check.score(plain.url, TEXTS))

    assert not found[0].changed
    assert (found[0].argmax_share, found[0].same_share) == (1.0, 1.0)
    assert found[0].tokens > 100
    assert found[1].changed
    assert found[1].far_share > 0.01
