"""The server of folders for the browser."""

import urllib.error
import urllib.request

import pytest

from clients.site import served


def test_files_come_with_their_types_and_the_headers_of_threads(tmp_path):
    (tmp_path / "page.mjs").write_text("export const one = 1;")
    (tmp_path / "code.wasm").write_bytes(b"\0asm")
    with served(tmp_path) as address:
        with urllib.request.urlopen(f"{address}page.mjs") as response:
            assert response.read() == b"export const one = 1;"
            assert "javascript" in response.headers["Content-Type"]
            assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        with urllib.request.urlopen(f"{address}code.wasm") as response:
            assert response.headers["Content-Type"] == "application/wasm"


def test_it_ends_with_the_block(tmp_path):
    with served(tmp_path) as address:
        pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)
