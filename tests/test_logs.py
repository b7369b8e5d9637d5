"""A log keeps its two ends, whatever its size."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.serving.logs import Follower, cap_log, read_log


def test_short_log_is_read_whole(tmp_path: Path) -> None:
    """A log within the limits is read as it stands; bytes that are no UTF-8 do not matter."""
    log = tmp_path / "server.log"
    log.write_bytes(b"one\n\xfftwo\n")
    assert read_log(log) == "one\n�two\n"


def test_long_log_is_read_at_both_ends(tmp_path: Path) -> None:
    """Of a long log the first and last bytes are read, and a line says how many are left out."""
    log = tmp_path / "server.log"
    log.write_text("server_args=" + "x" * 1000 + "Traceback")
    assert read_log(log, head=12, tail=9) == "server_args=\n[... 1000 bytes of this log were cut here ...]\nTraceback"


def test_absent_log(tmp_path: Path) -> None:
    """A log that was never written reads as empty and needs no cap."""
    assert read_log(tmp_path / "server.log") == ""
    cap_log(tmp_path / "server.log", 1000)
    assert list(tmp_path.iterdir()) == []


def test_capped_log(tmp_path: Path) -> None:
    """A capped log keeps head and tail, a line in between says how much was cut, and nothing else is left in its folder."""
    log = tmp_path / "server.log"
    log.write_text("head" + "x" * 100_000 + "tail")
    cap_log(log, 4096)
    text = log.read_text()
    assert text.startswith("headxxx")
    assert text.endswith("xxxtail")
    kept = text.count("x") + 8
    assert f"[... {100_008 - kept} bytes of this log were cut here ...]" in text
    assert list(tmp_path.iterdir()) == [log]


@given(size=st.integers(0, 5000), cap=st.integers(100, 5000))
def test_cap_holds(size: int, cap: int, tmp_path_factory) -> None:
    """A log is never longer than its cap, a shorter one is left alone, and capping twice is capping once."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    log.write_bytes(b"x" * size)
    cap_log(log, cap)
    first = log.read_bytes()
    assert len(first) <= cap
    assert size > cap or first == b"x" * size
    cap_log(log, cap)
    assert log.read_bytes() == first


def test_following(tmp_path: Path) -> None:
    """A follower passes on complete lines once; a part of a line is growth too."""
    log = tmp_path / "server.log"
    follower = Follower(log)
    assert follower.read() == (False, [])
    log.write_text("Loading: 10%")
    assert follower.read() == (True, [])
    assert follower.read() == (False, [])
    with log.open("a") as more:
        more.write(" 20%\ndone\nlast")
    assert follower.read() == (True, ["Loading: 10% 20%", "done"])
    assert follower.read_all() == ["last"]


@given(text=st.text(st.sampled_from("ab\n"), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_lines_however_they_arrive(text: str, cuts: list[int], tmp_path_factory) -> None:
    """The lines heard do not depend on the pieces in which they were written."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    follower, heard = Follower(log), []
    edges = [0, *sorted(cuts), len(text)]
    for start, stop in itertools.pairwise(edges):
        with log.open("a") as more:
            more.write(text[start:stop])
        heard += follower.read()[1]
    assert [*heard, *follower.read_all()] == text.split("\n")
