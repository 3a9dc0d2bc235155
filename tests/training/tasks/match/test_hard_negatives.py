import functools
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.inference.vectors import TextVectors
from tests.bundles import TEXTS, make_pair_bundle, one_label_bundle, pair_bundle
from training.data.types import Subset
from training.io.example_store import Example, write_examples
from training.tasks.match.hard_negatives import with_hard_negatives
from training.tasks.match.task import MatchTask

PAIRS = [
    ("who repairs the old bridge", "the sailor repairs the old bridge", "1"),
    ("who repairs the old bridge", "bread", "0"),
    ("ferry in winter", "in winter no ferry leaves", "1"),
    ("what is red", "the old bridge is red", "1"),
    ("unanswered question", "a winter market", "0"),
]
TASK = MatchTask(target="binary", loss="cross-entropy", best_by="accuracy", negatives=1)


@pytest.fixture
def part(tmp_path) -> Subset:
    examples = write_examples(
        (Example((a, b), (label,), f"a:{number}") for number, (a, b, label) in enumerate(PAIRS)),
        tmp_path / "rows",
        num_texts=2,
    )
    return Subset(examples, np.arange(len(PAIRS)))


def mined(part: Subset, how: str, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rows = np.stack([part.rows, part.rows], axis=1).astype(np.int64)
    return with_hard_negatives(part, rows, TASK.targets(part, ["score"]), how, count, seed=0)


def added(part: Subset, how: str, count: int = 1) -> list[tuple[str, str]]:
    rows, targets = mined(part, how, count)
    assert rows[: len(PAIRS)].tolist() == [[row, row] for row in part.rows]
    assert rows.dtype == np.int64 and targets.dtype == np.float32 and len(rows) == len(targets)
    assert not targets[len(PAIRS) :, 0].any()
    a, b = part.examples.read_texts(rows[:, 0], 0), part.examples.read_texts(rows[:, 1], 1)
    # What was found belongs to the query it was found for.
    queries = dict(zip(a, TASK.targets(part, ["score"])[:, 1], strict=False))
    assert [queries[text] for text in a] == targets[:, 1].tolist()
    return list(zip(a, b, strict=True))[len(PAIRS) :]


def test_bm25_finds_what_looks_like_an_answer(part, capsys):
    found = added(part, "bm25")
    # Nothing looks like an answer to the third query; it gets some wrong one all the same.
    assert found[:2] == [
        ("who repairs the old bridge", "the old bridge is red"),
        ("ferry in winter", "a winter market"),
    ]
    assert found[2][0] == "what is red" and found[2] != PAIRS[3][:2]
    assert capsys.readouterr().err.startswith("3 hard negatives added for 3 queries")


def test_no_pair_that_was_given_is_found_once_more(part):
    found = added(part, "bm25", count=9)
    assert not set(found) & {(a, b) for a, b, _ in PAIRS}
    assert len(found) == len(set(found)) == 3 + 4 + 4


def test_only_texts_of_the_part_are_used(part):
    some = Subset(part.examples, part.rows[:4])
    rows, _ = with_hard_negatives(
        some, np.stack([some.rows] * 2, 1), TASK.targets(some, ["score"]), "bm25", 9, seed=0
    )
    assert rows.max() == 3


@pytest.fixture(scope="module")
def bi_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bi") / "run"
    make_pair_bundle(form="bi", share_weights=False).save(folder)
    return folder


def test_a_run_of_the_bi_form_finds_the_nearest_vectors(part, bi_folder):
    bundle = make_pair_bundle(form="bi", share_weights=False)
    found = added(part, str(bi_folder))
    assert [query for query, _ in found] == [PAIRS[0][0], PAIRS[2][0], PAIRS[3][0]]
    candidates = [b for _, b, _ in PAIRS]
    cosines = TextVectors(bundle, "a")([query for query, _ in found]) @ TextVectors(bundle, "b")(candidates).T
    given = {(a, b) for a, b, _ in PAIRS}
    for (query, candidate), row in zip(found, cosines, strict=True):
        others = [text for text in candidates if (query, text) not in given]
        assert candidate == max(others, key=lambda text: row[candidates.index(text)])


def test_each_text_is_read_once(part, bi_folder, monkeypatch):
    read: list[int] = []
    call = TextVectors.__call__
    monkeypatch.setattr(
        TextVectors, "__call__", lambda self, texts: (read.append(len(texts)), call(self, texts))[1]
    )
    added(part, str(bi_folder))
    assert read == [4, 5]


@pytest.mark.parametrize(
    ("bundle", "given"),
    [
        (pair_bundle, "a matcher of the cross form"),
        (functools.partial(make_pair_bundle, form="joint"), "a matcher of the joint form"),
        (one_label_bundle, "a classifier"),
    ],
    ids=["cross", "joint", "classifier"],
)
def test_a_run_without_vectors_is_refused(part, tmp_path, bundle, given):
    run = tmp_path / "run"
    bundle().save(run)
    with pytest.raises(InputError) as caught:
        mined(part, str(run))
    assert str(caught.value) == (
        f"--match.hard-negatives {run}: expected a matcher of the bi form, whose vectors say what is like what,"
        f" got {given}"
    )


def test_a_run_that_is_none_is_refused_by_its_flag(part, tmp_path):
    with pytest.raises(InputError, match="--match.hard-negatives .*: expected a run folder with bundle.json"):
        mined(part, str(tmp_path / "none"))


@pytest.mark.parametrize("loss", ["cross-entropy", "triplet", "listwise", "contrastive"])
def test_hard_negatives_are_part_of_the_lesson(part, loss):
    from dataclasses import replace

    task = replace(TASK, hard_negatives="bm25", loss=loss, form="bi", negatives=2)
    training_set = task.training_set(part, ["score"], seed=0)
    # Three queries get two each; the rows of the one without a right answer teach only where each row stands alone.
    assert len(training_set.rows) == (5 if loss == "cross-entropy" else 4) + 6
    assert len(training_set.targets) == len(training_set.weights) == len(training_set.rows)
    assert training_set.targets[:, 0].sum() == 3
    if loss in ("triplet", "listwise"):
        assert training_set.lists is not None and len(set(training_set.lists)) == 3


def test_texts_of_nothing_are_no_trouble(tmp_path):
    rows = [
        Example((text, other), ("1",), "a") for text, other in zip(TEXTS, ["", " ", *TEXTS[2:]], strict=True)
    ]
    part = Subset(write_examples(rows, tmp_path, num_texts=2), np.arange(len(TEXTS)))
    training_set = MatchTask(target="binary", loss="cross-entropy", hard_negatives="bm25").training_set(
        part, ["score"], 0
    )
    assert len(training_set.rows) > len(TEXTS)
