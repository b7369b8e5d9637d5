"""Notify: runs the command of `notify:` when a sweep ends, well or badly, with what there is to say.

The command is an argument list, never a shell string.  It gets the facts as one JSON object on its standard input, and the
same as variables of its environment: SWEEP_STATE, SWEEP_RUN, SWEEP_VERDICT, SWEEP_REPORT.  What becomes of it changes
nothing about the sweep.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Sequence
from typing import Literal

from results.rundir import RunDir

log = logging.getLogger(__name__)

State = Literal["finished", "no verdict", "interrupted", "trouble"]
TIMEOUT_S = 60.0


def notify(command: Sequence[str], state: State, run: RunDir, said: str) -> None:
    """`said`: the verdict, or what went wrong.  Without a command nothing happens; a failing one is a warning."""
    if not command:
        return
    facts = {"state": state, "run": str(run.path), "verdict": said, "report": str(run.report)}
    environment = {**os.environ, **{f"SWEEP_{name.upper()}": value for name, value in facts.items()}}
    try:
        done = subprocess.run(
            list(command), input=f"{json.dumps(facts)}\n".encode(), env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        log.warning("notify: %s did not end within %.0f s and was killed", command[0], TIMEOUT_S)
    except OSError as error:
        log.warning("notify: %s could not be started (%s)", command[0], error.strerror)
    except KeyboardInterrupt:
        log.warning("notify: %s was ended by Ctrl-C", command[0])
    else:
        if done.returncode:
            said_last = done.stderr.decode(errors="replace").strip()[-300:]
            log.warning("notify: %s ended with %d: %s", command[0], done.returncode, said_last)
