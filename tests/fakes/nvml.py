"""A driver without cards behind it: two H200, whose use a test sets."""

from __future__ import annotations

from orchestrator.nvml import Gpu, GpuLostError, Reading

UUIDS = [f"GPU-{letter}0c1d2e3-0000-1111-2222-333344445555" for letter in "ab"]


class TwoH200:
    """`used` and `running` are per index; a card in `lost` answers nothing, and is not among the cards any more."""

    def __init__(self) -> None:
        self.used: list[int] = [0, 0]
        self.running: list[list[tuple[int, int | None]]] = [[], []]
        self.lost: set[int] = set()
        self.readings: list[list[Reading]] = [
            [Reading(400.0, 1980, 55, slowed=False)],
            [Reading(300.0, 1980, 50, slowed=False)],
        ]
        """What a card says of itself, in turn; the last one is repeated."""

    def cards(self) -> list[Gpu]:
        return [Gpu(str(i), i, UUIDS[i], "NVIDIA H200", 143771, "580.159.04") for i in range(2) if i not in self.lost]

    def silent(self) -> list[str]:
        return [f"GPU {i} does not answer: GPU is lost" for i in sorted(self.lost)]

    def used_mib(self, uuid: str) -> int:
        return self.used[self._index(uuid)]

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        return self.running[self._index(uuid)]

    def reading(self, uuid: str) -> Reading:
        said = self.readings[self._index(uuid)]
        return said.pop(0) if len(said) > 1 else said[0]

    def _index(self, uuid: str) -> int:
        index = UUIDS.index(uuid)
        if index in self.lost:
            raise GpuLostError(f"NVML cannot read GPU {uuid}: GPU is lost")
        return index
