"""doctor: what a machine has and lacks; every red and yellow says what to do; nothing hangs, nothing foreign is touched."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import doctor
from orchestrator.doctor import cards, conf, disk, engine, leftovers, machine
from orchestrator.doctor.check import Check, Level, Question, ask, by_room, green, red, yellow
from orchestrator.doctor.packages import packages
from orchestrator.errors import ConfError, MachineError
from orchestrator.plan import ClusterConf, EngineConf, Plan, Target, Workload
from orchestrator.serving.guarded import Guarded
from orchestrator.serving.processes import MARKER, all_marked
from results.driving import lock
from results.rundir import RunDir
from sweeps.space import Choice, Held
from tests.fakes.checkpoints import LLAMA_8B, SMOLLM2_TARGET, head_of, write_checkpoint, write_real_head
from tests.fakes.command_line import orchestrator
from tests.fakes.nvml import TwoH200
from tests.fakes.plans import plan
from tests.fakes.simulator import serving
from tests.fakes.waiting import runs, sleeping, wait_until

HOPPER = cards.Traits((9, 0), False)
GIB = 2**30


def only(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def level(checks: list[Check], name: str) -> Level:
    """Also proves that what is not green says what to do."""
    check = only(checks, name)
    assert check.remedy or check.level is Level.GREEN
    return check.level


# The verb.


def test_without_a_conf_it_looks_at_the_machine_alone() -> None:
    """As JSON: a list of checks, each with its group; 0 or 2 by the worst."""
    done = orchestrator("doctor", "--json")
    found = json.loads(done.stdout)
    assert {"Product", "Machine", "Disk", "GPUs", "Earlier runs"} <= {check["group"] for check in found}
    assert not {"Engine", "Config"} & {check["group"] for check in found}
    assert all(check["remedy"] for check in found if check["level"] != "green")
    assert done.returncode == (2 if any(check["level"] == "red" for check in found) else 0)


def test_with_a_conf_it_looks_at_what_that_needs() -> None:
    """A missing target, an interpreter that is none: red, exit 2, and the summary names the worst first."""
    done = orchestrator(
        "doctor", "conf=eagle3", "engine.python=/no/python", "target.path=/no/target", "cluster.gpus=none"
    )
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 2
    assert "engine.python: /no/python cannot be run" in done.stdout
    assert "/no/target: no such directory" in done.stdout
    assert last.startswith("Not ready: ")
    assert "red (interpreter, target" in last


def test_the_demo_needs_neither_gpu_nor_engine() -> None:
    """Its checks are about its profile, and none of them is red."""
    found = json.loads(orchestrator("doctor", "conf=demo", "--json").stdout)
    of_conf = {check["name"]: check["level"] for check in found if check["group"] == "Config"}
    assert of_conf == dict.fromkeys(("profile", "prompts", "tp_size", "Ray cluster"), "green")
    assert "Compiling" not in {check["group"] for check in found}


def test_mistakes_of_a_conf_stand_among_the_other_findings() -> None:
    """Each is a red check; the machine is looked at all the same."""
    done = orchestrator("doctor", "conf=demo", "workload.concurency=[1]", "budget.launches=many", "--json")
    wrong = [check["what"] for check in json.loads(done.stdout) if check["name"] == "config"]
    assert done.returncode == 2
    assert len(wrong) == 2
    assert "Did you mean 'concurrency'?" in " ".join(wrong)


@pytest.mark.parametrize("word", ["clean=yes", "engine.python=python3"])
def test_words_that_mean_nothing_without_a_conf_are_refused(word: str) -> None:
    """One message, exit 2."""
    with pytest.raises(ConfError, match=word):
        doctor.doctor_command([word], False)


def test_no_colours_where_nobody_sees_them() -> None:
    """Neither in a pipe nor under NO_COLOR."""
    done = orchestrator("doctor", env={**os.environ, "NO_COLOR": "1"})
    assert "\x1b" not in done.stdout
    assert "Machine\n" in done.stdout


def test_a_machine_that_lacks_our_packages_hears_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other looks would need them."""
    monkeypatch.setattr(doctor, "requirements", lambda: ["no-such-package>=1"])
    assert doctor.doctor_command([], False) == 2
    assert "pip install 'no-such-package>=1'" in capsys.readouterr().out


def test_doctor_imports_nothing_heavy() -> None:
    """Not even when it looks at a whole conf."""
    code = (
        "import sys, pkgutil, importlib, orchestrator.doctor as d\n"
        "[importlib.import_module(f'orchestrator.doctor.{m.name}') for m in pkgutil.iter_modules(d.__path__)]\n"
        "d.doctor_command(['conf=demo'], True)\n"
        "sys.exit(' '.join({'ray', 'optuna', 'pandas', 'torch', 'sglang'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.strip() == ""


def test_summary() -> None:
    """The worst first, names once each."""
    checks = [green("a", "fine"), yellow("b", "hm", "do"), red("c", "bad", "do"), yellow("b", "hm", "do")]
    assert doctor.summary(checks) == "Not ready: 1 red (c), 2 yellow (b), 1 green."
    assert doctor.summary(checks[:1]) == "Ready: 1 green."
    assert doctor.summary(checks[:2]).startswith("Ready, with doubts: 1 yellow (b)")


# How looks are made.


def test_a_look_that_hangs_is_yellow() -> None:
    """And the others are answered."""
    never = threading.Event()

    def hang() -> list[Check]:
        never.wait()
        return []

    (_, late), (_, fine) = ask([Question("g", "disk", hang, 0.1), Question("g", "x", lambda: [green("x", "fine")])])
    never.set()
    assert level(list(late), "disk") is Level.YELLOW
    assert "no answer within 0.1 s" in late[0].what
    assert fine[0].level is Level.GREEN


@pytest.mark.parametrize("error", [PermissionError("no"), ValueError("odd"), MachineError("lost")])
def test_a_look_that_cannot_be_made_is_yellow(error: Exception) -> None:
    """With the reason."""

    def look() -> list[Check]:
        raise error

    ((_, checks),) = ask([Question("g", "x", look)])
    assert level(list(checks), "x") is Level.YELLOW
    assert str(error) in checks[0].what


def test_a_bug_in_a_look_flies() -> None:
    """It is no finding about the machine."""

    def look() -> list[Check]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask([Question("g", "x", look)])


# Packages.


def test_packages_are_compared_with_what_is_asked_for() -> None:
    """Missing or too old: red; newer than known: yellow; the others in one line."""
    have = {"ray": "2.60.0", "optuna": "4.9", "omegaconf": "2.5.0rc1", "numpy": "2.0"}
    checks = packages(["ray>=2.55,<3", "optuna>=5.0,<6", "omegaconf>=2.4,<2.5", "numpy>=2.0.0", "rich>=13"], have.get)
    assert (level(checks, "optuna"), level(checks, "rich")) == (Level.RED, Level.RED)
    assert level(checks, "omegaconf") is Level.YELLOW
    assert only(checks, "packages").what == "ray 2.60.0, numpy 2.0"


# Leftovers: real processes.


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> str:
    """Part of every marker of this test; processes of others on this host, marked ones too, are not its business."""
    part = f"doctor-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setattr(leftovers, "all_marked", lambda: (item for item in all_marked() if part in item[1]))
    return part


@pytest.fixture
def run(tmp_path: Path, ours: str) -> RunDir:
    """A run whose lock nobody holds."""
    made = RunDir.at(tmp_path / ours)
    (made.logs_dir / "000001").mkdir()
    with lock(made):
        pass
    return made


def marked(run: RunDir, **more: Any) -> Any:
    """A sleeper as a server of the run would be, seen by its working directory."""
    return sleeping(env={MARKER: f"{run.marker}/000001/1-77aa"}, cwd=run.logs("000001"), **more)


def test_a_leftover_is_named_and_ended_when_asked(run: RunDir) -> None:
    """The driver is gone; a process without a marker is none of it."""
    with marked(run) as left, sleeping(cwd=run.logs("000001")) as foreign:
        named = leftovers.leftovers(Path("/nowhere"))
        assert level(named, "leftover") is Level.YELLOW
        assert f"pid {left.pid} (sleep) of {run.marker}" in named[0].what
        assert runs(left.pid)

        cleaned = leftovers.leftovers(Path("/nowhere"), clean=True)
        assert level(cleaned, "cleaned") is Level.GREEN
        assert f"pid {left.pid}" in cleaned[0].what
        assert not runs(left.pid)
        assert runs(foreign.pid)
    assert leftovers.leftovers(Path("/nowhere")) == [green("leftovers", "no process of an earlier run")]


def test_what_is_being_driven_is_left_alone(run: RunDir) -> None:
    """Also by clean=true, wherever the run lies: its lock is held."""
    with marked(run) as server, lock(run):
        (check,) = leftovers.leftovers(Path("/nowhere"), clean=True)
        assert check.level is Level.GREEN
        assert f"left alone: its run is driven by process {os.getpid()}" in check.what
        assert runs(server.pid)


def test_a_driven_run_whose_directory_was_deleted_is_left_alone(run: RunDir) -> None:
    """Its driver still holds the deleted lock."""
    with marked(run) as server, lock(run):
        run.lock_file.unlink()
        (check,) = leftovers.leftovers(Path("/nowhere"), clean=True)
        assert "its run is driven by pid" in check.what
        assert runs(server.pid)


def test_a_launch_with_a_living_guard_is_left_alone(run: RunDir) -> None:
    """The guard ends it itself, as soon as its worker is gone."""
    log = run.server_log("000001")
    spec = {
        "argv": ["/bin/sleep", "600"], "environment": {MARKER: f"{run.marker}/000001/1-77aa"}, "log": str(log),
        "cwd": str(log.parent), "stop_grace_s": 1.0, "deadline_s": 600.0,
    }  # fmt: skip
    guarded = Guarded(spec, [], log, lambda: None)
    try:
        pid, _ = guarded.wait_started()
        assert pid is not None
        wait_until(lambda: leftovers.find_leftovers(Path("/nowhere")), "the server is executed")
        (check,) = leftovers.leftovers(Path("/nowhere"), clean=True)
        assert "its guard lives" in check.what
        assert runs(pid)
    finally:
        guarded.release()
        assert guarded.wait_gone(30)


def test_a_launch_of_an_unknown_run_is_left_alone_until_the_run_is_named(run: RunDir) -> None:
    """Nothing leads from the process to its run; out= does, of the run itself or of the folder of runs."""
    with sleeping(env={MARKER: f"{run.marker}/000001/1-77aa"}, cwd="/") as lost:
        (check,) = leftovers.leftovers(Path("/nowhere"), clean=True)
        assert (check.name, check.level) == ("leftover", Level.YELLOW)
        assert f"kill {lost.pid}" in check.remedy
        assert runs(lost.pid)
        (named,) = leftovers.find_leftovers(run.path.parent.parent)
        assert named.alone == ""
        assert level(leftovers.leftovers(run.path, clean=True), "cleaned") is Level.GREEN
        assert not runs(lost.pid)


def test_the_verb_cleans_before_it_looks(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """clean=true out=DIR: what was ended is in the list."""
    with tempfile.TemporaryDirectory(prefix="d") as temporary, marked(run) as left:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        doctor.doctor_command(["clean=true", f"out={run.path}"], True)
        found = [check for check in json.loads(capsys.readouterr().out) if check["name"] == "cleaned"]
        assert len(found) == 1
        assert f"pid {left.pid}" in found[0]["what"]
        assert not runs(left.pid)


def test_many_launches_of_one_kind_are_one_line(run: RunDir) -> None:
    """A doctor that names each of them is not read."""
    with marked(run), marked(run), ExitStack() as others:
        for number in range(2, 5):
            run.logs(f"{number:06d}").mkdir()
            env = {MARKER: f"{run.marker}/{number:06d}/1-77aa"}
            others.enter_context(sleeping(env=env, cwd=run.logs(f"{number:06d}")))
        (check,) = leftovers.leftovers(Path("/nowhere"))
        assert check.what.endswith("and 2 more launches: nobody drives the run")


def ray_folder(temporary: Path, name: str) -> Path:
    folder = temporary / name
    (folder / "session_2026" / "logs").mkdir(parents=True)
    (folder / "session_2026" / "logs" / "raylet.out").write_text("x" * 100)
    return folder


def test_a_ray_folder_that_nobody_uses_is_removed_when_asked(tmp_path: Path) -> None:
    """One that a process names, one of another name, one with other files, and a link are left; little is no trouble."""
    stale, used, other = (ray_folder(tmp_path, name) for name in ("sweep-aaaaaaaa", "sweep-bbbbbbbb", "sweep-results"))
    mixed = ray_folder(tmp_path, "sweep-cccccccc")
    (mixed / "notes.txt").write_text("mine")
    (tmp_path / "sweep-dddddddd").symlink_to(other)
    later = time.time() + 2 * leftovers.RAY_QUIET_S
    words = ["/bin/sh", "-c", "read line", f"--temp-dir={used}/session_2026"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as user:
        assert level(leftovers.ray_folders(False, tmp_path, later), "Ray's folders") is Level.GREEN
        os.truncate(stale / "session_2026" / "logs" / "raylet.out", 2 * leftovers.LITTLE)
        assert level(leftovers.ray_folders(False, tmp_path, later), "Ray's folders") is Level.YELLOW
        assert level(leftovers.ray_folders(True, tmp_path, later), "cleaned") is Level.GREEN
        user.communicate(b"\n")
    assert not stale.exists()
    assert all((folder / "session_2026/logs/raylet.out").exists() for folder in (used, other, mixed))


def test_a_ray_folder_that_was_just_written_is_left(tmp_path: Path) -> None:
    """Its processes may be hidden from here, in another container."""
    ray_folder(tmp_path, "sweep-aaaaaaaa")
    assert level(leftovers.ray_folders(True, tmp_path), "Ray's folders") is Level.GREEN
    assert (tmp_path / "sweep-aaaaaaaa").exists()


# GPUs.


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> TwoH200:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return TwoH200()


def test_free_cards(driver: TwoH200) -> None:
    """What they are, and that they are free."""
    checks = cards.gpus("all", True, driver, lambda _: HOPPER)
    assert "2 x NVIDIA H200 (140 GiB, compute capability 9.0); driver 580" in only(checks, "GPUs").what
    assert {check.level for check in checks} == {Level.GREEN}


def test_whoever_is_on_a_card_is_named_and_left_alone(driver: TwoH200) -> None:
    """With pid, owner, age and memory; a process of ours with its marker, a hidden one as such."""
    with sleeping() as foreign, sleeping(env={MARKER: "run-1/000001/1-77aa"}) as own:
        driver.used, driver.running = [70_000, 5_000], [[(foreign.pid, 69_000), (own.pid, 900)], [(2**30, None)]]
        checks = cards.gpus("all", True, driver, lambda _: HOPPER)
        assert level(checks, "GPU 0") is Level.YELLOW
        assert f"pid {foreign.pid} (sleep, of " in only(checks, "GPU 0").what
        assert "69000 MiB) on GPU 0, not ours" in only(checks, "GPU 0").what
        assert "ours: run-1/000001/1-77aa" in only(checks, "GPU 0").what
        assert "not visible from here" in only(checks, "GPU 1").what
        assert runs(foreign.pid)
    assert level(cards.gpus("all", False, driver, lambda _: HOPPER), "GPU 0") is Level.GREEN


def test_memory_in_use_by_nobody(driver: TwoH200) -> None:
    """A card that did not come back."""
    driver.used = [0, 40_000]
    assert "by nobody that the driver names" in only(cards.gpus("all", True, driver, lambda _: HOPPER), "GPU 1").what


def test_a_lost_card_does_not_hide_the_others(driver: TwoH200) -> None:
    """A sweep goes on without it; one that asks for it by name cannot."""
    driver.lost = {0}
    kinds, lost, other = cards.gpus("all", True, driver, lambda _: HOPPER)
    assert kinds.what.startswith("1 x NVIDIA H200")
    assert (lost.level, lost.what) == (Level.YELLOW, "GPU 0 does not answer: GPU is lost")
    assert (other.level, other.name) == (Level.GREEN, "GPU 1")
    assert level(cards.gpus(["0"], True, driver, lambda _: HOPPER), "GPUs") is Level.RED


def test_a_card_that_is_lost_while_it_is_looked_at(driver: TwoH200) -> None:
    """It is red where it is needed, and the other is told of all the same."""

    def traits(uuid: str) -> cards.Traits:
        driver.lost = {0}
        return HOPPER

    checks = cards.gpus("all", True, driver, traits)
    assert (level(checks, "GPU 0"), level(checks, "GPU 1")) == (Level.RED, Level.GREEN)


def test_slices_and_old_cards(driver: TwoH200) -> None:
    """Only whole GPUs are supported; below compute capability 8.0 kernels are few; two kinds are not compared."""
    kinds = {card.uuid: traits for card, traits in zip(driver.cards(), [cards.Traits((9, 0), True), cards.Traits((7, 5), None)], strict=True)}  # fmt: skip
    checks = cards.gpus("all", True, driver, kinds.__getitem__)
    assert (level(checks, "MIG"), level(checks, "capability")) == (Level.RED, Level.YELLOW)
    assert level(checks, "GPUs") is Level.YELLOW
    assert level(cards.gpus("all", None, driver, kinds.__getitem__), "MIG") is Level.YELLOW


@pytest.mark.parametrize(("required", "expected"), [(None, Level.YELLOW), (False, Level.GREEN), (True, Level.RED)])
def test_a_machine_without_gpus(required: bool | None, expected: Level) -> None:
    """As bad as the conf makes it."""

    class NoCards(TwoH200):
        def cards(self) -> list[Any]:
            return []

    assert level(cards.gpus("all", required, NoCards()), "GPUs") is expected


# The engine's environment.


def interpreter(tmp_path: Path, version: str | None, torch: str = "") -> EngineConf:
    """Our own interpreter with an SGLang that is mere metadata, and a PyTorch that is a few lines."""
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    for name, number in (("sglang", version), ("torch", "2.11.0")):
        if number:
            info = site / f"{name}-{number}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (site / "torch.py").write_text(torch or "class version: cuda = '13.0'\nclass cuda:\n  device_count = lambda: 2\n")
    return EngineConf(python=sys.executable, env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"})


@pytest.mark.parametrize(("version", "expected"), [("0.5.17", Level.GREEN), ("0.5.23+cu130", Level.GREEN), ("0.6.0", Level.YELLOW), (None, Level.RED)])  # fmt: skip
def test_sglang_is_known_unknown_or_missing(tmp_path: Path, version: str | None, expected: Level) -> None:
    """By the metadata of the engine's own environment."""
    assert level(engine.engine(interpreter(tmp_path, version), True), "SGLang") is expected


@pytest.mark.parametrize(
    ("torch", "expected", "says"),
    [
        ("", Level.GREEN, "CUDA 13.0, sees 2 GPUs"),
        ("class version: cuda = None\nclass cuda:\n  device_count = lambda: 0\n", Level.RED, "a CPU build"),
        ("class version: cuda = '14.0'\nclass cuda:\n  device_count = lambda: 0\n", Level.RED, "sees 0 GPUs"),
        ("raise OSError('libcudart.so.13: cannot open shared object file')", Level.RED, "libcudart.so.13"),
    ],
)
def test_pytorch_of_the_engine(tmp_path: Path, torch: str, expected: Level, says: str) -> None:
    """It is imported there, once, as a server would."""
    check = only(engine.engine(interpreter(tmp_path, "0.5.17", torch), True), "PyTorch")
    assert (check.level, says in check.what) == (expected, True)


def test_the_cpu_needs_no_cuda(tmp_path: Path) -> None:
    """cluster.gpus=none."""
    cpu = "class version: cuda = None\nclass cuda:\n  device_count = lambda: 0\n"
    assert level(engine.engine(interpreter(tmp_path, "0.5.17", cpu), False), "PyTorch") is Level.GREEN


def test_an_engine_that_hangs_is_said_and_what_it_said_before_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing PyTorch from a dead disk: packages were told, PyTorch itself never answered."""

    def hang(argv: list[str], *, timeout: float, **_: object) -> None:
        said = {"python": "3.11.9", "sglang": "0.5.17", "torch": "2.11.0"}
        said |= dict.fromkeys(("flashinfer-python", "sglang-kernel", "transformers"), "1.0")
        raise subprocess.TimeoutExpired(argv, timeout, output=f"{json.dumps(said)}\n".encode())

    monkeypatch.setattr("orchestrator.doctor.engine.subprocess.run", hang)
    checks = engine.engine(EngineConf(), True, timeout_s=3.0)

    assert level(checks, "SGLang") is Level.GREEN
    assert level(checks, "PyTorch") is Level.YELLOW
    assert "did not answer within 3 s" in only(checks, "PyTorch").what


def test_an_engine_that_hangs_at_once_is_no_interpreter(tmp_path: Path) -> None:
    """A program that never says anything is ended when its time is up."""
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o755)
    checks = engine.engine(EngineConf(python=str(mute)), True, timeout_s=0.2)

    assert level(checks, "interpreter") is Level.RED
    assert "did not answer within 0.2 s" in only(checks, "interpreter").what


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false", "/bin/echo"])
def test_an_interpreter_that_is_none(python: str) -> None:
    """Missing, failing, or another program."""
    assert level(engine.engine(EngineConf(python=python), True), "interpreter") is Level.RED


def test_compilers_are_looked_for_where_a_server_would(tmp_path: Path) -> None:
    """On its PATH; one that is only beside the interpreter is not found by it."""
    for name in ("ninja", "python"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    lacking = EngineConf(python=str(tmp_path / "python"), env={"PATH": "/no/such", "CUDA_HOME": "/no/such"})
    checks = engine.compilers(lacking)
    assert {check.level for check in checks} == {Level.YELLOW}
    assert f"engine.env={{PATH: {tmp_path}:" in only(checks, "ninja").remedy
    having = EngineConf(python=lacking.python, env={"PATH": str(tmp_path)})
    assert level(engine.compilers(having), "ninja") is Level.GREEN


def test_kernel_caches(tmp_path: Path) -> None:
    """Sizes where there are some; otherwise that the first launch takes long."""
    names = ("TVM_FFI_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "SGLANG_CACHE_DIR")
    env = {name: str(tmp_path / "none") for name in names} | {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    conf_of_engine = EngineConf(env=env)
    assert "compiles for minutes" in only(engine.kernel_caches(conf_of_engine), "compiled kernels").remedy
    cache = tmp_path / ".cache" / "flashinfer" / "90"
    cache.mkdir(parents=True)
    (cache / "kernel.so").write_bytes(b"x" * 3 * 2**20)
    check = only(engine.kernel_caches(conf_of_engine), "compiled kernels")
    assert (check.level, "flashinfer 3 MiB" in check.what) == (Level.GREEN, True)


# The machine.


def proc(tmp_path: Path, **lines: str) -> dict[str, Path]:
    """Files as /proc and /sys have them; no limit unless given."""
    (tmp_path / "cgroups").mkdir(exist_ok=True)
    given_lines = {"meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n", "own_cgroup": "0::/\n"} | lines
    for name, text in given_lines.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in ("meminfo", "own_cgroup", "cgroups")}


@pytest.mark.parametrize(("available_kib", "expected"), [(8_000_000, Level.GREEN), (2_000_000, Level.YELLOW), (500_000, Level.RED)])  # fmt: skip
def test_memory(tmp_path: Path, available_kib: int, expected: Level) -> None:
    """By what is available."""
    files = proc(tmp_path, meminfo=f"MemTotal: 8388608 kB\nMemAvailable: {available_kib} kB\n")
    assert level(machine.memory(**files), "RAM") is expected


def test_a_swapping_host(tmp_path: Path) -> None:
    """More than a GiB is out."""
    text = "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\nSwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n"
    assert level(machine.memory(**proc(tmp_path, meminfo=text)), "swap") is Level.YELLOW


@pytest.mark.parametrize(
    ("own", "folder", "limit_name", "used_name"),
    [
        ("0::/job/step\n", "job", "memory.max", "memory.current"),
        ("0::/hidden/from/here\n", ".", "memory.max", "memory.current"),
        ("4:cpu,memory:/job\n0::/\n", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_the_memory_limit_of_a_container(
    tmp_path: Path, own: str, folder: str, limit_name: str, used_name: str
) -> None:
    """Of either version of cgroups, of the group itself or of one around it."""
    files = proc(tmp_path, own_cgroup=own)
    at = files["cgroups"] / folder
    at.mkdir(parents=True, exist_ok=True)
    (at / limit_name).write_text(f"{GIB // 2}\n")
    (at / used_name).write_text("1000\n")
    assert machine.cgroup_limit(files["own_cgroup"], files["cgroups"]) == (GIB // 2, 1000)
    assert level(machine.memory(**files), "container memory") is Level.RED
    (at / limit_name).write_text("max\n" if limit_name == "memory.max" else f"{2**63 - 4096}\n")
    assert level(machine.memory(**files), "container memory") is Level.GREEN


@given(busy=st.floats(0, 1000))
def test_cpus(busy: float) -> None:
    """However busy, there is an answer, and if it is not good it says what to do."""
    level(machine.cpus(busy), "CPUs")


def test_limits_of_the_shell() -> None:
    """Few open files or processes: yellow with the ulimit to set; no limit is fine."""
    low = machine.limits(open_files=(1024, 65536), processes=(1000, -1))
    assert (level(low, "open files"), level(low, "processes")) == (Level.YELLOW, Level.YELLOW)
    assert "ulimit -n" in only(low, "open files").remedy
    assert {check.level for check in machine.limits((-1, -1), (-1, -1))} == {Level.GREEN}


def test_ports(tmp_path: Path) -> None:
    """How many are left below the kernel's own range; an address that is not ours is red."""
    table = tmp_path / "net"
    table.mkdir()
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("10050\t60999\n")
    (table / "tcp").write_text("  sl  local_address rem_address   st\n   0: 0100007F:2711 00000000:0000 0A\n")
    check = only(machine.ports(proc=tmp_path), "ports")
    assert (check.level, check.what.split()[0]) == (Level.YELLOW, "49")
    assert level(machine.ports(), "ports") is Level.GREEN
    assert level(machine.ports("203.0.113.7"), "ports") is Level.RED


def test_clock(tmp_path: Path) -> None:
    """Behind our own files, or off from the file system's."""
    assert level(machine.clock(tmp_path), "clock") is Level.GREEN
    assert level(machine.clock(tmp_path, now=86400.0), "clock") is Level.YELLOW
    assert level(machine.clock(tmp_path, now=time.time() + 3600), "clock") is Level.YELLOW


def test_environment() -> None:
    """Proxies that would catch loopback, hidden GPUs, what slows NCCL; a proxy's address is not shown."""
    proxy = {"HTTPS_PROXY": "http://me:secret@proxy:3128"}
    checks = machine.environment({**proxy, "CUDA_VISIBLE_DEVICES": "1", "NCCL_P2P_DISABLE": "1"})
    assert [level(checks, name) for name in ("proxy", "visible GPUs", "NCCL")] == [Level.YELLOW] * 3
    assert "secret" not in str(checks)
    assert level(machine.environment({**proxy, "no_proxy": "localhost,127.0.0.1"}), "proxy") is Level.GREEN
    assert level(machine.environment({}), "environment") is Level.GREEN


def test_shared_memory_names_what_lies_there_and_removes_nothing(tmp_path: Path) -> None:
    """The largest file with owner and age, where it takes room."""
    (tmp_path / "small").touch()
    assert "1 file, none of them large" in machine.shared_memory(tmp_path)[0].what
    with (tmp_path / "nccl-abc").open("wb") as large:
        large.truncate(100 * 2**20)
    (check,) = machine.shared_memory(tmp_path)
    assert "2 files, the largest nccl-abc (100 MiB, of user" in check.what
    assert (tmp_path / "nccl-abc").exists()


# Disks.


@pytest.mark.parametrize(("free", "expected"), [(0, Level.RED), (GIB - 1, Level.RED), (GIB, Level.YELLOW), (10 * GIB, Level.GREEN)])  # fmt: skip
def test_room_on_a_disk(free: int, expected: Level) -> None:
    """Red below one GiB, yellow below ten."""
    assert level([by_room("out", free, disk.LOW, "so much", "do")], "out") is expected


def test_a_run_directory_that_is_still_to_be_made(tmp_path: Path) -> None:
    """The nearest folder that exists is asked."""
    assert disk.nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert str(tmp_path / "a" / "b") in only(disk.disks(tmp_path / "a" / "b"), "out").what


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written() -> None:
    """Red, with the way out."""
    assert "out=DIR" in only(disk.disks(Path("/proc/1")), "out").remedy


def test_ray_cannot_live_under_a_long_name() -> None:
    """A Unix socket's path has 107 bytes."""
    assert disk.socket_path(Path("/tmp")).level is Level.GREEN
    assert "TMPDIR" in disk.socket_path(Path("/scratch/a-very-long-name-of-a-users-temporary-folder")).remedy


# What a conf needs.


def needing(target: Path | str, **sections: Any) -> Plan:
    return plan(
        space={"drafter": Held("own")}, target=Target(path=str(target)), drafters={"own": str(target), "unused": "/no"},
        engine=EngineConf(name="sglang", python=sys.executable), **sections,
    )  # fmt: skip


def checkpoint(tmp_path: Path, *, weights: bytes | None = b"\0" * 64, index: Any = None) -> Path:
    (tmp_path / "config.json").write_text("{}")
    if weights is not None:
        (tmp_path / "model.safetensors").write_bytes(weights)
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_checkpoints_on_disk(tmp_path: Path) -> None:
    """Target and chosen drafters are looked at, drafters that nobody chooses are not."""
    checks = conf.checkpoints(needing(checkpoint(tmp_path)))
    assert [(check.name, check.level) for check in checks] == [("target", Level.GREEN), ("drafter own", Level.GREEN)]


def test_a_drafter_that_a_sweep_would_drop_is_red(tmp_path: Path) -> None:
    """The head of another model: every error of the sweep's own inspection; the one that fits is green."""
    target = write_checkpoint(tmp_path / "target", SMOLLM2_TARGET)
    own, wrong = write_real_head(tmp_path / "own"), write_checkpoint(tmp_path / "wrong", head_of(LLAMA_8B))
    given = plan(
        {"drafter": Choice(("own", "wrong"))}, target=Target(path=str(target), context_length=2048),
        drafters={"own": str(own), "wrong": str(wrong)}, engine=EngineConf(name="sglang", python=sys.executable),
    )  # fmt: skip
    checks = conf.drafters(given)
    assert any(one.level is Level.RED and one.what.startswith("drafters.wrong (") for one in checks)
    assert not any(one.level is Level.RED and "drafters.own" in one.what for one in checks)
    assert all(check.remedy for check in checks if check.level is not Level.GREEN)


def test_a_directory_that_reads_as_a_hub_name_is_told_how_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """target.path=w/t, given where w/t is a directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w" / "t").mkdir(parents=True)
    check = only(conf.checkpoints(needing("w/t")), "target")
    assert (check.level, check.remedy) == (Level.RED, "Write target.path=./w/t.")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"weights": None}, "no weights"),
        ({"weights": b"version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull"),
        ({"index": {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}}, "model-2.safetensors"),
        ({"index": [1, 2]}, "model.safetensors.index.json"),
        ({"index": {"weight_map": 3}}, "model.safetensors.index.json"),
    ],
)
def test_a_checkpoint_that_is_not_whole(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    """Half a download, or pointers of Git LFS."""
    check = only(conf.checkpoints(needing(checkpoint(tmp_path, **files))), "target")
    assert check.level is Level.RED
    assert says in check.what + check.remedy


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    """server_args.load_format=dummy."""
    dummy = plan(
        space={"drafter": None, "server_args.load_format": Held("dummy")}, drafters={},
        target=Target(path=str(checkpoint(tmp_path, weights=None))), engine=EngineConf(name="sglang"),
    )  # fmt: skip
    assert level(conf.checkpoints(dummy), "target") is Level.GREEN


def test_a_server_that_runs_already_is_asked(tmp_path: Path) -> None:
    """It says what it is; one that does not answer is red, and nothing is said of GPUs, which are its owner's."""
    words = tmp_path / "server.yaml"
    words.write_text("engine: {name: attached}\nworkload: {concurrency: [1]}\nbudget: {launches: 1}\n")
    with serving(tmp_path) as server:
        found = json.loads(orchestrator("doctor", f"conf={words}", f"engine.url={server.url}", "--json").stdout)
    (check,) = [one for one in found if one["name"] == "server"]
    assert check["level"] == "green"
    assert f"{server.url} already runs: SGLang 0.5.17" in check["what"]
    assert "tp_size" not in {one["name"] for one in found}
    gone = orchestrator("doctor", f"conf={words}", f"engine.url={server.url}")
    assert gone.returncode == 2
    assert f"engine.url: no SGLang answers at {server.url}/server_info ([Errno 111] Connection refused)" in gone.stdout


def test_hub_names(tmp_path: Path) -> None:
    """Yellow until it is in the cache; red when it may not be downloaded."""
    wanted, cache = needing("meta/llama"), {"HF_HOME": str(tmp_path)}
    assert level(conf.checkpoints(wanted, cache), "target") is Level.YELLOW
    assert level(conf.checkpoints(wanted, {**cache, "HF_HUB_OFFLINE": "1"}), "target") is Level.RED
    snapshot = tmp_path / "hub" / "models--meta--llama" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert level(conf.checkpoints(wanted, cache), "target") is Level.GREEN


@pytest.mark.parametrize(("size", "expected"), [(1, Level.GREEN), (2, Level.GREEN), (4, Level.RED)])
def test_the_largest_server_has_to_fit(driver: TwoH200, size: int, expected: Level) -> None:
    """tp_size against the GPUs of this machine."""
    wanted = plan(space={"tp_size": Held(size)}, engine=EngineConf(name="sglang"))
    assert level(conf.tensor_parallel(wanted, driver), "tp_size") is expected
    assert level(conf.tensor_parallel(plan(space={"tp_size": Held(size)})), "tp_size") is expected


def test_gpus_that_would_idle(driver: TwoH200) -> None:
    """One card is left over."""

    class ThreeH200(TwoH200):
        def cards(self) -> list[Any]:
            a, b = super().cards()
            return [a, b, type(b)("2", 2, "GPU-c", b.name, b.memory_mib, b.driver_version)]

    wanted = plan(space={"tp_size": Held(2)}, engine=EngineConf(name="sglang"))
    assert "1 stay idle" in only(conf.tensor_parallel(wanted, ThreeH200()), "tp_size").what


def test_the_address_of_a_cluster() -> None:
    """Something has to listen there; of a Ray that does, tests/test_cluster.py tells."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert level(conf.cluster(plan(cluster=ClusterConf(address=address))), "Ray cluster") is Level.RED
    assert level(conf.cluster(plan(cluster=ClusterConf(address="head:99999"))), "Ray cluster") is Level.RED
    assert level(conf.cluster(plan()), "Ray cluster") is Level.GREEN


def test_prompts(tmp_path: Path) -> None:
    """Every bad line is a finding."""
    bad = tmp_path / "own.jsonl"
    bad.write_text('{"prompt": "hello"}\nhello\n')
    assert "own.jsonl:2" in conf.prompts(plan(workload=Workload(prompts=str(bad))))[0].what
    assert level(conf.prompts(plan()), "prompts") is Level.GREEN
