"""GPUs: which there are, who is on them, and whether their memory came back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.errors import MachineError
from orchestrator.gpus import GpuSet, discover, processes, silent, used_mib, wait_free
from orchestrator.nvml import MIB, Pynvml
from tests.fakes.nvml import UUIDS, TwoH200
from tests.fakes.waiting import sleeping

BOTH = GpuSet(("0", "1"), "NVIDIA H200")
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
NOWHERE = [GpuSet(()), GpuSet(("0", "1"), pretend=True)]


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def driver() -> TwoH200:
    return TwoH200()


def test_all(driver: TwoH200) -> None:
    """`all` is every card, named by its index."""
    found = discover("all", driver)
    assert [(gpu.id, gpu.name, gpu.memory_mib) for gpu in found] == [
        ("0", "NVIDIA H200", 143771),
        ("1", "NVIDIA H200", 143771),
    ]


def test_none() -> None:
    """`none` asks no driver: the engine runs on the CPU."""
    assert discover("none") == []


@pytest.mark.parametrize(
    ("shown", "ids"), [("1", ["1"]), ("1,0", ["1", "0"]), ("GPU-b0c1", ["GPU-b0c1"]), ("0,7,1", ["0"])]
)
def test_visible_devices(driver: TwoH200, monkeypatch: pytest.MonkeyPatch, shown: str, ids: list[str]) -> None:
    """P07: `all` means what CUDA_VISIBLE_DEVICES shows, in its order; like CUDA, nothing after a word that names no card."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [gpu.id for gpu in discover("all", driver)] == ids


@pytest.mark.parametrize("words", [["1"], [1], ["GPU-b0c1d2e3-0000-1111-2222-333344445555"], ["GPU-b0"]])
def test_named(driver: TwoH200, words: list[str | int]) -> None:
    """A card is named by index or UUID (or its beginning); its id is the word that was used."""
    (gpu,) = discover(words, driver)
    assert (gpu.index, gpu.id) == (1, str(words[0]))


@pytest.mark.parametrize("word", ["2", "GPU-ffff", "GPU-", "h200", "-1", ""])
def test_no_such_gpu(driver: TwoH200, word: str) -> None:
    """A name that is nobody's, or several cards', is an error that lists those there are."""
    with pytest.raises(MachineError, match=r"no GPU '.*'\. There are: 0 \(NVIDIA H200, GPU-a0c1.*\), 1 \(NVIDIA H200"):
        discover([word], driver)


def test_hidden_gpu(driver: TwoH200, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that exists but is hidden is not taken: somebody hid it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(MachineError, match=r"GPU '0' is hidden by CUDA_VISIBLE_DEVICES='1'\. It shows: 1 "):
        discover(["0"], driver)


def test_all_hidden(driver: TwoH200, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty CUDA_VISIBLE_DEVICES hides every card, and the message says so."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MachineError, match="CUDA_VISIBLE_DEVICES='' hides every GPU"):
        discover("all", driver)


def test_slice_of_a_gpu(driver: TwoH200) -> None:
    """MIG slices are refused by name."""
    with pytest.raises(MachineError, match="MIG slice"):
        discover(["MIG-5b1c"], driver)


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_machine_without_gpu() -> None:
    """Without a card the message says which engines need none."""
    looking = "from orchestrator.gpus import discover; discover('all')"
    run = subprocess.run([sys.executable, "-c", looking], capture_output=True, text=True, check=False)
    assert "no GPU found; engine.name=simulated needs none, cluster.gpus=none for a CPU engine" in run.stderr


def test_memory_in_use(driver: TwoH200) -> None:
    """Memory in use is told per id, as the set names its cards."""
    driver.used = [25044, 0]
    assert used_mib(GpuSet(("GPU-b0", "0")), driver) == {"GPU-b0": 0, "0": 25044}


def test_who_is_there(driver: TwoH200) -> None:
    """P06: a process on a card is named with pid, owner, age and memory."""
    with sleeping() as sleeper:
        driver.running[1] = [(sleeper.pid, 25044)]
        (there,) = processes(BOTH, driver)
        assert (there.pid, there.owner, there.memory_mib, there.name, there.gpu) == (
            sleeper.pid,
            psutil.Process().username(),
            25044,
            "sleep",
            "1",
        )
        assert str(there) == f"pid {there.pid} (sleep, of {there.owner}, {there.age_s:.0f} s old, 25044 MiB) on GPU 1"


def test_who_is_hidden(driver: TwoH200) -> None:
    """A process of another container has a pid and nothing else."""
    driver.running[0] = [(2**22 + 1, None)]
    (there,) = processes(BOTH, driver)
    assert str(there) == f"pid {2**22 + 1} (not visible from here, memory unknown) on GPU 0"


@pytest.mark.parametrize("gpus", NOWHERE)
def test_no_real_cards(gpus: GpuSet) -> None:
    """For a pretend or an empty set there is nothing to ask and nothing to wait for."""
    assert used_mib(gpus) == {}
    assert processes(gpus) == []
    assert wait_free(gpus, {}, timeout_s=0) == []


def test_memory_came_back(driver: TwoH200) -> None:
    """A card that uses what it used before, give or take a little, is free."""
    before = {"0": 0, "1": 500}
    driver.used = [200, 700]
    assert wait_free(BOTH, before, timeout_s=0, nvml=driver) == []


def test_memory_comes_back_late(driver: TwoH200) -> None:
    """P04: memory is waited for."""
    uses = iter([25000, 12000, 0, 0])
    driver.used_mib = lambda _: next(uses)
    assert wait_free(GpuSet(("0",)), {"0": 0}, timeout_s=60, nvml=driver) == []


def test_memory_does_not_come_back(driver: TwoH200) -> None:
    """A card that stays in use is named, with who holds it."""
    with sleeping() as sleeper:
        driver.used, driver.running = [0, 22918], [[], [(sleeper.pid, 22906)]]
        (left,) = wait_free(BOTH, {"0": 0, "1": 0}, timeout_s=0.2, nvml=driver)
        assert left.startswith(f"GPU 1 uses 22918 MiB, 0 MiB before the launch; held by: pid {sleeper.pid} (sleep, of ")


def test_memory_of_nobody(driver: TwoH200) -> None:
    """Memory that no process seems to hold is named too."""
    driver.used = [22918, 0]
    (left,) = wait_free(BOTH, {"0": 0, "1": 0}, timeout_s=0, nvml=driver)
    assert left == "GPU 0 uses 22918 MiB, 0 MiB before the launch; held by: no process that the driver names"


def test_lost_card(driver: TwoH200) -> None:
    """A card that fell off its bus is not free."""
    driver.lost.add(1)
    (left,) = wait_free(BOTH, {"0": 0, "1": 0}, timeout_s=0, nvml=driver)
    assert left.startswith("GPU 1 does not answer any more; nvidia-smi may say why. These do: 0 (NVIDIA H200, GPU-a0c1")


def test_lost_card_among_others() -> None:
    """A card that fell off its bus counts as not there, by its index still: all others are found and asked as before."""
    driver = Pynvml(pynvml(lost={0}))
    assert [gpu.id for gpu in discover("all", driver)] == ["1"]
    assert [gpu.id for gpu in discover(["1"], driver)] == ["1"]
    assert wait_free(GpuSet(("1",)), {"1": 0}, timeout_s=0, nvml=driver) == []
    assert silent(driver) == ["GPU 0 does not answer: GPU is lost"]
    with pytest.raises(MachineError, match=r"no GPU '0'\. There are: 1 \(NVIDIA H200"):
        discover(["0"], driver)


def test_no_card_answers() -> None:
    """Where all are lost, that is said, and not that there is none."""
    with pytest.raises(MachineError, match="GPU 0 does not answer: GPU is lost; GPU 1 does not answer"):
        discover("all", Pynvml(pynvml(lost={0, 1})))


def pynvml(lost: set[int]) -> Any:
    """The package's words for two cards: a lost one has no handle."""

    class NVMLError(Exception):
        pass

    def handle(index: int) -> int:
        if index in lost:
            raise NVMLError("GPU is lost")
        return index

    return SimpleNamespace(
        NVMLError=NVMLError, NVMLError_FunctionNotFound=NVMLError, NVMLError_NotSupported=NVMLError, nvmlMemory_v2=2,
        nvmlSystemGetDriverVersion=lambda: "580.159.04", nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetHandleByUUID=lambda uuid: handle(UUIDS.index(uuid)),
        nvmlDeviceGetUUID=UUIDS.__getitem__, nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda _, version: SimpleNamespace(total=143771 * MIB, used=0),  # noqa: ARG005
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="this machine has no GPU")
def test_real_driver() -> None:
    """On a machine with a GPU the driver answers all that is asked of it."""
    (first, *_) = discover("all")
    gpus = GpuSet((first.id,), first.name)
    used = used_mib(gpus)
    assert first.uuid.startswith("GPU-")
    assert 0 <= used[first.id] < first.memory_mib
    assert wait_free(gpus, used, timeout_s=5) == []
    assert [gpu.index for gpu in discover([first.uuid])] == [first.index]
    assert all(process.gpu == first.id for process in processes(gpus))
