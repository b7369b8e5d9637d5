"""An SGLang to ask (resolve.py in its own interpreter), and the models whose configs it reads."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sglang_cpu.product import ENGINES, PROJECT

RESOLVE = Path(__file__).parent / "resolve.py"
NEWEST = ENGINES / "sglang-newest"
"""SGLang's newest version, unpacked by `make test-upstream`; its own requirements are not installed."""

Question = tuple[str, tuple[str, ...]]
"""A GPU's generation and the words after the program's name."""


@dataclass(frozen=True)
class Answer:
    where: str | None
    """The place of the refusal (resolve.py lists them); None: accepted."""
    text: str
    ran: dict[str, Any]

    @property
    def accepted(self) -> bool:
        return self.where is None

    @classmethod
    def read(cls, line: str) -> Answer:
        found = json.loads(line)
        no = found["refused"] or {"where": None, "type": "", "text": ""}
        return cls(no["where"], f"{no['type']}: {no['text']}", found["ran"])


@dataclass(frozen=True)
class Upstream:
    """What one version of SGLang said to each question."""

    version: str
    options: frozenset[str]
    answers: dict[Question, Answer]


def ask(python: Path, questions: Iterable[Question], source: Path | None = None, timeout_s: float = 3600) -> Upstream:
    """Ask the SGLang of this interpreter, or of the folder `source` read by it.

    Raises AssertionError with its last words when it ended before the last answer.
    """
    distinct = sorted(set(questions))
    lines = "".join(json.dumps({"gpu": gpu, "argv": argv}) + "\n" for gpu, argv in distinct)
    with tempfile.TemporaryFile("w+") as given:
        given.write(lines)
        given.seek(0)
        done = subprocess.run(
            [python, RESOLVE],
            stdin=given,
            env=environment(source),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    first, *rest = done.stdout.splitlines()
    answers = dict(zip(distinct, map(Answer.read, rest), strict=True))
    return Upstream(json.loads(first)["version"], frozenset(json.loads(first)["options"]), answers)


def version_of(python: Path, source: Path | None = None) -> str:
    words = [python, "-c", "import importlib.metadata as m; print(m.version('sglang'))"]
    return subprocess.run(words, env=environment(source), capture_output=True, text=True, check=True).stdout.strip()


def environment(source: Path | None) -> dict[str, str]:
    path = [*([source] if source else []), PROJECT / "tests" / "sglang_cpu" / "shim"]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


MLA = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 320, "hidden_size": 320,
    "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 16,
    "num_key_value_heads": 16, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "routed_scaling_factor": 1.0, "norm_topk_prob": True, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096, "bos_token_id": 256,
    "eos_token_id": 257, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1,
}  # fmt: skip
"""A config.json in the shape of DeepSeek V3's; there are no weights to it."""
MLA_HEAD = {**MLA, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "num_hidden_layers": 1}


@dataclass(frozen=True)
class Models:
    """Directories by the names that questions use."""

    targets: dict[str, Path]
    drafters: dict[str, Path]


def models(folder: Path) -> Models:
    """The tiny models of tests/sglang_cpu, and configs of the shape of DeepSeek V3 made in `folder`."""
    tiny = ENGINES / "models"
    made = {name: folder / name for name in ("mla", "mla-head")}
    for name, config in (("mla", MLA), ("mla-head", MLA_HEAD)):
        made[name].mkdir(parents=True)
        (made[name] / "config.json").write_text(json.dumps(config))
    return Models(
        {"gqa": tiny / "llama6", "mla": made["mla"]},
        {"gqa": tiny / "eagle3", "mla": made["mla-head"], "small": tiny / "llama2"},
    )
