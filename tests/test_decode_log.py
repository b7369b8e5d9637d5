"""What the decode lines of a server's log say against a row."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engines.decode_log import DecodeLog

LOGS = Path(__file__).parent / "fixtures" / "sglang-0.5.17" / "logs"


def line(running: int, queued: int = 0, graph: bool = True, speed: float = 3900.0) -> str:
    return (
        f"[2025-06-01 10:00:09] Decode batch, #running-req: {running}, #token: 4096, token usage: 0.10, accept len: 2.40,"
        f" accept rate: 0.47, cuda graph: {graph}, gen throughput (token/s): {speed:.2f}, #queue-req: {queued}"
    )


def test_a_real_log() -> None:
    """Every decode line of a real 0.5.17 is read: it ran in graphs, no request was taken back."""
    seen = DecodeLog.of((LOGS / "serving.log").read_text())

    assert (seen.graph_off_share, seen.retracted) == (0, 0)
    assert max(seen.running) == 64
    assert len(seen.running) == len(seen.waiting) > 5


def test_graphs_off_in_most_lines() -> None:
    """Case S06: two lines in graphs, eight outside as the batch grew past the captured sizes."""
    seen = DecodeLog.of("\n".join([line(31)] * 2 + [line(60, graph=False)] * 8))

    assert (seen.graph_off_share, seen.outside_graphs) == (0.8, True)


def test_a_line_in_a_hundred_outside_graphs_is_nothing() -> None:
    """A few per cent are let pass; a log without decode lines says nothing at all."""
    assert not DecodeLog.of("\n".join([line(8)] * 99 + [line(8, graph=False)])).outside_graphs
    assert DecodeLog.of("server_args=…\n").graph_off_share is None


def test_requests_that_wait_while_too_few_run() -> None:
    """Case S04: 48 of 128 run and 80 wait, line after line; a queue that empties after the start is none."""
    assert DecodeLog.of("\n".join([line(48, 80)] * 5)).clamped_below(128)
    assert not DecodeLog.of("\n".join([line(48, 80), *[line(64)] * 5])).clamped_below(128)
    assert not DecodeLog.of("\n".join([line(128, 3)] * 5)).clamped_below(128)


def test_requests_taken_back() -> None:
    """A full KV cache is said by SGLang in one line each time."""
    said = "[2025-06-01 10:00:10] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 900"
    assert DecodeLog.of(f"{said}\n{line(8)}\n{said}").retracted == 6


def test_the_servers_own_speed() -> None:
    """Lines that span a pause, a start or an end of the load do not count; too few say nothing."""
    lines = [line(8, speed=206), line(8, speed=1900), line(8, speed=2000), line(8, speed=2100), line(3, speed=700)]

    assert DecodeLog.of("\n".join([*lines, line(8, speed=150)])).output_tok_s == 2000
    assert DecodeLog.of("\n".join(lines[:3])).output_tok_s is None
