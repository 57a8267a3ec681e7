"""A real Chromium, spoken to over a pipe; nothing but the browser itself is needed."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS_TO_ANSWER = 30.0


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One tab; remembers every request, console message and error."""

    def __init__(self, profile: Path) -> None:
        to_browser, from_browser = os.pipe(), os.pipe()
        executable = find_chromium()
        assert executable is not None
        self._process = subprocess.Popen(
            # The browser reads from descriptor 3 and writes to 4.
            ["bash", "-c", f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}', "bash"]
            + [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._write, self._read = to_browser[1], from_browser[0]
        os.set_blocking(self._read, False)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Page":
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(target for target in targets if target["type"] == "page")
        answer = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, place: Path | str, width: int, *, height: int = 900, dark: bool = False) -> None:
        """Open a file or an address as a window of that width shows it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.events.clear()
        url = place if isinstance(place, str) else place.resolve().as_uri()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """Every address the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Console messages, log entries and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            try:
                self._rest += os.read(self._read, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        message, _, self._rest = self._rest.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded
