import gzip
from pathlib import Path

import pytest

from benchmarks import more_data_sets, more_pairs
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


def test_generated_data_sets_have_no_duplicates_and_no_rare_labels(tmp_path):
    (tmp_path / "de").mkdir()
    for name, count in (("a", 80), ("b", 100), ("de/few", 20)):
        texts = "\n%\n".join(f"text number {number} of\n{name}" for number in [*range(count), *range(5)])
        (tmp_path / name).write_text(texts, "utf-8")
    more_data_sets.fortunes(tmp_path / "made", tmp_path)
    assert sorted(_rows(tmp_path / "made" / "fortunes")) == sorted(
        f"text number {number} of {name},{name}"
        for name, count in (("a", 80), ("b", 100))
        for number in range(count)
    )
    assert (tmp_path / "made" / "fort_de" / "train.csv").read_text("utf-8") == "text,label\n"


def _rows(path: Path) -> list[str]:
    return [
        line
        for part in ("train", "test")
        for line in (path / f"{part}.csv").read_text("utf-8").splitlines()[1:]
    ]


def test_glosses_have_their_file_and_hypernym_as_labels(tmp_path):
    for part in ("noun", "verb", "adj", "adv"):
        hypernym = "@ 00000001 n 0000 " if part == "noun" else ""
        lines = [
            f'0000 0{part[0]} {part[0]} 01 word 0 001 {hypernym}| {part} {i}; "an example"  '
            for i in range(20)
        ]
        (tmp_path / f"data.{part}").write_text("\n".join(["  1 a license", *lines, ""]), "utf-8")
    more_data_sets.main(["--out", str(tmp_path / "made"), "--wordnet", str(tmp_path)])
    assert sorted(_rows(tmp_path / "made" / "hyper77")) == sorted(f"noun {i},h00000001" for i in range(20))
    assert set(_rows(tmp_path / "made" / "gloss")) >= {"verb 3,l0v", "noun 3,l0n", "adj 3,l0a"}


def test_verses_have_their_book_and_chapter_as_labels(tmp_path):
    verses = [
        f"{book}{1 + i // 12}:{1 + i % 12} {book} verse {i}" for book in ("Ge", "1Sa") for i in range(24)
    ]
    (tmp_path / "verses.txt").write_text("\n".join(verses), "utf-8")
    more_data_sets.main(["--out", str(tmp_path / "made"), "--bible", str(tmp_path)])
    assert sorted(_rows(tmp_path / "made" / "bible")) == sorted(
        f"{book} verse {i},{book}" for book in ("Ge", "1Sa") for i in range(24)
    )
    chapters = _rows(tmp_path / "made" / "chapters")
    assert "Ge verse 12 Ge verse 13 Ge verse 14 Ge verse 15,Ge-2" in chapters and len(chapters) == 12


def test_records_are_paired_with_their_copy_and_with_one_that_shares_a_value(tmp_path):
    columns = "rec_id, given_name, surname, street_number, address_1, suburb, date_of_birth, soc_sec_id"
    for name, kind in (("dataset4a", "org"), ("dataset4b", "dup-0")):
        rows = [f"rec-{i}-{kind}, anna, birke{i}, {i}, mill street, old {kind}, 1990, 7" for i in range(8)]
        (tmp_path / f"{name}.csv").write_text("\n".join([columns, *rows, ""]), "utf-8")
    more_pairs.main(["--out", str(tmp_path / "made"), "--records", str(tmp_path)])
    short = [row.split(",") for row in _rows(tmp_path / "made" / "records_short")]
    assert ["anna birke3 old org", "anna birke3 old dup-0", "1"] in short and len(short) == 16
    assert all((a.split()[1] == b.split()[1]) == (label == "1") for a, b, label in short)
    whole = _rows(tmp_path / "made" / "records")
    assert "anna birke3 3 mill street old org,anna birke3 3 mill street old dup-0,1" in whole
    made = {"test": tmp_path / "made" / "records" / "test.csv"}
    assert data_set("records", made).flags == ("--task=match",)


def test_glosses_are_paired_with_those_of_a_hypernym(tmp_path):
    lines = [
        f'{i:08} 03 n 01 word{i} 0 001 @ {i // 4:08} n 0000 | gloss {i}; "an example"  ' for i in range(1, 20)
    ]
    (tmp_path / "data.noun").write_text("\n".join(["  1 a license", *lines, ""]), "utf-8")
    more_pairs.main(["--out", str(tmp_path / "made"), "--wordnet", str(tmp_path)])
    rows = _rows(tmp_path / "made" / "hyper_pairs")
    assert "word9: gloss 9,word2: gloss 2,1" in rows and not any("word1:" in row[:6] for row in rows)
    # 16 is below 4 and that below 1: they share two of three and two hypernyms. 0 is no noun.
    nouns = {str(i): ("03", f"word{i}", str(i // 4)) for i in range(1, 20)}
    similar = [pair for (pair,) in more_pairs.similar_nouns(nouns)]
    assert ("word16", "word4", 4.0) in similar and ("word13", "word12", 2.5) in similar
    made = {"test": tmp_path / "made" / "noun_similarity" / "test.csv"}
    assert data_set("noun_similarity", made).metric == "spearman"


def test_a_missing_folder_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        more_data_sets.main(["--out", str(tmp_path / "made"), "--fortunes", str(tmp_path / "no")])
    assert "--fortunes: expected a folder, got" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        more_pairs.main(["--out", str(tmp_path / "made"), "--records", str(tmp_path / "no")])
    assert "--records: expected a folder, got" in capsys.readouterr().err
