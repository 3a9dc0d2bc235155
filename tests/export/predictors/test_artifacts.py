import pytest

from export.predictors.artifacts import find_artifact
from kmha.errors import InputError


def version(folder, size=5):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"x" * size)
    return folder


@pytest.mark.parametrize(("name", "kind"), [("a.tflite", "tflite"), ("b.onnx", "onnx")])
def test_the_format_follows_from_the_suffix(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"1234")
    artifact = find_artifact(tmp_path / name)
    assert (artifact.path, artifact.format, artifact.bytes) == (tmp_path / name, kind, 4)


def test_a_version_and_the_newest_of_several(tmp_path):
    for name in ("2", "10", "9"):
        version(tmp_path / name)
    (tmp_path / "11").mkdir()
    (tmp_path / "10" / "variables").mkdir()
    (tmp_path / "10" / "variables" / "data").write_bytes(b"12")
    assert find_artifact(tmp_path / "9").path == tmp_path / "9"
    newest = find_artifact(tmp_path)
    assert (newest.path, newest.format, newest.bytes) == (tmp_path / "10", "savedmodel", 7)


@pytest.mark.parametrize(
    ("name", "message"), [("absent", "no such file"), ("notes.txt", "another file"), ("empty", "without")]
)
def test_other_files_are_rejected(tmp_path, name, message):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=message) as error:
        find_artifact(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
