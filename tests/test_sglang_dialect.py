"""The SGLang dialect: every launch in SGLang's own words, its info and its real logs read back."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from orchestrator.engines.sglang import SGLang
from orchestrator.errors import MachineError
from orchestrator.plan import EngineConf, Target
from results.failure import FailureKind, Stage
from sweeps.legal import legal
from sweeps.settings import Settings
from sweeps.space import Choice, Held
from tests.fakes.plans import plan

LOGS = Path(__file__).parent / "fixtures" / "sglang-0.5.17" / "logs"
CHAIN = Settings(
    algorithm="EAGLE3", drafter="own", num_steps=3, eagle_topk=1, num_draft_tokens=4, attention_backend="fa3",
    max_running_requests=64, page_size=1,
)  # fmt: skip


def dialect(**engine: object) -> SGLang:
    return SGLang(
        plan(
            engine=EngineConf(name="sglang", **{"python": "python3", **engine}),  # type: ignore[arg-type]
            target=Target(path="/models/target", context_length=8192, dtype="bfloat16"),
            drafters={"own": "/models/own", "public": "/models/public"},
        )
    )


def flags(words: list[str]) -> dict[str, str]:
    return {word: words[i + 1] if i + 1 < len(words) else "" for i, word in enumerate(words) if word.startswith("--")}


def test_a_chain_is_launched_with_all_three_numbers_and_full_flag_names() -> None:
    """Steps, topk and tokens are given together; graphs cover the running requests; the marker is the served name."""
    given = flags(dialect().argv(CHAIN, 30001, "run/000001/1-abc"))
    assert given["--speculative-algorithm"] == "EAGLE3"
    assert given["--speculative-draft-model-path"] == "/models/own"
    triple = [given[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert triple == ["3", "1", "4"]
    assert given["--max-running-requests"] == given["--cuda-graph-max-bs-decode"] == "64"
    assert given["--served-model-name"] == "run/000001/1-abc"
    assert given["--host"] == "127.0.0.1"
    assert given["--port"] == "30001"
    assert given["--context-length"] == "8192"


def test_the_plain_server_has_no_word_of_speculation() -> None:
    """Nothing speculative is left on its command line."""
    words = dialect().argv(CHAIN.plain(), 30001, "m")
    assert not [word for word in words if "speculative" in word]
    assert "--attention-backend" in words


def test_server_args_are_bare_flags_when_true_and_left_out_when_false() -> None:
    """No literal true or false reaches the command line; lists become several words (case C03)."""
    args = {"trust_remote_code": True, "disable_radix_cache": False, "cuda_graph_bs_decode": [1, 2], "chunked_prefill_size": 2048}  # fmt: skip
    words = dialect().argv(Settings.from_dict({**CHAIN.as_dict(), "server_args": args}), 1, "m")
    assert "--trust-remote-code" in words
    assert "--disable-radix-cache" not in words
    assert not {"true", "false", "True", "False"} & set(words)
    at = words.index("--cuda-graph-bs-decode")
    assert words[at + 1 : at + 3] == ["1", "2"]
    assert "--cuda-graph-max-bs-decode" not in words


def test_an_argument_of_several_words_is_one_flag_before_all_of_them() -> None:
    """Each value that is chosen is a launch of its own; a list of one word is that word."""
    space = {
        "server_args.cuda_graph_bs_decode": Choice(((1, 2), (1, 2, 4))),
        "server_args.lora_paths": Held(("a", "b")),
    }
    launched = [shlex.join(dialect().argv(one, 1, "m")) for one in legal(plan(space | {"algorithm": Held("none")}).space).settings]  # fmt: skip
    assert len(launched) == 2 * len({"fa3", "flashinfer"})
    assert all(words.endswith(" --lora-paths a b") for words in launched)
    assert {words.partition("--cuda-graph-bs-decode ")[2].partition(" --")[0] for words in launched} == {"1 2", "1 2 4"}
    one, same = (Settings.from_dict({"server_args": {"cuda_graph_bs_decode": value}}) for value in ([8], "8"))
    assert one.key == same.key


def test_graphs_off_is_one_flag() -> None:
    """cuda_graph false says --disable-cuda-graph and asks for no graph sizes."""
    words = dialect().argv(CHAIN.replace(cuda_graph=False), 1, "m")
    assert "--disable-cuda-graph" in words
    assert "--cuda-graph-max-bs-decode" not in words


INFO = {
    "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/models/own", "speculative_num_steps": 3,
    "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4, "attention_backend": "fa3", "page_size": 1,
    "speculative_draft_attention_backend": None, "disable_cuda_graph": False, "max_running_requests": 64,
    "mem_fraction_static": 0.87123, "tp_size": 1, "internal_states": [{"effective_max_running_requests_per_dp": 48}],
}  # fmt: skip


def test_what_ran_is_read_from_the_servers_own_info() -> None:
    """A server that runs what was asked gives the asked settings back, key and all."""
    assert dialect().as_run(INFO, CHAIN) == CHAIN
    assert dialect().as_run(INFO, CHAIN).key == CHAIN.key


def test_what_the_server_changed_stands_in_what_ran() -> None:
    """A silently moved backend and rewritten draft tokens are found; an automatic memory fraction is not a choice."""
    ran = dialect().as_run(INFO | {"attention_backend": "flashinfer", "speculative_num_draft_tokens": 8}, CHAIN)
    assert (ran.attention_backend, ran.num_draft_tokens, ran.mem_fraction_static) == ("flashinfer", 8, None)


def test_what_was_left_to_the_server_is_filled_in() -> None:
    """An attention backend that nobody asked for is in the row all the same."""
    assert dialect().as_run(INFO, CHAIN.replace(attention_backend=None)).attention_backend == "fa3"


def test_the_running_limit_is_the_effective_one() -> None:
    """Not what was asked: what the scheduler says it runs."""
    assert dialect().running_limit(INFO) == 48
    assert dialect().running_limit({}) is None


@pytest.mark.parametrize(
    ("log", "kind", "stage", "words"),
    [
        ("algo-unknown", FailureKind.CONFIG_ILLEGAL, Stage.VALIDATE, "Unknown speculative algorithm"),
        ("missing-drafter", FailureKind.CONFIG_ILLEGAL, Stage.VALIDATE, "Repo id must be"),
        ("topk-only", FailureKind.CONFIG_ILLEGAL, Stage.VALIDATE, "AssertionError at File"),
        ("steps-only", FailureKind.CONFIG_ILLEGAL, Stage.VALIDATE, "'NoneType' and 'int'"),
        ("flag-typo", FailureKind.CONFIG_ILLEGAL, Stage.VALIDATE, "--speculative-bogus"),
        ("topk-trtllm_mha", FailureKind.BACKEND_UNSUPPORTED, Stage.VALIDATE, "TRTLLM MHA"),
        ("topk-torch_native", FailureKind.BACKEND_UNSUPPORTED, Stage.GRAPH_CAPTURE, "torch_native"),
        ("port", FailureKind.PORT_CONFLICT, Stage.GRAPH_CAPTURE, "address already in use"),
        ("mem-low", FailureKind.OOM_KV_POOL, Stage.KV_POOL, "no GPU memory for the KV cache"),
        ("no-drafter", FailureKind.DRAFTER_MISMATCH, Stage.GRAPH_CAPTURE, "hot_token_id"),
        ("too-many-tokens", FailureKind.CONFIG_ILLEGAL, Stage.WARM_UP, "selected index k out of range"),
        ("out-of-memory", FailureKind.OOM_GRAPH_CAPTURE, Stage.GRAPH_CAPTURE, "CUDA out of memory"),
    ],
)
def test_a_real_log_names_its_cause_and_stage(log: str, kind: FailureKind, stage: Stage, words: str) -> None:
    """Logs of SGLang 0.5.17 on an H200, each ended by one mistake: the exit status (-9) alone tells nothing (cases L15, L16)."""
    read = dialect().diagnose((LOGS / f"{log}.log").read_text(), -9)
    assert (read.kind, read.stage) == (kind, stage)
    assert words in read.message


def test_a_misspelt_server_argument_is_answered_with_the_nearest_one() -> None:
    """The parser's usage in the log names all that there are; where none is near, nothing is guessed."""
    log = (LOGS / "flag-typo.log").read_text()
    misspelt = log.replace("--speculative-bogus 1", "--chunked-prefil-size 2048")
    assert dialect().diagnose(misspelt, 2).message.endswith("size 2048. Did you mean '--chunked-prefill-size'?")
    assert "Did you mean" not in dialect().diagnose(log, 2).message


def test_a_silent_kill_is_the_kernels_out_of_memory_killer() -> None:
    """Signal 9 and no error in the log."""
    assert dialect().diagnose("server_args=ServerArgs()", -9).kind is FailureKind.HOST_OOM


DIED = """[2026-11-29 23:30:40] server_args=ServerArgs(model_path='x')
[2026-11-29 23:30:50 TP0] Load weight begin. avail mem=139.09 GB.
{first}Traceback (most recent call last):
  File "engine.py", line 1277, in _wait_for_scheduler_ready
RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.
"""


def test_a_scheduler_that_the_kernel_kills_while_loading_is_no_crash_of_a_setting() -> None:
    """The server tells of it and ends with 1; where the scheduler had said something before, that counts."""
    assert dialect().diagnose(DIED.format(first=""), 1).kind is FailureKind.HOST_OOM
    spoke = DIED.format(first="ValueError: this value is not supported\n")
    assert dialect().diagnose(spoke, 1).kind is FailureKind.CRASH_START


@pytest.mark.parametrize(
    "line",
    [
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ],
)
def test_a_sick_card_is_no_fault_of_a_setting(line: str) -> None:
    """While loading or serving: told to nobody, tried once more on another card."""
    for stage in ("Load weight begin.", "The server is fired up and ready to roll!"):
        kind = dialect().diagnose(f"server_args=ServerArgs()\n{stage}\n{line}\n", -9).kind
        assert (kind, kind.blame, kind.retried) == (FailureKind.GPU_FAULT, "infrastructure", True)


def test_a_running_server_has_reached_serving() -> None:
    """The milestones of a whole real log end with the fired-up line."""
    assert dialect().stage((LOGS / "serving.log").read_text()) is Stage.SERVING


def test_decoding_outside_graphs_is_seen_in_the_log() -> None:
    """cuda graph: False in real decode lines."""
    assert dialect().decoding((LOGS / "no-graphs.log").read_text()).outside_graphs
    assert not dialect().decoding((LOGS / "serving.log").read_text()).outside_graphs


def test_an_interpreter_without_sglang_is_said_before_anything_starts() -> None:
    """The message names the interpreter and what to do."""
    with pytest.raises(MachineError, match=r"has no SGLang .* pip install sglang"):
        _ = dialect(python=sys.executable).version
    with pytest.raises(MachineError, match="cannot be run"):
        _ = dialect(python="/no/such/python").version


def test_a_row_of_plain_info_survives_json() -> None:
    """/server_info is JSON: nothing read from it needs more than that."""
    assert dialect().as_run(json.loads(json.dumps(INFO)), CHAIN) == CHAIN
