"""Near copies of a text are in one group, and groups stay in one part of the data or in one fold."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import write_csv
from training.config.config import DataSection, EncoderSection, FitConfig, ResolvedConfig
from training.data import load as load_module
from training.data import near_copies
from training.data.load import Data, describe, load_data
from training.data.near_copies import count_near_copies, largest_group, near_copy_groups
from training.job.run import _load
from training.runs.run_folder import HELD_OUT, SOURCES, RunContext
from training.tasks.classify import ClassifyTask

LONG = "the harbor office closes at noon on the first day of every month"


def groups(*texts: str) -> list[int]:
    digests = np.array([int(hashlib.sha256(each.encode()).hexdigest()[:16], 16) for each in texts], np.uint64)
    sizes = np.array([len(each.encode()) for each in texts], np.int64)
    found = near_copy_groups(lambda rows: [texts[row] for row in rows], digests, sizes)
    assert set(found) <= set(digests)
    return np.unique(found, return_inverse=True)[1].tolist()


def sentence(seed: int, words: int = 12) -> str:
    return " ".join(f"w{word}" for word in np.random.default_rng(seed).integers(0, 10**6, words))


OTHERS = [sentence(seed) for seed in range(100)]


def words(count: int) -> str:
    """The first words of a text, and others up to 12 words."""
    return " ".join([*LONG.split()[:count], *sentence(7, 12 - count).split()])


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (LONG, LONG.replace("month", "week"), True),
        (LONG, LONG.replace("noon", "four"), False),  # no sequence of five words of the first half remains
        (LONG, "In short: " + LONG.upper() + "!", True),  # case and punctuation do not count
        (LONG, " ".join(LONG.split()[2:9]), True),  # a part of the text
        (LONG, " ".join(LONG.split()[:4]), False),  # less than five words
        (LONG, words(9), True),  # 5 of 8 sequences
        (LONG, words(8), False),  # 4 of 8
        (LONG, " ".join(sorted(LONG.split())), False),  # the same words in another order
        (LONG, sentence(7), False),
        ("港口办公室每月第一天中午关门", "公告：港口办公室每月第一天中午关门！", True),
        ("港口办公室每月第一天中午关门", "今天天气很好我们一起去公园散步", False),
        ("ｶﾀｶﾅﾃｷｽﾄ", "「ｶﾀｶﾅﾃｷｽﾄ」", True),
        ("हिन्दी भाषा में एक छोटा वाक्य", "हिन्दी भाषा में एक छोटा वाक्य है।", True),
        ("हिन्दी भाषा", "हिन्दी भाषा।", False),  # two words, not five
        ("สวัสดีครับทุกคน", "สวัสดีครับทุกคน!", True),
        ("", LONG, False),
        ("yes", "no", False),
    ],
)
def test_texts_with_most_words_in_common_are_in_one_group(first, second, together):
    others = [sentence(seed) for seed in range(100, 200)]
    found = groups(first, second, *others)
    assert (found[0] == found[1]) == together
    assert not set(found[:2]) & set(found[2:]) and len(set(found[2:])) == len(others)


def test_groups_are_transitive_and_do_not_depend_on_the_order():
    words = sentence(200, 24).split()
    chain = [" ".join(words[begin : begin + 12]) for begin in (0, 3, 6)]
    texts = [*chain, *OTHERS]
    assert len(set(groups(*texts)[:3])) == 1
    order = np.random.default_rng(0).permutation(len(texts))
    found = np.array(groups(*(texts[place] for place in order)))
    assert len(set(found[np.isin(order, [0, 1, 2])])) == 1
    assert len(set(found)) == len(OTHERS) + 1


def test_a_template_of_many_texts_is_no_group():
    template = [f"{LONG} number {place}" for place in range(60)]
    many = [sentence(seed) for seed in range(2000)]
    # 60 of 2,060 texts are copies, 60 of 160 share a template.
    assert len(set(groups(*template, *many)[:60])) == 1
    assert len(set(groups(*template, *OTHERS)[:60])) == 60


def test_texts_are_compared_in_chunks(monkeypatch):
    texts = [*OTHERS, LONG, *(f"{text} {text}" for text in OTHERS), LONG + " again"]
    expected = groups(*texts)
    assert expected[100] == expected[-1] and expected[:100] == expected[101:-1]
    monkeypatch.setattr(near_copies, "CHUNK_BYTES", 500)
    monkeypatch.setattr(near_copies, "CHUNK_SHINGLES", 20)
    assert groups(*texts) == expected


@pytest.mark.parametrize(("rows", "largest"), [(1, 2), (30, 3), (100, 10), (200, 10), (1000, 50)])
def test_the_largest_group_depends_on_the_rows(rows, largest):
    assert largest_group(rows) == largest
    copies = [f"{LONG} {place}" for place in range(largest + 1)]
    others = [sentence(seed) for seed in range(rows - largest)]
    assert len(set(groups(*copies[:-1], *others)[:largest])) == 1
    if rows > 2:
        assert len(set(groups(*copies, *others[:-1])[: largest + 1])) == largest + 1


def test_no_rows_have_no_groups():
    assert groups() == []


def load(folder: Path, texts: list[str], validation: Path | None = None) -> Data:
    table = [(text, "xy"[place % 2]) for place, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    path = write_csv(folder / "train.csv", table)
    config = FitConfig(data=DataSection(train=path, validation=validation, validation_fraction=0.2))
    return load_data(config, ClassifyTask(), folder / "examples")


def test_near_copies_are_held_out_together(tmp_path):
    texts = [f"{sentence(seed)} {end}" for seed in range(100) for end in ("first", "second", "third")]
    data = load(tmp_path, texts)
    held_out = data.validation.rows // 3
    assert len(held_out) == 60
    assert not set(held_out) & set(data.train.rows // 3)
    assert data.summary.near_copies == 300
    assert any("300 training rows are near copies of others" in line for line in describe(data))


def test_near_copies_of_rows_of_a_validation_file_are_trained_on(tmp_path):
    texts = [f"{sentence(seed)} first" for seed in range(50)]
    rows = [(f"{sentence(seed)} second", "xy"[seed % 2]) for seed in range(50)]
    data = load(tmp_path, texts, validation=write_csv(tmp_path / "dev.csv", rows))
    assert (len(data.train.rows), len(data.validation.rows), data.summary.near_copies) == (50, 50, 0)


def test_few_near_copies_may_be_held_out_alone(tmp_path):
    texts = [sentence(seed) for seed in range(200)]
    more = [f"{text} again" for text in texts]
    few = load(tmp_path / "few", [*texts, *more[:10]])
    assert few.summary.near_copies == 0
    np.testing.assert_array_equal(few.groups, few.train.examples.digests[few.train.rows])
    assert load(tmp_path / "many", [*texts, *more[:12]]).summary.near_copies == 24


def test_only_exact_copies_of_large_data_are_found(tmp_path, monkeypatch):
    texts = [f"{sentence(seed)} {end}" for seed in range(50) for end in ("first", "second")]
    monkeypatch.setattr(load_module, "MAX_BYTES", 1000)
    data = load(tmp_path, texts)
    assert data.summary.near_copies == 0
    assert set(data.validation.rows // 2) & set(data.train.rows // 2)


def test_near_copies_are_counted_without_exact_copies():
    found = np.array([1, 1, 1, 4, 4, 6], np.uint64)
    digests = np.array([1, 2, 1, 4, 4, 6], np.uint64)
    assert count_near_copies(found, digests) == 3


def load_few(folder: Path, texts: list[str]) -> Data:
    table = [(text, "xy"[place % 2]) for place, text in enumerate(texts)]
    path = write_csv(folder / "few.csv", table)
    config = FitConfig(data=DataSection(train=path), encoder=EncoderSection(pretrained="minilm"))
    return load_data(config, ClassifyTask(), folder / "few")


def test_near_copies_of_few_labels_are_in_one_fold(tmp_path):
    texts = [f"{sentence(seed)} {end}" for seed in range(20) for end in ("first", "second")]
    data = load_few(tmp_path, texts)
    assert data.is_cross_validated and data.summary.near_copies == 40
    assert len(np.unique(data.groups)) == 20
    np.testing.assert_array_equal(data.groups[::2], data.groups[1::2])


def test_few_labels_whose_texts_are_all_near_copies_are_cross_validated_nevertheless(tmp_path):
    # Texts of x and y in turns.
    texts = [f"{sentence(place % 2)} {place}" for place in range(4)]
    data = load_few(tmp_path, texts)
    assert data.summary.near_copies == 0
    assert len(np.unique(data.groups)) == 4


def test_a_run_with_other_held_out_rows_is_not_resumed(tmp_path):
    texts = [f"{sentence(seed)} {end}" for seed in range(100) for end in ("first", "second")]
    path = write_csv(tmp_path / "train.csv", [(text, "xy"[place % 2]) for place, text in enumerate(texts)])

    def begin(resume: bool) -> None:
        config = ResolvedConfig(data=DataSection(train=path), resume=resume)
        _load(RunContext(config, tmp_path, tmp_path / "scratch"), None)

    begin(resume=False)
    begin(resume=True)
    recorded = json.loads((tmp_path / SOURCES).read_text("utf-8"))
    # Earlier versions did not record the rows and held out different ones.
    del recorded[HELD_OUT]
    (tmp_path / SOURCES).write_text(json.dumps(recorded), "utf-8")
    with pytest.raises(
        InputError, match="--resume: expected the validation rows of the interrupted run, got o"
    ):
        begin(resume=True)
