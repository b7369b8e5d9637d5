"""Fuzz: whatever a config, a stored file, a server's log or a server's answer holds, we answer in words of our own.

Never another exception, and never a hang.  Some hundred examples run with every test run, thousands with `make fuzz`
(FUZZ_EXAMPLES says how many for each kind; those that need a server get a tenth).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import results
from orchestrator.__main__ import main
from orchestrator.config import load_plan, plan_from_conf, to_yaml
from orchestrator.engines.sglang import SGLang
from orchestrator.errors import ConfError, SweepError
from orchestrator.facts import facts_of
from orchestrator.measuring import load, sending
from orchestrator.measuring.faults import HangError, MeasureError
from orchestrator.measuring.load import measure
from orchestrator.measuring.workload import Draw
from orchestrator.plan import Deadlines, EngineConf, Plan, Workload
from orchestrator.schedule import Schedule
from orchestrator.serving.faults import WrongServer
from orchestrator.serving.logs import Follower, cap_log, read_log
from orchestrator.serving.server import Launch, Server
from orchestrator.stored import stored_environment, stored_plan
from orchestrator.sweep import _sampler
from results.failure import FailureKind, Stage
from results.files import RunDirProblem
from results.ledger import Ledger
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial
from tests.fakes.plans import plan
from tests.fakes.raw_server import Answer, RawServer, raw_server
from tests.fakes.records import ORIGIN, failed, rows

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "20"))
CONF = Path(__file__).resolve().parent.parent / "conf"
LOGS = Path(__file__).parent / "fixtures" / "sglang-0.5.17" / "logs"


def fuzz(share: float = 1.0) -> Callable[..., Any]:
    """So many examples, without a clock: a busy machine is no finding."""
    count = max(10, int(EXAMPLES * share))
    checks = [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ]
    return settings(max_examples=count, deadline=None, suppress_health_check=checks, print_blob=True)


# Mutations of a text that was good.

JUNK = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"\0", b"\xff", b"\n", b"&a [*a]", b"!!python/name:os.system", b"? {}", b"1e999", b"-1", b"9" * 400, b"{", b"[" * 3000, b"${target.path}", b"${oc.env:HOME}", b"null", b": ", b"\xed\xa0\x80"]
    ),
)  # fmt: skip
EDITS = st.lists(st.tuples(st.sampled_from(["insert", "delete", "replace", "cut", "repeat", "flip"]), st.floats(0, 1), st.integers(1, 40), JUNK), min_size=1, max_size=4)  # fmt: skip


def mutated(content: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, where, length, junk in edits:
        at = int(where * len(content))
        before, part, after = content[:at], content[at : at + length], content[at + length :]
        content = {
            "insert": before + junk + part + after, "delete": before + after, "replace": before + junk + after,
            "cut": before, "repeat": before + part + part + after,
            "flip": before + bytes(byte ^ 1 << length % 8 for byte in part[:1]) + part[1:] + after,
        }[kind]  # fmt: skip
    return content


# Configs.

KEYS = [
    "conf",
    "target",
    "target.path",
    "target.context_length",
    "target.tp_size",
    "target.dtype",
    "drafters",
    "drafters.own",
    "engine",
    "engine.name",
    "engine.env",
    "engine.python",
    "engine.profile",
    "engine.host",
    "cluster.gpus",
    "cluster.address",
    "space",
    "space.algorithm",
    "space.drafter",
    "space.num_steps",
    "space.eagle_topk",
    "space.num_draft_tokens",
    "space.attention_backend",
    "space.max_running_requests",
    "space.mem_fraction_static",
    "space.cuda_graph",
    "space.page_size",
    "server_args",
    "server_args.chunked_prefill_size",
    "workload",
    "workload.concurrency",
    "workload.prompts",
    "workload.repeats",
    "workload.temperature",
    "objective",
    "objective.maximize",
    "objective.at",
    "objective.limits",
    "budget",
    "budget.launches",
    "budget.hours",
    "sampler",
    "sampler.seed",
    "sampler.name",
    "warm_start",
    "deadlines.load_s",
    "out",
    "defaults",
    "drafters_unchecked",
]
VALUES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "", "null", "[]", "{}", "[1, 2]", "{low: 1, high: 3}", "{low: 3, high: 1}", "{low: 0, high: 1e308}", "1", "-1", "0", "1e309",
            ".nan", "yes", "all", "none", "EAGLE3", "[none, EAGLE3]", "[none, none]", "own", "[own, public]", "speedup", "${target}",
            "${target.path}", "${nope}", "${oc.env:PATH}", "${oc.env:HF_TOKEN}", "${oc.decode:1}", "???", "[[1]]", "{a: {b: c}}", "&x [*x]",
            "9" * 5000, "!!python/object:os.system x", "2026-01-01", "12:30:00", "\ud800", "1_000", "0x10", "{? [a] : b}", "~", "/dev/zero",
            "/dev/null", "[1, '1']", "{low: 1, high: 1000000000000}", "{low: 0.1, high: 0.9}", "simulated", "sglang", "demo",
        ]
    ),
    st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6).map(json.dumps),
)  # fmt: skip
WORDS = st.lists(st.one_of(st.tuples(st.sampled_from(KEYS), VALUES).map("=".join), st.text(max_size=30)), max_size=5)


def accepts(make: Callable[[], Plan]) -> None:
    """Only ConfError, with a line a mistake; what is accepted loads again from what is stored of it."""
    try:
        made = make()
    except ConfError as refused:
        mistakes: list[Any] = refused.mistakes
    else:
        mistakes = ["none"]
        stored = to_yaml(made)
        assert to_yaml(plan_from_conf(made.conf, made.name, Path.cwd(), to_run=False)) == stored
    assert mistakes
    assert all(isinstance(line, str) and line for line in mistakes)


@fuzz(2)
@given(conf=st.sampled_from(["demo", "eagle3", "kimi-k2.5"]), words=WORDS, to_run=st.booleans())
def test_any_words_are_a_plan_or_mistakes(conf: str, words: list[str], to_run: bool) -> None:
    """Whatever stands on the command line."""
    accepts(lambda: load_plan([f"conf={conf}", *words], to_run=to_run))


@fuzz(2)
@given(conf=st.sampled_from(["demo", "eagle3", "kimi-k2.5"]), edits=EDITS, to_run=st.booleans())
def test_a_damaged_config_is_a_plan_or_mistakes(tmp_path: Path, conf: str, edits: Any, to_run: bool) -> None:
    """Whatever a YAML file holds."""
    path = tmp_path / "conf.yaml"
    path.write_bytes(mutated((CONF / f"{conf}.yaml").read_bytes(), edits))
    accepts(lambda: load_plan([f"conf={path}"], to_run=to_run))


@fuzz(0.5)
@given(edits=EDITS)
def test_a_damaged_profile_is_a_mistake(tmp_path: Path, edits: Any) -> None:
    """What the simulated engine pretends to be is a file of somebody, too."""
    path = tmp_path / "profile.yaml"
    path.write_bytes(mutated((CONF / "profiles" / "demo.yaml").read_bytes(), edits))
    accepts(lambda: load_plan(["conf=demo", f"engine.profile={path}"]))


# Stored runs.


@cache
def a_run(folder: Path) -> RunDir:
    """A run of three trials, one failed and one half measured, as a driver that was killed leaves it."""
    run = RunDir.at(folder / "pristine")
    asked = load_plan(["conf=demo", "workload.concurrency=[1,8]"])
    run.write_text(run.plan, f"# conf: demo\n{to_yaml(asked)}")
    run.write_text(run.environment, json.dumps({"engine_version": "0.5.17 (demo)"}))
    run.journal.note("sweep_started", conf="demo")
    ledger = Ledger.open(run)
    points = (LoadPoint(1, 0), LoadPoint(8, 0))
    speculative = Settings("EAGLE3", "own", 3, 1, 4, "fa3", max_running_requests=8, server_args=(("chunk", 8),))
    for number, launched in enumerate((Settings(attention_backend="fa3", max_running_requests=8), speculative, speculative.replace(num_steps=2, num_draft_tokens=3))):  # fmt: skip
        trial = Trial(number, launched, "trial" if number else "baseline", points, coordinates={"num_steps": 3})
        run.begin(trial)
        run.amend(number, process_group=2**22 + number, host="node", marker=f"{run.marker}/{trial.name}/1-a")
        for record in [rows(trial), [failed(trial)], rows(trial)[:1]][number]:
            ledger.append(record)
        run.journal.note("trial_ended", trial=number, held_s=3.0, gpus=["0"], complete=True)
    run.journal.note("left_behind", trial=0, gpus=["0"], what=["process 7"])
    return run


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return a_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copied(pristine: RunDir, tmp_path: Path) -> Callable[[], RunDir]:
    def make() -> RunDir:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return RunDir(Path(shutil.copytree(pristine.path, tmp_path / "run")))

    return make


STORED = ["plan.yaml", "environment.json", "events.jsonl", "begun/000000.json", "begun/000002.json", "trials/000000.parquet", "trials/000001.parquet", "trials/000002.parquet"]  # fmt: skip


def takes_up(run: RunDir) -> None:
    """What `resume` does up to its first launch."""
    try:
        asked = stored_plan(run, to_run=False)
        stored_environment(run)
    except SweepError:
        asked = plan(workload=Workload(concurrency=[1, 8]))
    try:
        ledger = Ledger.open(run)
    except RunDirProblem:
        return
    facts = facts_of(asked)
    schedule = Schedule(asked, run, ledger, _sampler(asked, run, ledger, facts), lambda: None, facts)
    if (trial := schedule.draw()) is not None:
        for record in rows(trial):
            ledger.append(record)
        schedule.ended(trial.number, complete=True, retry=False)
    assert Ledger.open(run).records == ledger.records


@fuzz()
@given(damage=st.dictionaries(st.sampled_from(STORED), EDITS, min_size=1, max_size=2))
def test_a_damaged_run_is_read_and_taken_up_or_refused_in_words(
    copied: Callable[[], RunDir], damage: dict[str, Any]
) -> None:
    """status and report exit with 0, 1 or 2 and no traceback; a resume sets aside what it cannot read and goes on."""
    run = copied()
    for name, edits in damage.items():
        path = run.path / name
        path.write_bytes(mutated(path.read_bytes(), edits))
    assert main(["status", str(run.path)]) in (0, 2)
    assert main(["report", str(run.path)]) in (0, 1, 2)
    results.load(run)
    takes_up(run)


BEGUN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.text(max_size=4), st.sampled_from(["EAGLE3", "own"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["num_steps", "algorithm", "tp_size", "server_args", "x"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@fuzz()
@given(changes=st.dictionaries(st.sampled_from(["trial", "attempt", "kind", "launch", "settings", "load_points", "coordinates", "started_at", "process_group", "marker", "host", "more"]), BEGUN, max_size=3))  # fmt: skip
def test_a_begun_trial_of_anything_is_taken_up_or_set_aside(
    copied: Callable[[], RunDir], changes: dict[str, Any]
) -> None:
    """Whole JSON with nonsense in it."""
    run = copied()
    path = run.begun_file(2)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert main(["status", str(run.path)]) == 0
    takes_up(run)


# Logs.

LINES = st.sampled_from([line for file in sorted(LOGS.glob("*.log")) for line in file.read_bytes().splitlines()[-40:]])
LOG = st.one_of(
    st.binary(max_size=400),
    st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=12).map(b"\n".join),
    st.tuples(st.lists(LINES, max_size=12).map(b"\r\n".join), EDITS).map(lambda pair: mutated(*pair)),
)


@cache
def sglang() -> SGLang:
    return SGLang(dataclasses.replace(plan(), engine=EngineConf(python="/usr/bin/python3")))


@fuzz(3)
@given(log=LOG, returncode=st.none() | st.integers(-64, 255))
def test_a_log_of_any_bytes_has_a_stage_and_a_cause(log: bytes, returncode: int | None) -> None:
    """Both from the closed sets, and the message is a line."""
    text = log.decode(errors="replace")
    assert sglang().stage(text) in Stage
    read = sglang().diagnose(text, returncode)
    assert (read.kind in FailureKind, read.stage in Stage, isinstance(read.message, str)) == (True, True, True)
    assert sglang().decoding(text).outside_graphs in (True, False)


@fuzz()
@given(log=LOG, most=st.integers(0, 300))
def test_a_log_of_any_bytes_is_followed_read_and_capped(tmp_path: Path, log: bytes, most: int) -> None:
    """Every byte is seen once while it grows, and a capped log is no longer than its cap and the line that says so."""
    path = tmp_path / "server.log"
    path.write_bytes(log)
    assert "\n".join(Follower(path).read_all()) == log.decode(errors="replace") or b"\n" in log
    read_log(path, head=10, tail=10)
    cap_log(path, most)
    assert path.stat().st_size <= max(most, 100)


# Servers' answers.

PLAIN_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**400), 10**400), st.floats(), st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=5,
)  # fmt: skip
INFO_KEYS = ["served_model_name", "internal_states", "speculative_num_steps", "attention_backend", "tp_size", "disable_cuda_graph", "page_size", "speculative_algorithm", "mem_fraction_static", "effective_max_running_requests_per_dp", "avg_spec_accept_length", "last_gen_throughput"]  # fmt: skip
INFOS = st.dictionaries(st.sampled_from(INFO_KEYS), st.one_of(PLAIN_JSON, st.lists(st.dictionaries(st.sampled_from(INFO_KEYS), PLAIN_JSON, max_size=3), max_size=2)), max_size=5)  # fmt: skip


@fuzz(2)
@given(info=INFOS)
def test_what_a_server_says_of_itself_fits_a_row_whatever_it_is(
    tmp_path_factory: pytest.TempPathFactory, info: dict[str, Any]
) -> None:
    """Values of the wrong type are not taken for what ran; the row can be written and read back."""
    asked = Settings("EAGLE3", "own", 3, 1, 4, "fa3", max_running_requests=8)
    ran = sglang().as_run(info, asked)
    limit = sglang().running_limit(info)
    assert limit is None or isinstance(limit, int)
    run = RunDir.at(tmp_path_factory.mktemp("run") / "run")
    record = dataclasses.replace(failed(Trial(0, asked, "trial", ())), settings=ran)
    Ledger.open(run).append(record)
    assert Ledger.open(run).records == [record]


META_KEYS = ["completion_tokens", "prompt_tokens", "finish_reason", "spec_verify_ct", "spec_num_correct_drafts", "spec_correct_drafts_histogram", "spec_accept_histogram"]  # fmt: skip
EVENTS = st.one_of(
    st.dictionaries(st.sampled_from(META_KEYS), PLAIN_JSON, max_size=6).map(lambda meta: json.dumps({"text": "x", "meta_info": {"completion_tokens": 3, "finish_reason": {"type": "stop"}, **meta}}, separators=(",", ":")).encode()),
    st.sampled_from([b"[DONE]", b'{"error": {"message": "\\ud800"}}', b"{" * 3000, b'{"meta_info":{"completion_tokens":' + b"9" * 6000 + b"}}", b'"completion_tokens":7', b'{"error":' + b"[" * 5000]),
    st.binary(max_size=30),
)  # fmt: skip
STREAMS = st.lists(EVENTS, max_size=4).map(lambda events: b"".join(b"data: " + event + b"\n\n" for event in events))
HEADS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=bogus\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Type: text/plain; charset=bogus\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 400 Busy\r\nConnection: close\r\n\r\n", b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 X\r\nLocation: /generate\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 302 X\r\nLocation: gopher:[bad\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/9.9 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\x00;;\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70000 + b"\r\n\r\n", b"", b"\0\0\0\0", b"SSH-2.0-OpenSSH\r\n",
    ]
)  # fmt: skip
BODIES = st.one_of(STREAMS, st.binary(max_size=40), PLAIN_JSON.map(lambda value: json.dumps(value).encode()), INFOS.map(lambda info: json.dumps(info).encode()), st.just(b"[" * 100_000), STREAMS.map(lambda text: b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)), STREAMS.map(lambda text: b"%x\r\n%b" % (len(text) + 5, text)))  # fmt: skip
WILD = st.builds(
    lambda head, body, **more: Answer((head, body), **more), HEADS, BODIES, pause_s=st.sampled_from([0.0, 0.01]), endless=st.integers(0, 9).map(lambda n: n == 0),
    reset=st.booleans(), silent_s=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
)  # fmt: skip
ANSWERS = st.one_of(WILD, STREAMS.map(lambda body: Answer.of(200, body)), INFOS.map(lambda info: Answer.of(200, json.dumps(info).encode())), st.just(Answer.of(200, b"{}")))  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with raw_server() as running:
        yield running


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are meant for real servers, cut short."""
    monkeypatch.setattr(load, "FLUSH_S", 0.2)
    monkeypatch.setattr(sending, "DEATH_NOTICE_S", 0.1)
    monkeypatch.setattr(load, "FIGURES_S", 0.3)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` gives or raises; fails if it is not over by then."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(timeout=seconds)


@fuzz(0.5)
@given(generate=ANSWERS, flush=ANSWERS, info=ANSWERS)
def test_any_answers_are_measured_or_refused_in_time(
    server: RawServer,
    hasty: None,
    tmp_path_factory: pytest.TempPathFactory,
    generate: Answer,
    flush: Answer,
    info: Answer,
) -> None:
    """Slow, huge, malformed, of wrong types, cut: figures that fit a row, or one of two errors, and never a hang."""
    server.answers = {"/generate": generate, "/flush_cache": flush, "/server_info": info}
    draw = Draw(warm_up=(("a", "b"), ("c", "d")), measured=("e", "f", "g"))
    workload = Workload(concurrency=[2], output_tokens=4)
    try:
        measurement, flags = within(60, lambda: measure(server.url, draw, workload, LoadPoint(2, 0), 0.4))
    except (MeasureError, HangError) as error:
        record = failed(Trial(0, Settings(), "baseline", ()))
        assert record.failure is not None
        record = dataclasses.replace(record, failure=dataclasses.replace(record.failure, message=str(error)))
        written(tmp_path_factory, record)
        return
    trial = Trial(0, Settings(), "baseline", (LoadPoint(2, 0),))
    written(tmp_path_factory, Record.of(trial, ORIGIN, point=LoadPoint(2, 0), measurement=measurement, flags=flags, started_at=datetime.now(UTC)))  # fmt: skip


def written(folders: pytest.TempPathFactory, record: Record) -> None:
    run = RunDir.at(folders.mktemp("run") / "run")
    Ledger.open(run).append(record)
    assert len(Ledger.open(run).records) == 1
    run.journal.note("trial_failed", cause=record.failure.message if record.failure else "")


@fuzz(0.5)
@given(info=ANSWERS, generate=ANSWERS, ours=st.booleans())
def test_any_answers_while_starting_are_waited_through_or_refused(
    server: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: Answer, generate: Answer, ours: bool
) -> None:
    """A server is ready, not ready yet, or another one: nothing else, whatever it says."""
    monkeypatch.setattr("orchestrator.serving.server.ANSWER_S", 0.3)
    server.answers = {
        "/server_info": Answer.of(200, b'{"served_model_name": "m"}') if ours else info,
        "/generate": generate,
    }
    launch = Launch((), {}, tmp_path / "server.log", "127.0.0.1", server.port, "m")
    asked = Server(launch, Deadlines(request_s=0.3))
    try:
        ready = within(60, asked._server_info)
        assert ready is None or ready["served_model_name"] == "m"
        assert within(60, asked._generates) in (True, False)
    except WrongServer:
        assume(not ours)
