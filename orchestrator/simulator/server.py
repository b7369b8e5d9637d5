"""The server's life after its start: bind the port, warm up, serve, end when told to.

Not here: the start before the port (startup.py), what is answered (endpoints.py), the decoding (decoder.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

from orchestrator.simulator import console
from orchestrator.simulator.console import log
from orchestrator.simulator.decoder import Decoder
from orchestrator.simulator.endpoints import Endpoints
from orchestrator.simulator.faults import ECC_ERROR
from orchestrator.simulator.startup import Started, Startup
from orchestrator.simulator.wire import Connection


class SimulatedServer:
    """One launch, from the bound port to its end."""

    def __init__(self, startup: Startup, started: Started) -> None:
        self.args = startup.args
        self.profile = startup.profile
        self.faults = startup.faults
        self.startup = startup
        self.ready = False
        self.decoder = Decoder(startup, started)
        self.endpoints = Endpoints(self.decoder, lambda: self.ready)

    async def serve(self) -> None:
        """Bind the port, warm up, answer until the process is told to end."""
        loop = asyncio.get_running_loop()
        if not self.faults.find("ignore-term"):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        log("INFO:     Application startup complete.")
        host, port = self.args["host"], self.args["port"]
        try:
            await loop.create_server(
                lambda: Connection(self.endpoints.handle, self.endpoints.log_access), host, port, backlog=2048
            )
        except OSError as error:
            await self._hang_without_port(error)
        log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        if self.faults.find("setsid-grandchild"):
            _leave_grandchild()
        await self._warm_up()
        await self.decoder.run()

    async def _hang_without_port(self, error: OSError) -> None:
        """As SGLang does: it says so and waits for its own shutdown for ever, holding the GPU."""
        log(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
            f"('{self.args['host']}', {self.args['port']}): address already in use"
        )
        log("INFO:     Waiting for application shutdown.")
        await asyncio.Event().wait()

    async def _warm_up(self) -> None:
        if fault := self.faults.find("slow", "warm_up"):
            await asyncio.sleep(fault.amount)
        if self.faults.find("crash", "warm_up"):
            console.warm_up_failed("RuntimeError: simulated crash in warm_up")
        if self.faults.find("oom", "warm_up"):
            console.scheduler_exception(console.no_memory_left(self.profile.memory.memory_gib), serving=True)
        if self.faults.find("sick", "warm_up"):
            console.scheduler_exception(ECC_ERROR, serving=True)
        if self.faults.find("hang", "warm_up"):
            await asyncio.Event().wait()
        if cause := self.startup.first_step_fails():
            console.scheduler_exception(cause, serving=True)
        if not self.args["skip_server_warmup"]:
            await asyncio.sleep(self.profile.start.warm_up_s)
        log("The server is fired up and ready to roll!")
        self.ready = True

    def _stop(self) -> None:
        """SIGTERM: SGLang 0.5.17 ends by killing itself, so its exit code is -9 even then."""
        self.ready = False
        log(
            f"Gracefully exiting... Remaining number of requests {len(self.decoder.generations)}. Remaining requests rids=[]."
        )
        asyncio.get_running_loop().call_later(self.profile.stop_s, console.killed)


def _leave_grandchild() -> None:
    subprocess.Popen(
        ["sleep", "3600"],  # noqa: S607 - the system's own
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
