"""`python -m orchestrator.simulator <SGLang flags> --sim-profile NAME`: start one simulated server and serve until told to end."""

from __future__ import annotations

import asyncio
import signal

from orchestrator.errors import ConfError
from orchestrator.simulator import console
from orchestrator.simulator.faults import Faults
from orchestrator.simulator.flags import LaunchRefused, parser, resolve
from orchestrator.simulator.profile import load_profile
from orchestrator.simulator.server import SimulatedServer
from orchestrator.simulator.startup import Startup


def main() -> None:
    flags = parser()
    given = flags.parse_args()
    try:
        profile = load_profile(given.sim_profile)
        args = resolve(given, profile)
        faults = Faults.of(args.faults, profile, args.values)
    except LaunchRefused as error:
        console.refuse(str(error))
    except (ConfError, ValueError) as error:
        flags.exit(2, f"{flags.prog}: error: {error}\n")
    if faults.find("ignore-term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    startup = Startup(args, profile, faults)
    started = startup.run()

    async def serve() -> None:
        await SimulatedServer(startup, started).serve()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
