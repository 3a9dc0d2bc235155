"""The browser's path and its local web server."""

import urllib.error
import urllib.request

import pytest

from clients import chromium
from clients.chromium import serve_folder
from clients.comparison import ClientUnavailableError


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
