import pytest

from kmha.errors import InputError
from training.comparison.folder import open_folder
from training.runs.checkpoint_folder import write_progress
from training.runs.run_folder import CHECKPOINT

SETTINGS = {"train": {"epochs": 2}, "names": ("a", "b")}


def test_finished_results_are_read_again(tmp_path):
    place = tmp_path / "a" / "b"
    with open_folder(place, SETTINGS, overwrite=False) as first:
        assert first.result("cnn", 0.1) is None
        folder, can_resume = first.training("cnn", 0.1)
        assert not can_resume
        checkpoint = folder / CHECKPOINT / "1"
        checkpoint.mkdir(parents=True)
        write_progress(checkpoint, {})
        assert first.training("cnn", 0.1) == (folder, True)
        # Another learning rate, and another candidate with the same prefix.
        assert not first.training("cnn", 0.01)[1] and not first.training("cnn2", 0.1)[1]
        first.save("cnn", 0.1, {"size": 3})
        assert first.result("cnn", 0.01) is None
        assert not folder.exists() and first.training("cnn2", 0.1)[0].exists()
    with open_folder(place, SETTINGS, overwrite=False) as again:
        assert again.result("cnn", 0.1) == {"size": 3}
    with open_folder(place, SETTINGS, overwrite=True) as anew:
        assert anew.result("cnn", 0.1) is None


def test_other_settings_are_rejected(tmp_path):
    with open_folder(tmp_path, SETTINGS, overwrite=False) as place:
        place.save("cnn", 0.1, {})
    with (
        pytest.raises(InputError, match=r"--train\.epochs 2, got 3; --overwrite starts again"),
        open_folder(tmp_path, {**SETTINGS, "train": {"epochs": 3}}, overwrite=False),
    ):
        pass
    with open_folder(tmp_path, SETTINGS, overwrite=False) as place:
        assert place.result("cnn", 0.1) == {}


def test_the_folder_is_locked(tmp_path):
    with (
        open_folder(tmp_path, SETTINGS, overwrite=False),
        pytest.raises(InputError, match="another comparison is writing there"),
        open_folder(tmp_path, SETTINGS, overwrite=False),
    ):
        pass


def test_other_content_is_not_removed(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with (
        pytest.raises(InputError, match="got a folder with other content"),
        open_folder(tmp_path, SETTINGS, overwrite=True),
    ):
        pass
    with pytest.raises(InputError, match="got a file"), open_folder(tmp_path / "letter.txt", SETTINGS, True):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]
