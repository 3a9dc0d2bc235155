"""The store makes an artifact once, and again where making it failed."""

import pytest

from tests import artifact_store
from tests.artifact_store import remove_outdated, source_digest, stored


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_store, "STORE", tmp_path / "store")


def test_an_artifact_is_made_once():
    calls = []

    def make(folder):
        calls.append(folder)
        (folder / "file").write_text("content")
        return {"number": 1}

    first, second = stored("one", make), stored("one", make)
    assert first == second == (calls[0], {"number": 1}) and len(calls) == 1
    assert (first[0] / "file").read_text() == "content"


def test_an_artifact_is_made_again_after_a_failure():
    def fail(folder):
        (folder / "half").write_text("")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stored("one", fail)
    folder, _ = stored("one", lambda folder: None)
    assert not list(folder.iterdir())


def test_artifacts_of_other_sources_are_removed():
    folder, _ = stored("one", lambda folder: None)
    other = folder.parents[1] / "other"
    other.mkdir()
    remove_outdated()
    assert folder.exists() and not other.exists() and folder.parent.name == source_digest()
