import gzip

import pytest

from benchmarks.data_sets import VARIANTS, Difference, best_variant, combine, data_files, sample_rows


def test_differences_of_several_data_sets_add_up():
    z, p = combine(
        [Difference(0.01, 0.01), Difference(0.3, 0.3), Difference(0.02, 0.01), Difference(0.0, 0.0)]
    )
    assert z == pytest.approx(4 / 3**0.5) and p == pytest.approx(0.0209, abs=1e-4)
    assert combine([Difference(-0.02, 0.01)])[0] == pytest.approx(-2)


def test_error_of_a_difference_is_that_of_its_interval():
    found = {"difference": 0.02, "interval": [0.0004, 0.0396]}
    first = Difference.read({"baseline": {"comparison": {"accuracy": found}}}, "baseline", "accuracy")
    assert first.value == 0.02 and first.error == pytest.approx(0.01, rel=1e-3)
    assert Difference.mean([first, Difference(0.04, 0.03)]) == pytest.approx((0.03, 0.02), rel=1e-3)


def test_the_choice_does_not_depend_on_the_data_set_left_out():
    errors = {name: dict.fromkeys(VARIANTS, 0.2) for name in "abc"}
    errors["a"]["dropout 0.1"] = 0.01
    errors["b"]["half the epochs"] = 0.15
    assert best_variant(errors, "abc") == best_variant(errors, "ab") == "dropout 0.1"
    assert best_variant(errors, "bc") == "half the epochs"
    assert best_variant(errors, "c") == "default"


def test_files_and_samples(tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    assert data_files(tmp_path, "none") == {}
    with gzip.open(folder / "train.csv.gz", "wt", encoding="utf-8") as file:
        file.write('text,label\n"a\nb",x\nc,y\nd,x\n')
    (folder / "dev.csv").write_text("text,label\ne,x\n", "utf-8")
    files = data_files(tmp_path, "some")
    assert files == {"train": folder / "train.csv.gz", "test": folder / "dev.csv"}
    (folder / "test.csv").write_text("text,label\nf,x\n", "utf-8")
    assert data_files(tmp_path, "some").keys() == {"train", "validation", "test"}
    assert len(sample_rows(files["train"], 2, tmp_path / "rows.csv").read_text("utf-8").split(",")) >= 3
    whole = sample_rows(files["train"], 9, tmp_path / "rows.csv").read_text("utf-8")
    assert sorted(whole.splitlines()[1:]) == sorted(['"a', 'b",x', "c,y", "d,x"])
    assert sample_rows(folder / "dev.csv", 0, tmp_path / "rows.csv").read_text("utf-8").split() == [
        "text,label"
    ]
