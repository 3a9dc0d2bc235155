import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from export.batch.predictions import BATCH_BYTES, LONGEST_BYTES, batches_by_length, check_signature, predict
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import write_savedmodel
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, TEXTS, one_label_bundle, several_label_bundle

STRINGS = [*TEXTS, *(text.decode("utf-8", "replace") for text in EDGE_CASES), *TEXTS[::-1]]


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
def test_predictions_equal_those_of_the_bundle(make, tmp_path):
    bundle = make()
    found = predict(STRINGS, load_savedmodel(write_savedmodel(bundle, tmp_path)))
    expected = bundle.predict(STRINGS)
    assert [list(answer) for answer in found] == [list(answer) for answer in expected]
    for name in ("label", "labels"):
        assert [answer.get(name) for answer in found] == [answer.get(name) for answer in expected]
    for mine, reference in zip(found, expected, strict=True):
        assert list(mine["probabilities"]) == list(reference["probabilities"])
        assert mine["probabilities"] == pytest.approx(reference["probabilities"], abs=1e-5)
        assert mine.get("probability") == pytest.approx(reference.get("probability"), abs=1e-5)


def test_no_texts_give_no_predictions():
    assert predict([], lambda texts: pytest.fail("asked for nothing")) == []


@given(st.lists(st.integers(0, 3 * LONGEST_BYTES), max_size=200))
def test_batches_have_every_row_once_and_little_padding(lengths):
    groups = list(batches_by_length(lengths))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    flat = [lengths[row] for group in groups for row in group]
    assert flat == sorted(flat)
    for group in groups:
        longest = min(max(lengths[row] for row in group), LONGEST_BYTES)
        assert group and (len(group) == 1 or len(group) * longest <= BATCH_BYTES)


def test_another_signature_is_rejected():
    def probabilities_only(texts):
        return {"probabilities": tf.constant(np.ones((len(texts), 2)))}

    with pytest.raises(
        InputError, match="place/1: expected a SavedModel of texts that export.savedmodel wrote"
    ) as error:
        check_signature(probabilities_only, "place/1")
    assert "\n" not in str(error.value)
