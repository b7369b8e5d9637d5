"""One load point on a server whose every token, time and fault is known."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.measuring import load, sending
from orchestrator.measuring.faults import HangError, MeasureError, Stopped
from orchestrator.measuring.load import measure
from orchestrator.measuring.pace import Pace
from orchestrator.measuring.reply import Finished
from orchestrator.measuring.workload import Draw, load_prompts
from orchestrator.plan import Workload
from results.measurement import Flag, Measurement
from sweeps.trial import LoadPoint
from tests.fakes.simulator import CHAIN, serving, speculation

SERVER = Path(__file__).parent / "fakes" / "scripted_server.py"
SPECULATION = {"spec_verify_ct": 4, "spec_num_correct_drafts": 6, "spec_correct_drafts_histogram": [1, 1, 1, 1]}


class Scripted:
    """A running scripted server and what it was asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def seen(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/seen", timeout=10) as answer:  # noqa: S310  # our own server
            return dict(json.load(answer))

    def asked(self) -> list[str]:
        """The prompts in the order in which they came, and the flushes between them."""
        return [one.get("text", one["path"]) for one in self.seen()["requests"]]

    def check(self) -> None:
        """As a worker's check does: raises once the process is dead."""
        if self.process.poll() is not None:
            raise ProcessDiedError


class ProcessDiedError(Exception):
    pass


Start = Callable[..., Scripted]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers by their script and ends them with the test."""
    with contextlib.ExitStack() as ends:

        def started(**script: Any) -> Scripted:
            words = [sys.executable, str(SERVER), json.dumps(script)]
            process = ends.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            ends.callback(process.kill)
            return Scripted(process)

        yield started


def prompts(*measured: str, streams: int = 4, passes: int = 3, reused: bool = False) -> Draw:
    warm_up = tuple(tuple(f"warm {number}-{stream}" for stream in range(streams)) for number in range(passes))
    return Draw(warm_up, measured or tuple(f"ask {n}" for n in range(20)), reused)


def run(
    server: Scripted, draw: Draw | None = None, streams: int = 4, request_s: float = 20.0, **more: Any
) -> tuple[Measurement, tuple[Flag, ...]]:
    workload = Workload(concurrency=[streams], **more.pop("workload", {}))
    return measure(server.url, draw or prompts(streams=streams), workload, LoadPoint(streams, 0), request_s, **more)


def without_noise(flags: tuple[Flag, ...]) -> set[Flag]:
    """Flags but for those that a busy test machine may raise."""
    return set(flags) - {Flag.CLIENT_BOUND, Flag.WARM_UP_UNSETTLED, Flag.DRIFT, Flag.STALLED, Flag.REPETITIVE}


# Counts


def test_counts_are_exact(start: Start) -> None:
    """Several tokens a chunk, on several streams: every token and every verify step is counted once."""
    server = start(chunks=[1, 3, 2, 4], meta=SPECULATION)
    measured, flags = run(server)

    assert (measured.requests, measured.success_rate) == (20, 1)
    assert (measured.output_tokens, measured.input_tokens) == (200, 140)
    assert (measured.acceptance_length, measured.acceptance_histogram) == (2.5, [20, 20, 20, 20])
    assert measured.server_output_tok_s == 123.5
    assert without_noise(flags) == set()


def test_times_are_never_shorter_than_they_were(start: Start) -> None:
    """The server waits 40 ms before the first chunk and 10 ms before each other one; the client saw no less."""
    measured, _ = run(start(ttft_s=0.04, itl_s=0.01, chunks=[2, 2, 2]))

    assert measured.ttft_p50_ms is not None
    assert measured.itl_p50_ms is not None
    assert measured.tpot_p50_ms is not None
    assert 39 < measured.ttft_p50_ms < 5000
    assert 9 < measured.itl_p50_ms < 5000
    assert 4.5 < measured.tpot_p50_ms < 5000
    assert 0 < (measured.achieved_concurrency or 0) <= 4.01


def test_a_plain_server_has_no_acceptance(start: Start) -> None:
    """Without speculation there is no acceptance length, rather than one."""
    measured, _ = run(start())

    assert (measured.acceptance_length, measured.acceptance_histogram) == (None, None)


def test_a_useless_drafter_is_flagged(start: Start) -> None:
    """One right draft in fifty steps is a drafter that guesses nothing."""
    _, flags = run(start(meta={"spec_verify_ct": 50, "spec_num_correct_drafts": 1}))

    assert Flag.DRAFTER_INEFFECTIVE in flags


# The course of a point


def test_flush_warm_up_flush_measure(start: Start) -> None:
    """The order of a point; warm-up asks its own prompts, one a stream and pass, and none of the measured ones."""
    server = start()
    measured, _ = run(server)
    asked = server.asked()
    flushes = [n for n, text in enumerate(asked) if text == "/flush_cache"]
    passes = measured.warm_up_passes or 0

    assert flushes == [0, 1 + 4 * passes]
    assert sorted(asked[1 : flushes[1]]) == [
        f"warm {number}-{stream}" for number in range(passes) for stream in range(4)
    ]
    assert sorted(asked[flushes[1] + 1 :]) == sorted(f"ask {n}" for n in range(20))


def test_what_is_asked_of_the_server(start: Start) -> None:
    """Sampling parameters are given in full; warm-up asks for at most 64 tokens."""
    server = start()
    run(server, workload={"output_tokens": 200, "temperature": 0.5, "ignore_eos": True})
    requests = [one for one in server.seen()["requests"] if one["path"] == "/generate"]
    sampling = {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "ignore_eos": True}

    assert all(one["stream"] is True for one in requests)
    assert requests[0]["sampling_params"] == {**sampling, "max_new_tokens": 64}
    assert requests[-1]["sampling_params"] == {**sampling, "max_new_tokens": 200}


def test_streams(start: Start) -> None:
    """As many requests run at once as there are streams, never more."""
    server = start(ttft_s=0.05)
    run(server)

    assert server.seen()["most_running"] == 4


def test_warm_up_goes_on_while_something_compiles(start: Start) -> None:
    """Case B05: a stall in the first pass makes the second one no proof: there is a third; nothing of it is measured."""
    measured, _ = run(start(itl_s=0.002, first_gap_s=0.4))

    assert measured.warm_up_passes == 3


def test_a_busy_flush_is_tried_again(start: Start) -> None:
    """Case B02: the server refuses to flush while it is busy; it is asked until it has done so."""
    server = start(flush=[400, 400, 200])
    _, flags = run(server)

    assert server.asked()[:3] == ["/flush_cache"] * 3
    assert Flag.CACHE_NOT_FLUSHED not in flags


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_flush_that_never_works_is_flagged(start: Start, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Case B02: whatever the reason, the row says that the cache was not confirmed to be empty."""
    monkeypatch.setattr(load, "FLUSH_S", 0.3)
    measured, flags = run(start(flush=[status]))

    assert without_noise(flags) == {Flag.CACHE_NOT_FLUSHED}
    assert measured.success_rate == 1


def test_a_kept_cache_is_not_flushed(start: Start) -> None:
    """prefix_cache=kept measures with what the server remembers."""
    server = start()
    run(server, workload={"prefix_cache": "kept"})

    assert "/flush_cache" not in server.asked()


def test_flags_of_the_draw(start: Start) -> None:
    """Reused prompts and few requests are said in the flags."""
    _, flags = run(start(), prompts(*(f"ask {n}" for n in range(7)), reused=True))

    assert without_noise(flags) == {Flag.PROMPTS_REUSED, Flag.LOW_SAMPLES}


def test_a_server_without_figures_of_its_own(start: Start) -> None:
    """The cross-check is left out when /server_info holds none."""
    measured, _ = run(start(server_info={"internal_states": []}))

    assert (measured.server_output_tok_s, measured.server_acceptance_length) == (None, None)


# Faults


@pytest.mark.parametrize("fault", ["refuse", "cut", "abort", "complain", "empty"])
def test_one_failed_request_of_twenty(start: Start, fault: str) -> None:
    """It lowers the success rate and raises a flag; its tokens and times count nowhere."""
    server = start(chunks=[1, 3, 2, 4])
    measured, flags = run(server, prompts(f"{fault} this", *(f"ask {n}" for n in range(19))))

    assert (measured.success_rate, measured.requests, measured.output_tokens) == (0.95, 20, 190)
    assert without_noise(flags) == {Flag.REQUESTS_FAILED}


def test_one_silent_request_of_twenty(start: Start) -> None:
    """A request that gets no answer is given up after request_s, and the others count."""
    measured, flags = run(start(), prompts("silent one", *(f"ask {n}" for n in range(19))), request_s=2.0)

    assert (measured.success_rate, measured.output_tokens) == (0.95, 76)
    assert without_noise(flags) == {Flag.REQUESTS_FAILED}


@pytest.mark.parametrize(
    ("fault", "words"), [("refuse", "HTTP 503: no room"), ("abort", "out of memory"), ("empty", "no tokens")]
)
def test_too_many_failures(start: Start, fault: str, words: str) -> None:
    """Case B07: half of the requests failing is no measurement, however fast the others; the error names how many, the first cause, and no prompt."""
    draw = prompts(*(f"{fault if n % 2 else 'ask'} secret {n}" for n in range(20)))
    with pytest.raises(MeasureError, match=words) as caught:
        run(start(), draw)

    assert re.search(r"\d+ of 20 requests failed at concurrency 4", str(caught.value))
    assert "secret" not in str(caught.value)


def test_a_warm_up_without_any_success(start: Start) -> None:
    """When a whole warm-up pass fails, measuring is not begun."""
    server = start()
    draw = Draw((tuple(f"refuse {n}" for n in range(4)),), ("ask",) * 8)
    with pytest.raises(MeasureError, match="4 of 4 requests failed"):
        run(server, draw)

    assert "ask" not in server.asked()


@pytest.mark.parametrize("measured", [["silent now"] * 20, ["ask 1"] * 5 + ["freeze now"] + ["ask 2"] * 14])
def test_a_hang(start: Start, measured: list[str]) -> None:
    """A server from which no stream gets a token any more hangs, whether it had begun to answer or not."""
    with pytest.raises(HangError, match=r"no token on any of 4 streams"):
        run(start(), prompts(*measured), request_s=0.5)


def test_a_server_that_stops_in_the_middle_hangs_for_a_single_stream_too(start: Start) -> None:
    """The next request of the one stream goes out at once; the silence before it is not forgotten, and no request is to blame."""
    asked = ["ask 1", "ask 2", "silent 3", "silent 4", "silent 5", "silent 6"]
    with pytest.raises(HangError, match=r"no token on any of 1 streams"):
        run(start(), prompts(*asked, streams=1), streams=1, request_s=0.5)


def test_a_dead_server_is_reported_as_dead(start: Start) -> None:
    """Lost connections wait for the word of the check, which knows that the process died."""
    server = start()
    with pytest.raises(ProcessDiedError):
        run(server, prompts("ask 1", "ask 2", "die now", *["ask 3"] * 20), check=server.check)


def test_lost_connections_of_a_living_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the check finds nothing wrong, requests that break off are an invalid benchmark."""
    monkeypatch.setattr(sending, "DEATH_NOTICE_S", 0.3)
    server = start()
    with pytest.raises(MeasureError, match="20 requests failed"):
        run(server, prompts(*["cut it"] * 20), check=server.check)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port without a server is an error that names the refused connection."""
    monkeypatch.setattr(sending, "DEATH_NOTICE_S", 0.1)
    with pytest.raises(MeasureError, match="ConnectionRefusedError"):
        measure("http://127.0.0.1:9", prompts(), Workload(concurrency=[4]), LoadPoint(4, 0), 5.0)


def test_a_stop_ends_it_at_once(start: Start) -> None:
    """A stop asked for while requests are out is obeyed without waiting for them."""
    server, stopping = start(), threading.Event()

    def stop_when_measuring() -> None:
        if "silent 0" in server.asked():
            stopping.set()

    with pytest.raises(Stopped):
        run(
            server,
            prompts(*(f"silent {n}" for n in range(20))),
            request_s=60,
            check=stop_when_measuring,
            stopping=stopping,
        )


# Warm-up that settles


def pace(gap_s: float, ttft_s: float = 1.0) -> Pace:
    chunks_s = (ttft_s, ttft_s + gap_s, ttft_s + 2 * gap_s)
    return Pace.of([Finished(0.0, chunks_s[-1], chunks_s, chunk_tokens=(1, 4, 4), tokens=9)])


@pytest.mark.parametrize(
    ("before", "after", "settled"),
    [
        (pace(1.0), pace(1.04), True),
        (pace(1.0), pace(0.94), False),
        (pace(1.0), pace(1.06), False),
        (pace(1.0, ttft_s=1.0), pace(1.0, ttft_s=0.4), False),
        (pace(1.0, ttft_s=1.0), pace(1.0, ttft_s=0.6), True),
        (pace(1.0, ttft_s=0.4), pace(1.0, ttft_s=1.0), True),
    ],
)
def test_settled(before: Pace, after: Pace, settled: bool) -> None:
    """Two passes are alike when their chunks came equally fast and first tokens are not still getting faster."""
    assert after.settled_since(before) == settled


# Together with the stand-in server


def test_the_simulator_can_be_measured(tmp_path: Path) -> None:
    """The simulated engine answers in words that the load generator understands, with shipped prompts."""
    workload = Workload(concurrency=[2], requests_per_stream=3, output_tokens=16)
    with serving(tmp_path, *speculation(*CHAIN)) as simulator:
        measured, _ = measure(
            simulator.url, load_prompts(workload, None).for_point(LoadPoint(2, 0)), workload, LoadPoint(2, 0), 60
        )

    assert (measured.success_rate, measured.requests) == (1, 6)
    assert 6 <= (measured.output_tokens or 0) <= 96
    assert (measured.acceptance_length or 0) >= 1


def test_requests_that_are_too_long_for_the_server_say_what_to_change(tmp_path: Path) -> None:
    """What the server answered, and the keys that decide it."""
    workload = Workload(concurrency=[1], output_tokens=4)
    with (
        serving(tmp_path, "--context-length", "10") as simulator,
        pytest.raises(
            MeasureError, match=r"longer than the model's context length .* Raise target\.context_length, lower"
        ),
    ):
        measure(simulator.url, load_prompts(workload, None).for_point(LoadPoint(1, 0)), workload, LoadPoint(1, 0), 60)


# Requests at a rate


def test_requests_at_a_rate(start: Start) -> None:
    """Random times, the same each time, however long answers take: more are out at once than there are streams."""
    server = start(ttft_s=0.3)
    rate = {"arrival": "poisson", "request_rate": 20.0}
    measured, flags = run(server, prompts(*(f"ask {n}" for n in range(30)), streams=2), streams=2, workload=rate)

    assert (measured.requests, measured.success_rate) == (30, 1)
    assert 5 < (measured.requests_per_s or 0) < 80
    assert server.seen()["most_running"] > 4
    assert Flag.LOW_SAMPLES not in flags


def test_nothing_hangs_between_requests_that_are_far_apart(start: Start) -> None:
    """Silence while no request is out is no hang, even where it lasts longer than one may take."""
    rate = {"arrival": "poisson", "request_rate": 2.0}
    measured, _ = run(start(), prompts(*["ask it"] * 6, streams=1), streams=1, request_s=0.3, workload=rate)

    assert measured.success_rate == 1
