"""How long a launch takes in each mode, and whether it is the same server: the real SGLang on a CPU, with a trained drafter.

    python benchmarks/launch.py drafters=FOLDER [launches=3] [modes=plain,overlap,standby] [cores=2] [out=DIR] [key=value …]

The target is SmolLM2-135M-Instruct, FOLDER/full an EAGLE-3 head trained for it (`make test-sglang-full DRAFTERS=FOLDER` brings
the engine and the target).  The launches of all modes are interleaved in one run, as tests/gpu/launch_modes.py makes them on a GPU;
`cores`: how many an overlapped launch takes to be idle, for it would not overlap anything on two busy ones.  Other words are the
config's.  Seconds are from go, when the process is started or the standby is told what to start, to the first token that is served.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PWD"] = str(ROOT)

from tests.gpu import launch_modes  # noqa: E402

CONF = ROOT / "tests" / "sglang_cpu" / "conf.yaml"
TARGET = ROOT / ".engines" / "smollm2"
OWN = ("drafters", "cores", "out", "launches", "modes")


def main(words: list[str]) -> int:
    given = dict(word.partition("=")[::2] for word in words if word.split("=")[0] in OWN)
    config = [word for word in words if word.split("=")[0] not in given]
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        asked = [f"{name}={given[name]}" for name in ("launches", "modes") if name in given]
        asked += [f"out={given.get('out', f'{folder}/run')}", "gpus=", "made=alone", f"conf={CONF}"]
        ours = [
            f"target.path={TARGET}", "target.dtype=float32", f"drafters.full={Path(given['drafters']) / 'full'}",
            "space.drafter=full", "space.eagle_topk=1", "server_args.disable_radix_cache=true",
            "space.mem_fraction_static=0.3",  # so that max_total_tokens decides, not what else is in this host's memory
            "workload.concurrency=[2]", "workload.output_tokens=32", "workload.requests_per_stream=4",
            "deadlines.load_s=1200", "deadlines.load_idle_s=600",
        ]  # fmt: skip
        told = {word.partition("=")[0] for word in config}
        asked += [word for word in ours if word.partition("=")[0] not in told]
        with mock.patch("orchestrator.engines.launching.idle_cores", return_value=float(given.get("cores", 2))):
            return launch_modes.main([*asked, *config])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
