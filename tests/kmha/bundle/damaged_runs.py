"""Changes run folders and returns the error message of loading them."""

import hashlib
import json

import pytest

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError


def change_manifest(folder, **values) -> None:
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text("utf-8")) | values
    path.write_text(
        json.dumps({name: value for name, value in manifest.items() if value != "absent"}), "utf-8"
    )


def put(folder, name: str, content: bytes) -> None:
    """Replaces a file and records its hash, as in a malicious run folder."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "bundle.json").read_text("utf-8"))["files"]
    change_manifest(folder, files=files | {name: hashlib.sha256(content).hexdigest()})


def refused(folder) -> str:
    with pytest.raises(InputError) as error:
        Bundle.load(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message
    return message
