"""What GPUs say of themselves while a point is measured; the driver is a fake, for there may be no card here."""

from __future__ import annotations

import pytest

from orchestrator.gpus import GpuSet
from orchestrator.nvml import Reading
from orchestrator.telemetry import Seen, Telemetry
from tests.fakes.nvml import TwoH200
from tests.fakes.waiting import wait_until

BOTH = GpuSet(("0", "1"))


def test_power_of_all_cards_together() -> None:
    """Two cards of 400 and 300 W; tokens per joule are tokens over power and time; the hottest one counts."""
    telemetry = Telemetry(BOTH, TwoH200(), sample_s=0.001)
    with telemetry:
        wait_until(lambda: len(telemetry.seen().samples) > 3, "some samples")
    seen = telemetry.seen()
    figures = seen.figures(output_tokens=7000)

    assert figures["power_w"] == 700
    assert figures["tokens_per_joule"] == pytest.approx(7000 / (700 * seen.duration_s))
    assert (figures["gpu_temperature_c"], figures["sm_clock_mhz"], figures["throttled_share"]) == (55, 1980, 0)


def test_a_card_held_back_by_heat() -> None:
    """One card of two is slowed for most of the samples: the point is throttled."""
    nvml = TwoH200()
    nvml.readings[1] = [Reading(300.0, 1980, 50, slowed=False), Reading(150.0, 900, 92, slowed=True)]
    telemetry = Telemetry(BOTH, nvml, sample_s=0.001)
    with telemetry:
        wait_until(lambda: len(telemetry.seen().samples) > 4, "some samples")

    assert telemetry.seen().throttled
    assert not Seen(tuple((Reading(1.0, 1, 1, slowed=n == 0),) for n in range(20)), 1.0).throttled


@pytest.mark.parametrize("gpus", [GpuSet(()), GpuSet(("0",), pretend=True)])
def test_without_cards_nothing_is_claimed(gpus: GpuSet) -> None:
    """An engine on the CPU, and a pretend card: every figure is None."""
    with Telemetry(gpus, TwoH200()) as telemetry:
        pass

    assert set(telemetry.seen().figures(100).values()) == {None}
    assert not telemetry.seen().throttled


def test_a_card_that_stops_answering_ends_no_measurement() -> None:
    """What was seen until then stays."""
    nvml = TwoH200()
    telemetry = Telemetry(BOTH, nvml, sample_s=0.001)
    with telemetry:
        wait_until(lambda: len(telemetry.seen().samples) > 1, "a sample")
        nvml.lost = {0, 1}

    assert telemetry.seen().figures(1)["power_w"] == 700
