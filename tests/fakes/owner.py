# ruff: noqa: T201 - what it prints is what a test reads
"""A worker reduced to what it owns: a server, until somebody kills this process.  Prints the server's pid once it is ready.

owner.py LOG PORT MARKER [words for the fake server…]
"""

import sys
import time
from pathlib import Path

from orchestrator.plan import Deadlines
from orchestrator.serving.server import Launch, Server

log, port, marker, *more = sys.argv[1:]
fake = str(Path(__file__).with_name("server.py"))
argv = (sys.executable, fake, "--port", port, "--served-model-name", marker, *more)
with Server(Launch(argv, {}, Path(log), "127.0.0.1", int(port), marker), Deadlines(stop_s=4.0)) as server:
    server.wait_ready()
    print(server.process_group, flush=True)
    time.sleep(600)
