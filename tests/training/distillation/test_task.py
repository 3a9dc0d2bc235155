import numpy as np
import pytest

from tests.bundles import SENTENCES, SEVERAL, TEXTS, make_bundle, make_pair_bundle, make_tagger_bundle
from training.data.inputs import tokenize_parts
from training.distillation.task import (
    DistillationTargets,
    cached_predictions,
    count_predictions,
    write_predictions,
)
from training.io.examples import Example, Subset, TrainingSet, write_examples

PREDICTIONS = np.arange(15, dtype=np.float32).reshape(5, 3)
ORDER = np.array([2, 0, 1])


def test_targets_have_labels_and_teacher_outputs():
    targets = DistillationTargets(np.array([7, 8, 9], np.int32), PREDICTIONS, ORDER)
    assert targets.shape == (5, 5) and len(targets) == 5 and targets.dtype == np.float32
    assert targets[np.array([4, 1])].tolist() == [[0, 0, 14, 12, 13], [8, 1, 5, 3, 4]]
    assert targets[2:4].tolist() == [[9, 1, 8, 6, 7], [0, 0, 11, 9, 10]]
    assert targets[np.array([], int)].shape == (0, 5)


def test_rows_without_labels_have_the_filler():
    labels = np.array([[1, 4]], np.float32)
    targets = DistillationTargets(labels, PREDICTIONS[:2], ORDER, np.array([0, -1], np.float32))
    assert targets[:2].tolist() == [[1, 4, 1, 2, 0, 1], [0, -1, 0, 5, 3, 4]]


@pytest.mark.parametrize("axes", [(), (2,)], ids=["rows", "words"])
@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2, 1], np.int32), np.array([[0, 1], [1, 1], [1, 0]], np.int32)],
    ids=["one", "several"],
)
def test_batch_is_split_into_its_parts(labels, axes):
    targets = DistillationTargets(labels, PREDICTIONS[:3], ORDER)
    batch = targets[np.arange(3)]
    batch = np.stack([batch, batch], axis=1) if axes else batch
    found, labeled, predictions = targets.parts(batch)
    assert found.dtype == "int32"
    if axes:
        found, labeled, predictions = found[:, 1], labeled[:, 1], predictions[:, 1]
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_array_equal(labeled, [1, 1, 1])
    np.testing.assert_array_equal(predictions, PREDICTIONS[:3][:, ORDER])


FACTS = {"teacher": "a", "rows": "b"}


def tokenized(folder, bundle, rows):
    """Batches of rows in a different order from that in the file."""
    ordered = bundle.tagger is not None
    examples = write_examples(
        (Example(row, (), "", ordered=ordered) for row in rows), folder, bundle.preprocessor.num_texts
    )
    inputs = tokenize_parts(bundle.preprocessor, {"train": Subset(examples, np.arange(len(rows)))}, folder)
    order = np.arange(len(rows))[::-1]
    pairs = np.stack([order, order], axis=1) if bundle.preprocessor.num_texts == 2 else order
    shape = (99,) if ordered else pairs.shape
    training_set = TrainingSet(pairs, np.broadcast_to(np.float32(0), shape), np.ones(len(rows), np.float32))
    return inputs.source("train", training_set)


@pytest.mark.second
@pytest.mark.parametrize("kind", ["one", "several", "pairs", "classes"])
def test_predictions_are_those_of_the_bundle(tmp_path, kind):
    bundle = {
        "one": make_bundle,
        "several": lambda: make_bundle(SEVERAL, multi_label=True),
        "pairs": lambda: make_pair_bundle(("char", "wordpiece")),
        "classes": lambda: make_pair_bundle(labels=("x", "y"), target="classes"),
    }[kind]()
    rows = [(text,) for text in TEXTS]
    if bundle.preprocessor.num_texts == 2:
        rows = [(text, TEXTS[index - 1]) for index, text in enumerate(TEXTS)]
    source = tokenized(tmp_path, bundle, rows)
    assert count_predictions(source) == len(rows)
    write_predictions(bundle.model, source, tmp_path / "a.npy")
    predictions = np.load(tmp_path / "a.npy")
    given = [row[0] if len(row) == 1 else row for row in reversed(rows)]
    np.testing.assert_allclose(
        bundle.model.probabilities(predictions), bundle.probabilities(given), atol=1e-5
    )


def test_predictions_for_sentences_are_scores_of_words(tmp_path):
    bundle = make_tagger_bundle(characters=True)
    sentences = [sentence.split() for sentence in SENTENCES]
    source = tokenized(tmp_path, bundle, [("\n".join(words),) for words in sentences])
    write_predictions(bundle.model, source, tmp_path / "a.npy")
    predictions = np.load(tmp_path / "a.npy")
    assert len(predictions) == sum(map(len, sentences)) == count_predictions(source)
    np.testing.assert_allclose(predictions, bundle.tagger.scores(sentences[::-1]), atol=1e-4)


def test_speed_is_logged(tmp_path, capsys):
    bundle = make_bundle()
    write_predictions(
        bundle.model, tokenized(tmp_path, bundle, [(text,) for text in TEXTS]), tmp_path / "a.npy"
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"teacher: {len(TEXTS)} rows predicted in ") and line.endswith(" tokens/s")


class Writer:
    def __init__(self, value: float = 1.0):
        self.calls, self.value = 0, value

    def __call__(self, path):
        self.calls += 1
        with open(path, "wb") as file:
            np.save(file, np.full((2, 3), self.value, np.float32))


def test_same_key_finds_cached_predictions(tmp_path, capsys):
    writer = Writer()
    folder = tmp_path / "new" / "cache"
    for _ in range(2):
        assert cached_predictions(folder, FACTS, (2, 3), writer).tolist() == [[1] * 3] * 2
    assert writer.calls == 1 and len(list(folder.iterdir())) == 1
    assert "predictions for 2 rows found in" in capsys.readouterr().err


def test_different_key_computes_new_predictions(tmp_path):
    cached_predictions(tmp_path, FACTS, (2, 3), Writer())
    for facts in ({**FACTS, "teacher": "c"}, {**FACTS, "rows": "c"}):
        writer = Writer(2.0)
        assert cached_predictions(tmp_path, facts, (2, 3), writer)[0, 0] == 2 and writer.calls == 1
    assert cached_predictions(tmp_path, FACTS, (2, 3), Writer(3.0))[0, 0] == 1


@pytest.mark.parametrize("content", [b"", b"no table", None], ids=["empty", "other", "cut short"])
def test_damaged_cache_file_is_replaced(tmp_path, content):
    cached_predictions(tmp_path, FACTS, (2, 3), Writer())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    assert cached_predictions(tmp_path, FACTS, (2, 3), Writer(2.0))[0, 0] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_interrupted_prediction_leaves_no_file(tmp_path):
    def stopped(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_predictions(tmp_path, FACTS, (2, 3), stopped)
    assert not list(tmp_path.iterdir())
