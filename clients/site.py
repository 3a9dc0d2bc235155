"""Serves folders to a browser on this machine."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class _Handler(http.server.SimpleHTTPRequestHandler):
    """With the headers that let a page use threads."""

    def end_headers(self):
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format, *args):
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, served while the block runs, to this machine only."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
