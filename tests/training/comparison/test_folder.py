import pytest

from kmha.errors import InputError
from training.comparison.folder import opened
from training.runs.checkpoint_folder import write_progress
from training.runs.run_folder import CHECKPOINT

SETTINGS = {"train": {"epochs": 2}, "names": ("a", "b")}


def test_what_is_finished_is_found_again(tmp_path):
    place = tmp_path / "a" / "b"
    with opened(place, SETTINGS, overwrite=False) as first:
        assert first.kept("cnn", 0.1) is None
        folder, begun = first.training("cnn", 0.1)
        assert not begun
        checkpoint = folder / CHECKPOINT / "1"
        checkpoint.mkdir(parents=True)
        write_progress(checkpoint, {})
        assert first.training("cnn", 0.1) == (folder, True)
        # Another rate, and another candidate whose name begins alike.
        assert not first.training("cnn", 0.01)[1] and not first.training("cnn2", 0.1)[1]
        first.keep("cnn", 0.1, {"size": 3})
        assert first.kept("cnn", 0.01) is None
        assert not folder.exists() and first.training("cnn2", 0.1)[0].exists()
    with opened(place, SETTINGS, overwrite=False) as again:
        assert again.kept("cnn", 0.1) == {"size": 3}
    with opened(place, SETTINGS, overwrite=True) as anew:
        assert anew.kept("cnn", 0.1) is None


def test_other_settings_are_refused(tmp_path):
    with opened(tmp_path, SETTINGS, overwrite=False) as place:
        place.keep("cnn", 0.1, {})
    with (
        pytest.raises(InputError, match=r"--train\.epochs 2, got 3; --overwrite starts anew"),
        opened(tmp_path, {**SETTINGS, "train": {"epochs": 3}}, overwrite=False),
    ):
        pass
    with opened(tmp_path, SETTINGS, overwrite=False) as place:
        assert place.kept("cnn", 0.1) == {}


def test_two_do_not_write_at_once(tmp_path):
    with (
        opened(tmp_path, SETTINGS, overwrite=False),
        pytest.raises(InputError, match="another comparison is writing there"),
        opened(tmp_path, SETTINGS, overwrite=False),
    ):
        pass


def test_what_is_no_comparison_stays(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with (
        pytest.raises(InputError, match="got a folder that holds something else"),
        opened(tmp_path, SETTINGS, overwrite=True),
    ):
        pass
    with pytest.raises(InputError, match="got a file"), opened(tmp_path / "letter.txt", SETTINGS, True):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]
