"""A machine of a Ray cluster goes away: its trial is begun again elsewhere, its server is gone, the sweep goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from results.ledger import read_records
from results.rundir import RunDir
from tests.fakes.clusters import Node, cluster
from tests.fakes.command_line import SMALL, started
from tests.fakes.processes import marked, open_files
from tests.fakes.waiting import wait_until

GONE_S = 10.0


def servers_of(node: Node, run: Path) -> list[int]:
    """Process groups of the run's servers whose guards a worker of this node owns."""
    groups = [begun.process_group for begun in RunDir.open(run).begun() if begun.process_group in marked(run)]
    pipes = {path for raylet in node.raylets() for worker in raylet.children() for path in open_files(worker.pid)}
    found = []
    for group in groups:
        guard = psutil.Process(group).parent()
        if guard is not None and Path(f"/proc/{guard.pid}/fd/0").readlink() in pipes:
            found.append(group)
    return [group for group in found if group is not None]


def test_a_sweep_goes_on_without_a_machine_that_went_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines with a GPU each; the second is killed in the middle: every point once, nothing of its servers left."""
    run = tmp_path / "run"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with (
        tempfile.TemporaryDirectory(prefix="sweep-cluster-") as folder,
        cluster(Path(folder), [1, 1]) as (address, nodes),
    ):
        words = (
            "sweep",
            *SMALL,
            f"cluster.address='{address}'",
            f"out={run}",
            "budget.launches=6",
            "budget.finalists=0",
        )
        with started(*words) as driver:
            wait_until(
                lambda: run.exists() and servers_of(nodes[1], run), "a server on the second machine", within_s=90
            )
            (lost,) = servers_of(nodes[1], run)
            nodes[1].kill()
            wait_until(lambda: lost not in marked(run), "its server is gone", within_s=GONE_S)
            _, said = driver.communicate(timeout=240)
        assert driver.returncode == 0, said
        assert "Traceback" not in said
    records = read_records(run)
    failed = [record for record in records if not record.measured]
    assert [str(record.failure.kind) for record in failed if record.failure] == ["node_lost"]
    again = [record.point.concurrency for record in records if record.trial == failed[0].trial and record.point]
    assert sorted(again) == [1, 4], "the lost trial was measured on the other machine"
    keys = [record.key for record in records if record.measured]
    assert len(keys) == len(set(keys)) == 2 * 5
    assert not marked(run)
