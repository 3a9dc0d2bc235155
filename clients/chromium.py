"""A headless Chromium, driven over its own protocol on a pipe: nothing but the browser and the standard library."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clients.outcome import NotRunError

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The browser reads commands at 3 and writes answers at 4.
READS, WRITES, FREE = 3, 4, 10
START_SECONDS, STEP_SECONDS = 60, 600


class BrowserError(Exception):
    """A page failed, or the browser gave no answer in time."""


def find() -> str:
    """The browser's program.

    Raises:
        NotRunError: None is installed.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise NotRunError(f"no Chromium is installed (looked for {', '.join(NAMES)}); apt-get install chromium")


class Tab:
    """A page in the browser.

    Args:
        reading: File descriptor of its answers.
        writing: File descriptor of its commands.
    """

    def __init__(self, reading: int, writing: int):
        self._reading, self._writing = reading, writing
        self._received = b""
        self._count = 0
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, START_SECONDS)["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, seconds: float = STEP_SECONDS
    ) -> dict[str, Any]:
        """The result of a command of the protocol.

        Raises:
            BrowserError: It failed, or took longer than the seconds.
        """
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        content = memoryview(json.dumps(message).encode() + b"\0")
        while content:
            content = content[os.write(self._writing, content) :]
        end = time.monotonic() + seconds
        while True:
            answer = self._next(method, end)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]
            self._note(answer)

    def _next(self, method: str, end: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise BrowserError(f"{method}: no answer in time")
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise BrowserError(f"{method}: the browser ended")
            self._received += part
        content, _, self._received = self._received.partition(b"\0")
        return json.loads(content)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(_reason(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}".strip())

    def open(self, url: str) -> None:
        """Goes to an address."""
        self.call("Page.navigate", {"url": url})

    def evaluate(self, expression: str, seconds: float = STEP_SECONDS) -> Any:
        """The JSON value of a JavaScript expression; a promise is waited for.

        Raises:
            BrowserError: It threw, or took too long.
        """
        parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", parameters, seconds)
        if "exceptionDetails" in answer:
            raise BrowserError(_reason(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120) -> None:
        """Waits until a JavaScript expression is true.

        Raises:
            BrowserError: It was not, within the seconds; the page's own errors are named.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"Boolean({expression})"):
                return
            time.sleep(0.1)
        raise BrowserError(f"never true: {expression}; {'; '.join(self.problems) or 'no errors on the page'}")

    def screenshot(self, path: Path, width: int, height: int, scheme: str, scale: float = 1) -> None:
        """Writes a picture of the page as PNG.

        Args:
            path: The file.
            width: Of the window, in CSS pixels.
            height: Likewise.
            scheme: "light" or "dark".
            scale: Device pixels of a CSS pixel.
        """
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size)
        self.call(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        time.sleep(0.5)
        picture = self.call("Page.captureScreenshot", {"format": "png"})["data"]
        path.write_bytes(base64.b64decode(picture))


def _reason(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details.get("text"))


@contextlib.contextmanager
def opened(arguments: Sequence[str] = ()) -> Iterator[Tab]:
    """A new browser with one empty page, closed after the block.

    Args:
        arguments: More for its command line.

    Raises:
        NotRunError: None is installed.
    """
    program = find()
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmha-", ignore_cleanup_errors=True))
        commands, writing = _pipe(stack)
        reading, answers = _pipe(stack)
        nothing = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, nothing)
        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", *arguments]
        # Its sandbox refuses to run as root, as in a container.
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        places = {0: nothing, 1: nothing, 2: nothing, READS: commands, WRITES: answers}
        actions = [(os.POSIX_SPAWN_DUP2, given, expected) for expected, given in places.items()]
        process = os.posix_spawn(program, command, dict(os.environ), file_actions=actions)
        stack.callback(_reaped, process)
        tab = Tab(reading, writing)
        yield tab
        with contextlib.suppress(BrowserError, OSError):
            tab._session = None
            tab.call("Browser.close", seconds=5)


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Reading and writing end, numbered past those that the browser is given."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FREE))
        os.close(end)
        stack.callback(os.close, ends[-1])
    return ends[0], ends[1]


def _reaped(process: int) -> None:
    """Waits for a process to end, five seconds, then ends it."""
    for _ in range(50):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(process, 9)
    os.waitpid(process, 0)
