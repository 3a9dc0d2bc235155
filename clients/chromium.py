"""Headless Chromium over the DevTools protocol on a pipe, and a local web server for its pages."""

import base64
import contextlib
import fcntl
import functools
import http.server
import json
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clients.comparison import ClientUnavailableError

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium reads commands from file descriptor 3 and writes responses to 4.
COMMAND_FD, RESPONSE_FD, FIRST_FREE_FD = 3, 4, 10
START_SECONDS, STEP_SECONDS = 60, 600


class BrowserError(Exception):
    """A page failed, or the browser did not respond in time."""


def find_chromium() -> str:
    """The path of the browser; raises ClientUnavailableError if none is installed."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise ClientUnavailableError(
        f"Chromium is not installed (searched for {', '.join(NAMES)}); apt-get install chromium"
    )


class Tab:
    """A page in the browser, over the file descriptors of responses and commands; `problems` has the page's errors."""

    def __init__(self, reading: int, writing: int):
        self._reading, self._writing = reading, writing
        self._received = b""
        self._count = 0
        self._session: str | None = None
        self._loaded: set[str] = set()
        self.problems: list[str] = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, START_SECONDS)["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", {"enabled": True})

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, seconds: float = STEP_SECONDS
    ) -> dict[str, Any]:
        """Runs a DevTools command and returns its result; raises BrowserError if it failed or timed out."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        content = memoryview(json.dumps(message, allow_nan=False).encode() + b"\0")
        while content:
            content = content[os.write(self._writing, content) :]
        end = time.monotonic() + seconds
        while True:
            message = self._next_message(method, end)
            if message.get("id") == self._count:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error'].get('message')}")
                return message["result"]
            self._record_event(message)

    def _next_message(self, method: str, end: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise BrowserError(f"{method}: no response in time")
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise BrowserError(f"{method}: the browser ended")
            self._received += part
        content, _, self._received = self._received.partition(b"\0")
        return json.loads(content)

    def _record_event(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Page.lifecycleEvent" and parameters["name"] == "load":
            self._loaded.add(parameters["loaderId"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(_reason(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}".strip())

    def open(self, url: str) -> None:
        """Navigates to an address and waits until the page has loaded; raises BrowserError if it cannot be loaded."""
        response = self.call("Page.navigate", {"url": url})
        if error := response.get("errorText"):
            raise BrowserError(f"{url}: {error}")
        end = time.monotonic() + STEP_SECONDS
        while response["loaderId"] not in self._loaded:
            self._record_event(self._next_message("Page.navigate", end))

    def evaluate(self, expression: str, seconds: float = STEP_SECONDS) -> Any:
        """The JSON value of a JavaScript expression; awaits promises. Raises BrowserError if it threw or timed out."""
        parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        response = self.call("Runtime.evaluate", parameters, seconds)
        if "exceptionDetails" in response:
            raise BrowserError(_reason(response["exceptionDetails"]))
        return response["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120) -> None:
        """Waits until a JavaScript expression is true; otherwise raises BrowserError with the page's errors."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"Boolean({expression})"):
                return
            time.sleep(0.1)
        raise BrowserError(f"timeout: {expression}; {'; '.join(self.problems) or 'no errors on the page'}")

    def screenshot(self, path: Path, width: int, height: int, scheme: str, scale: float = 1) -> None:
        """Writes a PNG of the page in a window of CSS pixels, with the color scheme "light" or "dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", {"features": features})
        time.sleep(0.5)
        content = self.call("Page.captureScreenshot", {"format": "png"})["data"]
        path.write_bytes(base64.b64decode(content))


def _reason(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details.get("text"))


@contextlib.contextmanager
def open_browser(arguments: Sequence[str] = ()) -> Iterator[Tab]:
    """Starts a browser with one empty page; closes it after the block."""
    program = find_chromium()
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmha-", ignore_cleanup_errors=True))
        commands, writing = _pipe(stack)
        reading, responses = _pipe(stack)
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", *arguments]
        # The sandbox does not run as root (containers).
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        descriptors = {0: null, 1: null, 2: null, COMMAND_FD: commands, RESPONSE_FD: responses}
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in descriptors.items()]
        process = os.posix_spawn(program, command, dict(os.environ), file_actions=actions)
        stack.callback(_end_process, process)
        tab = Tab(reading, writing)
        yield tab
        with contextlib.suppress(BrowserError, OSError):
            tab._session = None
            tab.call("Browser.close", seconds=5)


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Reading and writing end, numbered above the descriptors that the browser uses."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD))
        os.close(end)
        stack.callback(os.close, ends[-1])
    return ends[0], ends[1]


def _end_process(process: int) -> None:
    """Waits five seconds for a process to end, then kills it."""
    for _ in range(50):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(process, 9)
    os.waitpid(process, 0)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Sends the headers that let a page use threads; logs nothing."""

    def end_headers(self):
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format, *args):
        pass


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serves a folder to this machine during the block; yields its address."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
