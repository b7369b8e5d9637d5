"""The simulated server as a real process on a real port: endpoints against recorded ones, streams, counts, faults and ends."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.simulator.flags import parser, resolve
from orchestrator.simulator.profile import load_profile
from orchestrator.simulator.speech import natural_tokens, prompt_hash
from tests.fakes.simulator import CHAIN, DEADLINE_S, TREE, Simulator, events, launched, serving, speculation
from tests.fakes.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(__file__).parent / "fixtures" / "sglang-0.5.17"


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Iterator[Simulator]:
    flags = [*speculation(*CHAIN), "--max-running-requests", 8, "--enable-metrics", "--decode-log-interval", 4]
    with serving(tmp_path_factory.mktemp("chain"), *flags) as simulator:
        yield simulator


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[Simulator]:
    with serving(tmp_path_factory.mktemp("plain"), "--random-seed", 7) as simulator:
        yield simulator


# Endpoints, against what the real server answered


def real_json(name: str):
    return json.loads((REAL / name).read_text())


def real_events(name: str) -> list[dict]:
    return events((REAL / name).read_text())


def test_server_info_has_the_real_keys_and_says_that_it_is_simulated(chain):
    """Resolved arguments under SGLang's names; what is more than real is marked as the simulator's."""
    chain.generate("warm the counters up", 40)
    info, real = chain.json("/server_info"), real_json("server_info.json")
    assert info.keys() - real.keys() == {"simulated", "sim_profile"}
    assert info["simulated"] is True
    assert info["version"] == real["version"] == "0.5.17"
    state, real_state = info["internal_states"][0], real["internal_states"][0]
    assert {"avg_spec_accept_length", "last_gen_throughput", "memory_usage"} <= state.keys()
    assert state.keys() <= real_state.keys() | real.keys()
    assert state["memory_usage"].keys() == real_state["memory_usage"].keys()
    assert state["effective_max_running_requests_per_dp"] == info["max_running_requests"] == 8
    assert chain.json("/get_server_info").keys() == info.keys()


@pytest.mark.parametrize("path", ["v1_loads", "get_load", "v1_models", "model_info"])
def test_small_endpoints_answer_with_real_keys(chain, path):
    """A client that reads the real server's words finds them here; none is invented but `simulated`."""
    ours, real = chain.json("/" + path.replace("v1_", "v1/")), real_json(f"{path}.json")
    if path == "get_load":
        ours, real = ours[0], real[0]
    if path == "v1_loads":
        assert ours["loads"][0].keys() <= real["loads"][0].keys()
        assert ours["loads"][0]["speculative"].keys() == real["loads"][0]["speculative"].keys()
    if path == "v1_models":
        assert ours["data"][0].keys() == real["data"][0].keys()
    assert ours.keys() - {"simulated"} <= real.keys()
    assert path == "model_info" or ours.keys() == real.keys()


def test_metrics_are_real_ones(chain, plain):
    """Every metric is one of SGLang's with its type; without --enable-metrics there is no such page."""
    real = set((REAL / "metrics_types.txt").read_text().splitlines())
    text = chain.request("GET", "/metrics")[1].decode()
    assert {line for line in text.splitlines() if line.startswith("# TYPE")} <= real
    assert 'sglang:spec_accept_length{engine_type="unified",model_name="/models/target"}' in text
    assert plain.request("GET", "/metrics")[0] == 404


def test_health_and_unknown_paths(chain):
    """Healthy when ready; other paths and methods are refused as a web server refuses them."""
    assert chain.request("GET", "/health")[0] == 200
    assert chain.request("GET", "/health_generate")[0] == 200
    assert chain.request("GET", "/no/such/page")[0] == 404
    assert chain.request("DELETE", "/generate")[0] == 405


@pytest.mark.parametrize(
    "body",
    [{"sampling_params": {}}, {"text": "x", "sampling_params": {"max_new_tokens": 0}}, [1], {"text": "x " * 20000}],
)
def test_impossible_requests_are_answered_with_400(chain, body):
    """No prompt, no tokens asked for, not an object, longer than the context."""
    assert chain.request("POST", "/generate", body)[0] == 400


# Streams and counts


@pytest.mark.parametrize(("name", "real_name"), [("chain", "eagle3"), ("plain", "plain")])
def test_generate_streams_as_the_real_server(name, real_name, request):
    """Cumulative text, one event a step, meta_info with real keys; the spec fields in the last event of a speculative server."""
    simulator = request.getfixturevalue(name)
    ours = simulator.stream(
        "/generate", {"text": "List three colours.", "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
    )
    first, last = (
        real_events(f"generate_stream-{real_name}.txt")[0],
        real_events(f"generate_stream-{real_name}.txt")[-1],
    )
    assert ours[0].keys() == first.keys()
    for mine, real in ((ours[0], first), (ours[-1], last)):
        assert mine["meta_info"].keys() <= real["meta_info"].keys()
    spec = {key for key in last["meta_info"] if key.startswith("spec_")}
    assert spec == {key for key in ours[-1]["meta_info"] if key.startswith("spec_")}
    counts = [event["meta_info"]["completion_tokens"] for event in ours]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(ours[-1]["output_ids"]) == 40
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(ours))
    assert ours[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}


def test_a_speculative_server_streams_several_tokens_in_one_event(chain, plain):
    """An event is a step: the plain server's always carries one token, the other's up to num_steps + 1."""
    body = {"text": "Why is the sea salt?", "sampling_params": {"temperature": 0, "max_new_tokens": 60}}
    gains = {}
    for name, simulator in (("chain", chain), ("plain", plain)):
        counts = [event["meta_info"]["completion_tokens"] for event in simulator.stream("/generate", body)]
        gains[name] = {after - before for before, after in pairwise(counts)}
    assert gains["plain"] == {1}
    assert max(gains["chain"]) > 1
    assert gains["chain"] <= {1, 2, 3, 4}


@pytest.mark.parametrize("shape", [CHAIN, TREE, ("NGRAM", "", 1, 10, 12)])
def test_spec_counts_are_exact(tmp_path, shape):
    """completion = 1 + verify steps + correct drafts; the histogram sums to both; proposed = verify steps x (tokens - 1)."""
    with serving(tmp_path, *speculation(*shape)) as simulator:
        for prompt in ("first", "second", "third prompt, somewhat longer"):
            meta = simulator.generate(prompt, 50)["meta_info"]
            steps, correct, histogram = (
                meta[f"spec_{n}"] for n in ("verify_ct", "num_correct_drafts", "correct_drafts_histogram")
            )
            assert meta["completion_tokens"] == 1 + steps + correct
            assert sum(histogram) == steps
            assert sum(j * count for j, count in enumerate(histogram)) == correct
            assert meta["spec_num_proposed_drafts"] == steps * (shape[4] - 1)
            assert meta["spec_accept_length"] == pytest.approx(meta["completion_tokens"] / steps)
            assert histogram[-1] > 0


def test_speculation_changes_no_output(chain, plain):
    """The same greedy prompt gives the same text, and ends at the same natural length, on any server."""
    demo = load_profile("demo")
    prompts = [f"What is {number}?" for number in range(200)]
    short = [prompt for prompt in prompts if natural_tokens(prompt_hash(prompt), demo) < 90][:3]
    assert len(short) == 3
    for prompt in short:
        ours, theirs = (server.generate(prompt, 2000) for server in (chain, plain))
        assert ours["text"] == theirs["text"]
        assert (
            ours["meta_info"]["finish_reason"] == theirs["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
        )
        shorter = plain.generate(prompt, 10)["text"]
        assert ours["text"].startswith(shorter)


def test_acceptance_repeats_across_launches(chain, tmp_path):
    """Another launch of the same settings accepts the same drafts of the same prompt; another drafter accepts others."""
    histograms = []
    for drafter in ("own", "public"):
        with serving(tmp_path, *speculation("EAGLE3", drafter, 3, 1, 4)) as again:
            histograms.append(again.generate("Tell me of bridges.", 200)["meta_info"]["spec_correct_drafts_histogram"])
    here = chain.generate("Tell me of bridges.", 200)["meta_info"]["spec_correct_drafts_histogram"]
    assert here == histograms[0] != histograms[1]


def test_completions_stream_as_the_real_server(chain):
    """OpenAI's words: deltas, a finish reason, usage when asked for."""
    body = {
        "prompt": "List three colours.",
        "max_tokens": 24,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    ours, real = chain.stream("/v1/completions", body), real_events("completions_stream.txt")
    for mine, theirs in ((ours[0], real[0]), (ours[-1], real[-1])):
        assert mine.keys() == theirs.keys()
    assert ours[0]["choices"][0].keys() == real[0]["choices"][0].keys()
    assert ours[-2]["choices"][0]["finish_reason"] == "length"
    assert ours[-1]["usage"].keys() == real[-1]["usage"].keys()
    text = "".join(event["choices"][0]["text"] for event in ours[:-1])
    assert (
        text
        == chain.json("/v1/completions", {k: v for k, v in body.items() if k != "stream_options"})["choices"][0]["text"]
    )


def test_chat_answers_as_the_real_server(chain):
    """Streamed and whole; the native meta_info is added where it is asked for."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "temperature": 0}
    ours, real = chain.stream("/v1/chat/completions", body), real_events("chat_stream.txt")
    for mine, theirs in ((ours[0], real[0]), (ours[1], real[1]), (ours[-1], real[-1])):
        assert mine.keys() == theirs.keys()
        assert mine["choices"][0]["delta"].keys() == theirs["choices"][0]["delta"].keys()
    whole = chain.json("/v1/chat/completions", {**body, "return_meta_info": True})
    assert whole.keys() == real_json("chat.json").keys()
    assert whole["choices"][0]["meta_info"]["spec_verify_ct"] > 0


def test_incremental_streaming_sends_only_what_is_new(tmp_path):
    """With --incremental-streaming-output the events' texts join to the whole."""
    with serving(tmp_path, *speculation(*CHAIN), "--incremental-streaming-output") as simulator:
        body = {"text": "Say something.", "sampling_params": {"temperature": 0, "max_new_tokens": 30}}
        found = simulator.stream("/generate", body)
        assert "".join(event["text"] for event in found) == simulator.generate("Say something.", 30)["text"]
        assert sum(len(event["output_ids"]) for event in found) == 30


def test_requests_beyond_the_limit_queue(chain):
    """Twelve requests on a server of eight: never more than eight at once, all answered, and the batch shows in the log."""
    seen = []

    def load() -> dict:
        return chain.json("/v1/loads")["loads"][0]

    with ThreadPoolExecutor(13) as pool:
        answers = [pool.submit(chain.generate, f"queue number {n}", 150) for n in range(12)]
        while not all(answer.done() for answer in answers):
            seen.append(load())
    assert all(answer.result()["meta_info"]["completion_tokens"] > 1 for answer in answers)
    assert max(point["num_running_reqs"] for point in seen) == 8
    assert max(point["num_waiting_reqs"] for point in seen) >= 1
    assert re.search(
        r"Decode batch, #running-req: 8, .*accept len: \d\.\d\d, accept rate: 0\.\d\d, cuda graph: True", chain.log
    )


def test_flush_is_refused_while_requests_run(tmp_path):
    """400 and nothing is reset; afterwards 200 and the cache and the acceptance totals are empty."""
    with serving(tmp_path, *speculation(*CHAIN), "--decode-log-interval", 1) as simulator:
        prompt = "A prompt of more than one block. " * 8
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(simulator.generate, prompt, 400)
            simulator.wait_log("Decode batch")
            assert simulator.request("POST", "/flush_cache")[0] == 400
            long.result()
        assert simulator.generate(prompt, 2)["meta_info"]["cached_tokens"] >= 16
        assert simulator.request("GET", "/flush_cache")[0] == 200
        assert "avg_spec_accept_length" not in simulator.json("/server_info")["internal_states"][0]
        assert simulator.generate(prompt, 2)["meta_info"]["cached_tokens"] == 0


def test_a_client_that_leaves_frees_its_slot(chain):
    """Closing the connection aborts the request."""
    connection = socket.create_connection(("127.0.0.1", chain.port))
    body = json.dumps(
        {"text": "endless", "stream": True, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    )
    connection.sendall(f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    wait_until(lambda: chain.json("/get_load")[0]["num_reqs"] == 1, "a request runs")
    connection.close()
    wait_until(lambda: chain.json("/get_load")[0]["num_reqs"] == 0, "the server is idle")


def test_abort_ends_a_stream_with_its_reason(plain):
    """POST /abort_request: the client gets what was said so far and finish_reason abort."""
    body = {"text": "endless", "rid": "mine", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(plain.stream, "/generate", body)
        wait_until(lambda: plain.json("/get_load")[0]["num_reqs"] == 1, "a request runs")
        assert plain.request("POST", "/abort_request", {"rid": "mine"})[0] == 200
        assert found.result()[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_one_connection_serves_many_requests(plain):
    """Keep-alive: answers on one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request(
                "POST", "/generate", json.dumps({"text": "hi", "sampling_params": {"max_new_tokens": 2}})
            )
            assert json.loads(connection.getresponse().read())["meta_info"]["completion_tokens"] <= 2


# SGLang's rewrites and refusals


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (speculation("EAGLE3", "own", 4, 1, 9), {"speculative_num_draft_tokens": 5, "max_running_requests": 48}),
        (
            speculation(*CHAIN)[:4],
            {"speculative_num_steps": 5, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8},
        ),
        (["--speculative-algorithm", "NGRAM"], {"speculative_eagle_topk": 10, "speculative_num_draft_tokens": 12}),
        (speculation("NEXTN", "own", 2, 1, 3), {"speculative_algorithm": "EAGLE"}),
        (speculation(*TREE), {"attention_backend": "flashinfer"}),
        (["--page-size", "16"], {"attention_backend": "fa3", "page_size": 16}),
    ],
)
def test_arguments_are_rewritten_as_sglang_does(flags, expected):
    """topk 1 fixes the tokens; nothing given is filled in; 48 requests with speculation; NGRAM's topk is its breadth."""
    given = parser().parse_args(["--model-path", "/m", "--sim-profile", "demo", *flags])
    args = resolve(given, load_profile("demo"))
    assert {name: args[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--no-such-flag", "1"], 2, "unrecognized arguments: --no-such-flag 1"),
        (["--speculative-algorithm", "LOOKAHEAD"], 1, "ValueError: Unknown speculative algorithm name: LOOKAHEAD"),
        (speculation("EAGLE3", "nope", 3, 1, 4), 1, "OSError: Repo id must be in the form"),
        (["--attention-backend", "trtllm_mha"], 1, "ValueError: Attention backend 'trtllm_mha'"),
        ([*speculation(*CHAIN)[:4], "--speculative-num-steps", "3"], 1, "TypeError: '>' not supported"),
        ([*speculation(*CHAIN)[:4], "--speculative-eagle-topk", "2"], 1, "AssertionError"),
        (
            ["--speculative-algorithm", "NGRAM", "--page-size", "16"],
            1,
            "ValueError: speculative_eagle_topk(10) > 1 with page_size(16)",
        ),
        (["--speculative-algorithm", "EAGLE3"], -9, "object has no attribute 'hot_token_id'"),
        (speculation("EAGLE3", "own", 2, 2, 16), -9, "Capture cuda graph failed: selected index k out of range"),
        (speculation("EAGLE3", "own", 1, 2, 16), -9, "selected index k out of range"),
        (["--mem-fraction-static", "0.1"], -9, "Not enough memory. Please try to increase --mem-fraction-static."),
        (["--mem-fraction-static", "1.0"], -9, "Capture cuda graph failed: CUDA out of memory"),
        (
            [*speculation("EAGLE3", "own", 5, 8, 32), "--max-running-requests", "32"],
            -9,
            "Capture cuda graph failed: CUDA out of memory",
        ),
        (["--tp-size", "4"], -9, "invalid device ordinal"),
        (["--sim-fault", "crash:lunch"], 2, "not a fault"),
    ],
)
def test_launches_that_sglang_refuses_end_as_they_do_there(tmp_path, flags, code, words):
    """Exit 2 from argparse, 1 from a rule, -9 from a scheduler that failed; the cause in SGLang's words."""
    with launched(tmp_path, *flags) as simulator:
        assert simulator.exit_code() == code
        assert words in simulator.log
        if code == -9:
            assert "Scheduler hit an exception: Traceback" in simulator.log


def test_an_eagle3_head_as_eagle_serves_at_acceptance_one(tmp_path):
    """The classic mistake: ready as usual, no error, nothing gained."""
    with serving(tmp_path, *speculation("EAGLE", "own", 3, 1, 4)) as simulator:
        assert simulator.generate("anything", 100)["meta_info"]["spec_accept_length"] < 1.1


# Start, port, end


def test_log_has_the_milestones_in_order(chain):
    """What an orchestrator reads a start's progress from; the port comes last."""
    milestones = (
        "server_args=ServerArgs(", "Init torch distributed begin", "Load weight begin", "Load weight end", "Load weight begin",
        "type=LlamaForCausalLMEagle3", "KV Cache is allocated", "Memory pool end", "Capture target verify CUDA graph begin",
        "Capture target verify CUDA graph end", "Capture draft decode CUDA graph begin", "Capture draft decode CUDA graph end",
        "max_total_num_tokens=", "Engine startup timings", "Uvicorn running on", "The server is fired up and ready to roll!",
    )  # fmt: skip
    position = 0
    for milestone in milestones:
        position = chain.log.index(milestone, position) + 1


def test_until_warm_the_port_answers_503(tmp_path):
    """Models are listed before the warm-up is over, health is not given."""
    with launched(tmp_path, "--sim-fault", "hang:warm_up") as simulator:
        simulator.wait_log("Uvicorn running")
        assert simulator.request("GET", "/health")[0] == 503
        assert simulator.request("GET", "/v1/models")[0] == 200
        assert "fired up" not in simulator.log


def test_a_taken_port_is_found_out_last_and_hangs(plain, tmp_path):
    """As the real one: everything is loaded, the port refused, and the process stays."""
    with launched(tmp_path, port=plain.port) as simulator:
        simulator.wait_log("Waiting for application shutdown.")
        assert "[Errno 98] error while attempting to bind on address" in simulator.log
        assert "Capture target decode CUDA graph end" in simulator.log
        assert simulator.process.poll() is None


def test_sigterm_ends_with_sglangs_exit_code(tmp_path):
    """0.5.17 kills itself even on a graceful stop; before it serves SIGTERM ends it at once."""
    with serving(tmp_path) as simulator:
        simulator.process.terminate()
        assert simulator.exit_code() == -signal.SIGKILL
    with launched(tmp_path, "--sim-fault", "hang:weights") as simulator:
        simulator.wait_log("server_args=")
        simulator.process.terminate()
        assert simulator.exit_code() == -signal.SIGTERM


# Faults


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("crash:validate", 1, "RuntimeError: simulated crash in validate"),
        ("crash:weights", -9, "simulated crash in weights"),
        ("crash:kv_pool", -9, "Received sigquit from a child process"),
        ("crash:graph_capture", -9, "simulated crash in graph_capture"),
        ("crash:warm_up", -9, "Initialization failed. warmup error:"),
        ("oom:weights", -9, "torch.OutOfMemoryError: CUDA out of memory"),
        ("oom:kv_pool", -9, "Not enough memory. Please try to increase --mem-fraction-static."),
        ("oom:graph_capture", -9, "Capture cuda graph failed: CUDA out of memory"),
        ("oom:warm_up", -9, "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_start_faults_end_the_process_in_their_stage(tmp_path, fault, code, words):
    """The exit code and the log's words of the real failure of that stage."""
    with launched(tmp_path, "--sim-fault", fault) as simulator:
        assert simulator.exit_code() == code
        assert words in simulator.log


@pytest.mark.parametrize("fault", ["crash:serving:2", "oom:serving"])
def test_serving_faults_break_the_stream_and_kill(tmp_path, fault):
    """The server dies with -9 while a request is being generated; requests before N are answered."""
    with serving(tmp_path, "--sim-fault", fault) as simulator:
        good = 2 if fault.startswith("crash") else 0
        for _ in range(good):
            assert simulator.generate("fine", 5)["meta_info"]["completion_tokens"] == 5
        with pytest.raises((http.client.HTTPException, OSError)):
            simulator.generate("doomed", 5)
        assert simulator.exit_code() == -9
        assert "Scheduler hit an exception: Traceback" in simulator.log


def test_hang_in_serving_stays_healthy_but_silent(tmp_path):
    """Health is fine, the connection is open, no token comes."""
    with serving(tmp_path, "--sim-fault", "hang:serving") as simulator:
        connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("POST", "/generate", json.dumps({"text": "hello"}))
            connection.sock.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.getresponse()
        assert simulator.request("GET", "/health")[0] == 200


@pytest.mark.parametrize(("spec", "progress"), [("slow:weights:0.5", True), ("slow:weights:0.5:silent", False)])
def test_a_slow_stage_says_so_unless_silent(tmp_path, spec, progress):
    """Progress lines are what tells a long load from a hang."""
    with serving(tmp_path, "--sim-fault", spec) as simulator:
        assert ("Multi-thread loading shards" in simulator.log) is progress


def test_hanging_start_never_gets_on(tmp_path):
    """The log stops before the stage; the process lives."""
    with launched(tmp_path, "--sim-fault", "hang:graph_capture") as simulator:
        simulator.wait_log("Memory pool end")
        assert "Capture" not in simulator.log
        assert simulator.process.poll() is None


def test_a_share_of_requests_fails(tmp_path):
    """Exactly that share, spread evenly."""
    with serving(tmp_path, "--sim-fault", "fail-requests:0.25") as simulator:
        codes = [
            simulator.request("POST", "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}})[0]
            for _ in range(8)
        ]
        assert codes == [200, 200, 200, 500, 200, 200, 200, 500]


def test_ignored_sigterm_needs_sigkill(tmp_path):
    """It goes on serving."""
    with serving(tmp_path, "--sim-fault", "ignore-term") as simulator:
        simulator.process.terminate()
        assert simulator.generate("still here", 3)["meta_info"]["completion_tokens"] == 3
        simulator.process.kill()
        assert simulator.exit_code() == -9


def test_a_grandchild_in_its_own_session_outlives_its_parent(tmp_path):
    """What a stop must find although it is in no process group of ours."""
    with serving(tmp_path, "--sim-fault", "setsid-grandchild") as simulator:
        [child] = Path(f"/proc/{simulator.process.pid}/task/{simulator.process.pid}/children").read_text().split()
        try:
            assert os.getsid(int(child)) == int(child)
            os.killpg(simulator.process.pid, signal.SIGKILL)
            simulator.exit_code()
            os.kill(int(child), 0)
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_profiles_own_faults_meet_the_settings_they_name(tmp_path):
    """`faults:` of a profile: some settings fail, the others serve."""
    text = (ROOT / "conf/profiles/demo.yaml").read_text()
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text(text + "faults:\n- when: {attention_backend: triton}\n  fault: oom:graph_capture\n")
    with launched(tmp_path, "--attention-backend", "triton", profile=faulty) as simulator:
        assert simulator.exit_code() == -9
    with serving(tmp_path, "--attention-backend", "fa3", profile=faulty):
        pass


def test_many_streams_at_once_are_all_whole(tmp_path):
    """Thirty-two streams, each with every token once and in order."""
    with serving(tmp_path, *speculation(*CHAIN), "--max-running-requests", 32) as simulator:
        found: dict[int, list[dict]] = {}

        def one(number: int) -> None:
            body = {
                "text": f"stream {number}",
                "sampling_params": {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True},
            }
            found[number] = simulator.stream("/generate", body)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(found) == list(range(32))
        assert all(stream[-1]["meta_info"]["completion_tokens"] == 40 for stream in found.values())
