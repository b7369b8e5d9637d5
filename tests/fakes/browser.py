"""A real headless browser, driven over its own debugging protocol: opens a file, says what went wrong in it, and looks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = "no Chromium on this machine: apt-get install chromium"
_WORDS = (
    "--headless=new", "--no-sandbox", "--disable-gpu-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader",
    "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip


@dataclass
class Page:
    """One page at one size; `errors`: what its console and its scripts complained about; `requests`: addresses asked for."""

    socket: aiohttp.ClientWebSocketResponse
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _last: int = 0
    _happened: list[str] = field(default_factory=list)

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, promises waited for."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    async def look(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Be so wide, in light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, file: Path) -> float:
        """Seconds until the page has loaded."""
        began = time.monotonic()
        self._happened.clear()
        await self.call("Page.navigate", url=file.as_uri())
        while "Page.loadEventFired" not in self._happened:
            self._heard(await self.socket.receive_json(timeout=60))
        return time.monotonic() - began

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        await self.socket.send_json({"id": self._last, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("id") == self._last:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        self._happened.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:200])


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A browser of our own with an empty profile in `profile`, ended with all its processes."""
    assert BROWSER is not None, WHY_NOT
    process = subprocess.Popen(
        [BROWSER, *_WORDS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            address = await _address(session, profile / "DevToolsActivePort")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _address(session: aiohttp.ClientSession, file: Path) -> str:
    """Where the browser's one page listens, once it has said on which port."""
    for _ in range(600):
        with contextlib.suppress(OSError, IndexError, aiohttp.ClientError):
            port = file.read_text().splitlines()[0]
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
                return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(0.05)
    raise AssertionError("the browser did not come up within 30 s")
