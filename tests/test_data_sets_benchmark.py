import gzip

import pytest

from benchmarks import more_data_sets
from benchmarks.data_sets import (
    VARIANTS,
    Difference,
    best_variant,
    combine,
    data_files,
    data_set,
    main,
    sample_rows,
)


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


@pytest.mark.parametrize(("column", "metric"), [("label", "accuracy"), ("labels", "macro_f1")])
def test_a_data_set_of_another_name_is_scored_by_its_label_column(tmp_path, column, metric):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "test.csv").write_text(f"text,{column}\nA,b\n", "utf-8")
    assert data_set("own", data_files(tmp_path, "own")).metric == metric
    assert data_set("mrpc", {}).flags == ("--task=match",)


def test_a_gzipped_data_set_of_another_name_is_read(tmp_path):
    with gzip.open(tmp_path / "test.csv.gz", "wt", encoding="utf-8") as file:
        file.write("text,labels\nA,b|c\n")
    assert data_set("own", {"test": tmp_path / "test.csv.gz"}).metric == "macro_f1"


@pytest.mark.parametrize("command", ["scores", "defaults"])
def test_an_unknown_data_set_is_refused(tmp_path, capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--folder", str(tmp_path), "--out", str(tmp_path / "sets"), "--names", "trek"])
    assert "got trek" in capsys.readouterr().err


def test_made_data_sets_have_no_copies_and_no_rare_labels(tmp_path):
    (tmp_path / "de").mkdir()
    for name, count in (("a", 80), ("b", 100), ("de/few", 20)):
        texts = "\n%\n".join(f"text number {number} of\n{name}" for number in [*range(count), *range(5)])
        (tmp_path / name).write_text(texts, "utf-8")
    more_data_sets.fortunes(tmp_path / "made", tmp_path)
    rows = [
        line
        for part in ("train", "test")
        for line in (tmp_path / "made" / "fortunes" / f"{part}.csv").read_text("utf-8").splitlines()[1:]
    ]
    assert sorted(rows) == sorted(
        f"text number {number} of {name},{name}"
        for name, count in (("a", 80), ("b", 100))
        for number in range(count)
    )
    assert (tmp_path / "made" / "fort_de" / "train.csv").read_text("utf-8") == "text,label\n"
