"""Launches that must fail on a real GPU, each in its own way: which kind, at which stage, after how long, is the card free?

    python -m tests.gpu.mishaps out=DIR gpus=0 only=taken_port,… conf=… [key=value …]

Each trial is run by a worker in this process, past the rules that would refuse it; at last a plain server shows that the
card can be used.  Prints one line a trial.  Not a test by itself: it needs a GPU, an engine and minutes.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from orchestrator.config import load_plan
from orchestrator.events import TrialEnded
from orchestrator.gpus import GpuSet, discover, used_mib
from orchestrator.plan import Plan
from orchestrator.serving.ports import free_port
from orchestrator.worker import Worker
from results.record import Record
from results.rundir import RunDir
from sweeps.settings import Settings
from sweeps.trial import LoadPoint, Trial
from tests.gpu.strikes import say

PLAIN = Settings()
TAKEN_AFTER_S = 4.0
"""The engine imports for longer than this before it looks at its port."""


@contextmanager
def taken_port() -> Iterator[None]:
    """Every port that is drawn is taken a little later: after the server was started, long before it binds."""
    with ExitStack() as undo:

        def drawn(host: str) -> int:
            port = free_port(host)
            held = undo.enter_context(socket.socket())

            def take() -> None:
                held.bind((host, port))
                held.listen(1)

            threading.Timer(TAKEN_AFTER_S, take).start()
            return port

        undo.enter_context(mock.patch("orchestrator.engines.engine.free_port", drawn))
        yield


def chain(plan: Plan, drafter: str, **more: object) -> Settings:
    held = {name: domain.values()[0] for name, domain in plan.space.domains.items() if len(domain.values()) == 1}
    backend = held.get("attention_backend")
    return PLAIN.replace(algorithm="EAGLE3", drafter=drafter, num_steps=3, eagle_topk=1, num_draft_tokens=4,
                         attention_backend=backend, **more)  # fmt: skip


def own_drafter(plan: Plan) -> str:
    """The first that the space asks for: the config may name more than there are."""
    return next(str(name) for name in plan.space.domains["drafter"].values() if name is not None)


def misfit(plan: Plan, folder: Path) -> Plan:
    """The same plan with a drafter more, whose config says another width than its tensors have."""
    source = Path(plan.drafters[own_drafter(plan)])
    wrong = shutil.copytree(source, folder / "misfit")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "hidden_size": config["hidden_size"] * 2}))
    return dataclasses.replace(plan, drafters={**plan.drafters, "misfit": str(wrong)})


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words if word.startswith(("out=", "gpus=", "only=")))
    plan = load_plan([word for word in words if not word.startswith(("out=", "gpus=", "only="))])
    run = RunDir.at(Path(given["out"]).resolve())
    plan = misfit(plan, run.path)
    card = discover([given["gpus"]])[0] if given["gpus"] else None
    gpus = GpuSet((card.id,), card.name, card.driver_version) if card else GpuSet(())
    own = own_drafter(plan)
    trials = {
        "impossible_memory_fraction": chain(plan, own).replace(mem_fraction_static=0.002),
        "unsupported_backend": chain(plan, own).replace(attention_backend="trtllm_mha"),
        "wrong_drafter": chain(plan, "misfit"),
        "taken_port": PLAIN,
        "plain": PLAIN,
    }
    wanted = given.get("only", ",".join(trials)).split(",")
    idle = used_mib(gpus)
    for number, name in enumerate(wanted):
        trial = Trial(number, trials[name], "trial", (LoadPoint(plan.workload.concurrency[0], 0),))
        run.begin(trial)
        began = time.monotonic()
        with taken_port() if name == "taken_port" else ExitStack():
            events = list(Worker(plan, run, gpus).run(trial))
        (row,) = [event for event in events if isinstance(event, Record)]
        (ended,) = [event for event in events if isinstance(event, TrialEnded)]
        failure = row.failure
        outcome = f"{failure.kind} at {failure.stage}: {failure.cause_in_short(160)} {failure.kind.remedy}" if failure else f"{row.measurement.output_tok_s if row.measurement else 0:.0f} tok/s"  # fmt: skip
        left = "; ".join(ended.left_over) or "nothing left"
        say(f"GPU {given['gpus']}, {name}, {time.monotonic() - began:.0f} s: {outcome} | {left}, memory {idle} → {used_mib(gpus)} MiB, retried: {ended.retry}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
