"""RunDir: where everything of a run is, who drives it, what happened and what was started."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.driving import driver_of, lock
from results.files import DiskFull, NotWritable, RunDirProblem, write_whole
from results.rundir import RunDir
from sweeps.trial import LoadPoint, Trial
from tests.fakes.records import EAGLE3, PLAIN

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRIAL = Trial(
    number=17, settings=EAGLE3.replace(server_args=(("chunked_prefill_size", 8192),)), kind="trial", launch=1, attempt=2,
    load_points=(LoadPoint(1, 0), LoadPoint(8, 0)), coordinates={"num_steps": 3, "ratio": 0.5, "drafter": "own"},
)  # fmt: skip

HOLDER = """
import sys
from pathlib import Path
from results.driving import lock
from results.rundir import RunDir

with lock(RunDir(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def start_holder(run: RunDir) -> subprocess.Popen[str]:
    """Another process that drives `run` until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_run_is_named_by_its_conf_and_the_utc_time(tmp_path: Path) -> None:
    """Without out=, a run goes to runs/<conf>/<stamp>; two of the same second do not share a directory."""
    first = RunDir.create(tmp_path / "runs", "eagle3", NOW)
    second = RunDir.create(tmp_path / "runs", "eagle3", NOW)
    assert first.path == tmp_path / "runs" / "eagle3" / "20260102T030405Z"
    assert second.path.name == "20260102T030405Z-2"
    assert first.trials_dir.is_dir()


def test_all_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run directory named relatively stays the same place when the working directory changes."""
    monkeypatch.chdir(tmp_path)
    run = RunDir.at(Path("run"))
    assert run.path == tmp_path / "run"
    assert run.server_log("000017") == tmp_path / "run" / "logs" / "000017" / "server.log"
    assert run.trial_file(17) == tmp_path / "run" / "trials" / "000017.parquet"
    assert run.begun_file(17) == tmp_path / "run" / "begun" / "000017.json"


def test_out_names_the_run_directory_itself(tmp_path: Path) -> None:
    """out=DIR that is new or empty becomes the run directory; an attempt that wrote nothing yet does not spoil it."""
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/below"):
        assert RunDir.at(tmp_path / name).path == tmp_path / name
    with lock(RunDir.at(tmp_path / "empty")):
        pass
    assert RunDir.at(tmp_path / "empty").begun_dir.is_dir()


def test_out_on_a_run_is_refused_and_names_resume(run: RunDir) -> None:
    """A directory that holds a run is never started over."""
    run.plan.write_text("name: eagle3\n")
    with pytest.raises(RunDirProblem, match=rf"python -m orchestrator resume {run.path}"):
        RunDir.at(run.path)


def test_out_on_a_run_of_which_nothing_was_begun_is_taken(run: RunDir) -> None:
    """A sweep that came to nothing before its first launch is in nobody's way; what was launched stays."""
    run.journal.note("sweep_started", conf="eagle3")
    run.plan.write_text("# conf: eagle3\n")
    with lock(RunDir.at(run.path)):
        run.require_new()
    run.begin(TRIAL)
    with pytest.raises(RunDirProblem, match=rf"python -m orchestrator resume {run.path}"):
        RunDir.at(run.path)
    with pytest.raises(RunDirProblem, match="another driver began a run in it just now"):
        run.require_new()


def test_out_on_foreign_files_is_refused(tmp_path: Path) -> None:
    """A directory with other people's files in it, or a file, is not taken."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirProblem, match=r"holds thesis\.tex"):
        RunDir.at(tmp_path)
    with pytest.raises(RunDirProblem, match="this is a file"):
        RunDir.at(tmp_path / "thesis.tex")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """Making a directory below a file fails with the place and what to do."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirProblem, match=r"cannot make a run directory here .* out=DIR"):
        RunDir.create(tmp_path / "file", "eagle3", NOW)


def test_opening_something_else_names_the_nearest_run(tmp_path: Path) -> None:
    """A typo, the folder above, the folder below: the message names the run that was probably meant."""
    run = RunDir.create(tmp_path, "eagle3", NOW)
    run.plan.write_text("name: eagle3\n")
    assert RunDir.open(run.path) == run
    wrong = [run.path.with_name("20260102T030406Z"), tmp_path, tmp_path / "eagle3", run.trials_dir]
    for path in wrong:
        with pytest.raises(RunDirProblem, match=f"Did you mean {run.path} ?"):
            RunDir.open(path)
    with pytest.raises(RunDirProblem, match="no such directory"):
        RunDir.open(tmp_path / "eagle3" / "nothing-like-it")


def test_two_drivers_never_run_at_once(run: RunDir) -> None:
    """While one process drives a run, another is told its pid and host; and who asks can see it."""
    holder = start_holder(run)
    assert driver_of(run) == f"process {holder.pid} on {socket.gethostname()}"
    with pytest.raises(RunDirProblem, match=f"busy, process {holder.pid} on"), lock(run):
        pass
    holder.communicate("")
    assert holder.returncode == 0
    assert driver_of(run) is None
    with lock(run):
        assert str(os.getpid()) in str(driver_of(run))


def test_a_driver_that_was_killed_leaves_no_lock(run: RunDir) -> None:
    """After kill -9 of the driver the run can be taken up at once."""
    holder = start_holder(run)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock(run):
        pass


def test_the_journal_keeps_order_and_time(run: RunDir) -> None:
    """Each event is a line with its time in UTC."""
    assert run.journal.events() == []
    run.journal.note("sweep_started", conf="eagle3")
    run.journal.note("trial_ended", trial=0, held_s=1800.0, gpus=["0", "1"])
    first, second = run.journal.events()
    assert (first["event"], first["conf"], second["trial"]) == ("sweep_started", "eagle3", 0)
    assert datetime.fromisoformat(first["at"]).tzinfo is not None


@given(cut=st.integers(1, 60))
def test_a_torn_last_line_costs_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """A journal cut anywhere in its last line keeps the lines before, and what is noted afterwards."""
    run = RunDir.at(tmp_path_factory.mktemp("journal") / "run")
    run.journal.note("one")
    run.journal.note("two", facts="x" * 60)
    whole = run.journal.path.read_bytes()
    run.journal.path.write_bytes(whole[:-cut])
    run.journal.note("three")
    assert [event["event"] for event in run.journal.events()] == (
        ["one", "two", "three"] if cut == 1 else ["one", "three"]
    )


def test_gpu_hours_are_counted_from_the_journal(run: RunDir) -> None:
    """Seconds held times GPUs, over all trials that ended; a CPU engine costs none."""
    run.journal.note("trial_ended", trial=0, held_s=1800.0, gpus=["0", "1"])
    run.journal.note("trial_ended", trial=1, held_s=3600.0, gpus=[])
    run.journal.note("trial_begun", trial=2)
    assert run.journal.gpu_hours_spent() == pytest.approx(1.0)


def test_a_begun_trial_comes_back_whole(run: RunDir) -> None:
    """What was started is remembered before its launch, with the sampler's coordinates; later facts are added to it."""
    run.begin(TRIAL)
    (begun,) = run.begun()
    assert begun.trial == TRIAL
    assert (begun.host, begun.process_group, begun.marker) == (None, None, None)
    run.amend(17, process_group=4711, host="node-1", marker="sweep-000017", ports=[1, 2])
    (begun,) = run.begun()
    assert begun.trial == TRIAL
    assert (begun.host, begun.process_group, begun.marker) == ("node-1", 4711, "sweep-000017")
    assert begun.facts == {"ports": [1, 2]}


def test_beginning_again_replaces_what_was_begun(run: RunDir) -> None:
    """The next attempt stands under the same number, and nothing of the last server clings to it."""
    run.begin(Trial(0, PLAIN, "baseline", (LoadPoint(1, 0),)))
    run.amend(0, process_group=4711)
    run.begin(Trial(0, PLAIN, "baseline", (LoadPoint(1, 0),), attempt=2))
    (begun,) = run.begun()
    assert (begun.trial.attempt, begun.process_group) == (2, None)


@pytest.mark.parametrize("content", [b"", b'{"trial": 1, "sett', b"[]", b'{"trial": 1}', b"\xff\xfe"])
def test_a_ruined_begun_file_is_named_and_skipped(
    run: RunDir, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """One torn file does not cost the knowledge of the other trials."""
    run.begin(TRIAL)
    run.begun_file(1).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert [begun.trial.number for begun in run.begun()] == [17]
    assert "000001.json: cannot" in caplog.text
    assert "skipped" in caplog.text


def test_a_full_disk_keeps_the_old_file(run: RunDir) -> None:
    """A write that meets a full disk leaves what stood there, says where and what to do, and leaves no rubbish."""
    run.begin(TRIAL)
    (run.begun_dir / ".000017.json.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"000017\.json.*disk is full"):
        run.amend(17, process_group=1)
    assert run.begun()[0].process_group is None
    assert [path.name for path in run.begun_dir.iterdir()] == ["000017.json"]
    run.journal.path.symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"events\.jsonl"):
        run.journal.note("anything")


def test_space_is_asked_for_before_it_is_needed(run: RunDir) -> None:
    """A file system with less free space than wanted is refused with both numbers."""
    run.require_space(0)
    with pytest.raises(RunDirProblem, match=r"only \d+ MiB are free .* 999999999999 MiB"):
        run.require_space(999_999_999_999)
    with pytest.raises(RunDirProblem, match=r"only \d+ MiB are free"):
        RunDir(run.path / "still" / "to be made").require_space(999_999_999_999)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Content and mode are those asked for, and no temporary file stays."""
    path = tmp_path / "launch.sh"
    write_whole(path, b"old")
    write_whole(path, json.dumps({"new": 1}).encode(), mode=0o755)
    assert json.loads(path.read_bytes()) == {"new": 1}
    assert path.stat().st_mode & 0o777 == 0o755
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_named_with_what_to_do(run: RunDir) -> None:
    """Lock, journal and whole files alike: the path, the system's reason, and that the directory be made writable."""
    for path in (run.lock_file, run.journal.path):
        path.symlink_to(path)
    (run.path / ".summary.md.tmp").mkdir()
    writes = [lambda: lock(run).__enter__(), lambda: run.journal.note("x"), lambda: write_whole(run.summary, b"x")]
    names = ["run.lock", "events.jsonl", "summary.md"]
    for write, name in zip(writes, names, strict=True):
        with pytest.raises(NotWritable, match=rf"/{name}: could not be written \(.*\)\. .* writable for this user"):
            write()


def test_a_file_system_without_locks_is_one_message(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none: no run is driven there, and nobody is told that it is busy."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(NotWritable, match=r"run\.lock: .*No locks available"), lock(run):
        pass


def test_workers_may_look_for_room_at_the_same_time(tmp_path: Path) -> None:
    """Each probes the disk under a name of its own, and takes it away again."""
    run = RunDir.at(tmp_path / "run")
    look = f"from results.rundir import RunDir\nfor _ in range(60): RunDir.open({str(run.path)!r}).require_room()"
    both = [subprocess.Popen([sys.executable, "-c", look], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert not list(run.path.glob(".room*"))


def test_a_run_whose_rows_are_elsewhere_is_not_taken_for_one_without_rows(tmp_path: Path) -> None:
    """Nothing is written anew of it; the words say where the rows are, if they lie beside it."""
    (tmp_path / "plan.yaml").write_text("target: {}\n")
    with pytest.raises(RunDirProblem, match=r"its rows are missing.*Bring it back"):
        RunDir.open(tmp_path)
    (tmp_path / "trials.parquet").touch()
    with pytest.raises(RunDirProblem, match=r"Put .*trials\.parquet into it"):
        RunDir.open(tmp_path)
    (tmp_path / "trials").mkdir()
    assert RunDir.open(tmp_path).begun_numbers() == []
