"""The browser's path and its local web server."""

import http.server
import time
import urllib.error
import urllib.request

import pytest

from clients import chromium
from clients.chromium import serve_folder
from clients.comparison import ClientUnavailableError
from tests.browsers import needs_chromium


def test_a_missing_browser_is_reported(monkeypatch):
    monkeypatch.setattr(chromium.shutil, "which", lambda name: None)
    with pytest.raises(ClientUnavailableError, match="apt-get install chromium"):
        chromium.find_chromium()


def test_files_have_their_types_and_the_headers_for_threads(tmp_path):
    (tmp_path / "page.mjs").write_text("export const one = 1;")
    (tmp_path / "code.wasm").write_bytes(b"\0asm")
    with serve_folder(tmp_path) as address:
        with urllib.request.urlopen(f"{address}page.mjs") as response:
            assert response.read() == b"export const one = 1;"
            assert "javascript" in response.headers["Content-Type"]
            assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        with urllib.request.urlopen(f"{address}code.wasm") as response:
            assert response.headers["Content-Type"] == "application/wasm"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


@needs_chromium
def test_a_page_is_open_when_its_scripts_have_run(tmp_path, monkeypatch):
    def send(self):
        if self.path == "/slow.js":
            time.sleep(0.5)
        http.server.SimpleHTTPRequestHandler.do_GET(self)

    monkeypatch.setattr(chromium._Handler, "do_GET", send, raising=False)
    (tmp_path / "slow.js").write_text("const found = 1;")
    (tmp_path / "index.html").write_text("<title>slow</title><p><script src=slow.js></script>")
    with chromium.open_browser() as tab, serve_folder(tmp_path) as address:
        for _ in range(2):
            tab.open(address)
            assert tab.evaluate("found") == 1
        with pytest.raises(chromium.BrowserError, match="missing.html: net::ERR_FILE_NOT_FOUND"):
            tab.open((tmp_path / "missing.html").as_uri())
