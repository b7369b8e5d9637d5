"""The real SGLang from a standby: every process of it is the one that waited, named and marked as in a plain launch."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path

import psutil
import pytest

from orchestrator.config import load_plan
from orchestrator.engines import dialect_for
from orchestrator.engines.launching import Launching
from orchestrator.gpus import GpuSet
from orchestrator.plan import Plan
from orchestrator.serving.ports import free_port
from orchestrator.serving.processes import find_marked, is_stopped
from orchestrator.serving.server import Launch, Server
from orchestrator.trials import load_points
from results.failure import Stage
from results.rundir import RunDir
from sweeps.trial import Trial
from tests.fakes.processes import marked
from tests.fakes.waiting import runs, wait_until
from tests.sglang_cpu.product import CONF, PROJECT

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]


def asked(plan: Plan, run: RunDir) -> tuple[Trial, Launch]:
    """A tree of the tiny drafter, and the command line and environment that it would be launched with."""
    settings = plan.space.settings({"algorithm": "EAGLE3", "drafter": "tiny", "eagle_topk": 2})
    trial = Trial(0, settings, "trial", load_points(plan))
    run.logs(trial.name).mkdir(parents=True)
    port, marker = free_port("127.0.0.1"), f"{run.marker}/{trial.name}/1-0123abcd"
    argv = tuple(dialect_for(plan).argv(settings, port, marker))
    return trial, Launch(argv, {"PATH": "/usr/bin:/bin", **plan.engine.env}, run.server_log(trial.name), "127.0.0.1", port, marker)  # fmt: skip


def answer(url: str) -> str:
    body = json.dumps({"text": "The sea", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        return str(json.load(response)["text"])


def test_a_standby_becomes_the_server_with_every_import_done(
    engine_python: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held, goes on, and serves; scheduler and detokenizer are warm; kill -9 of its guard leaves nothing of them."""
    monkeypatch.setenv("PWD", str(PROJECT))
    plan, run = load_plan([f"conf={CONF}", "engine.launch_mode=standby"]), RunDir.at(run_dir)
    trial, launch = asked(plan, run)
    launching = Launching(plan, run, dialect_for(plan))
    departure = launching.depart(trial, launch, GpuSet(()), threading.Event())
    waiting = departure.standby
    assert waiting is not None, departure.how
    assert waiting.hold()
    begun = waiting.pids()
    assert all(map(is_stopped, begun))

    with Server(launch, plan.deadlines, standby=waiting) as server:
        info = server.wait_ready(on_log=departure.hear)
        assert info["version"] == "0.5.17"
        assert departure.how == "standby: scheduler warm, detokenizer warm"
        family = [psutil.Process(pid) for pid in find_marked(launch.marker)]
        assert set(begun) <= {process.pid for process in family}
        names = {" ".join(process.cmdline()).strip() for process in family if process.pid in begun[1:]}
        assert names == {"sglang::scheduler", "sglang::detokenizer"}
        assert answer(server.url)
        psutil.Process(server.process_group).parent().kill()  # type: ignore[union-attr]
        wait_until(lambda: not any(runs(process.pid) for process in family), "nothing of the server is left")
    assert server.stop().left_over == ()
    assert marked(run.path) == []
    assert dialect_for(plan).stage(launch.log.read_text()) in (Stage.WARM_UP, Stage.SERVING)
