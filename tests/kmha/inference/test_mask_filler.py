import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from kmha.inference import mask_filler as filling
from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.bundles import EDGE_CASES, masked_bundle


def reference(text: str) -> np.ndarray:
    """Probabilities of the only [MASK] of a short text, computed by hand, float32 [V]."""
    bundle = masked_bundle()
    part, vocabulary = bundle.preprocessor, bundle.preprocessor.vocabulary
    before, after = (part.tokenize([each]).to_list()[0] for each in text.split("[MASK]"))
    ids = [part.start_id, *before, vocabulary.id_of("[MASK]"), *after, part.end_id]
    features = {
        "token_ids": np.array([ids], np.int32),
        "padding_mask": np.ones((1, len(ids)), np.int32),
        "mask_positions": np.array([[1 + len(before)]], np.int32),
    }
    return np.asarray(bundle.model.probabilities(bundle.model(features)))[0, 0]


def test_the_most_probable_tokens_are_those_of_the_model():
    bundle, text = masked_bundle(), "the old [MASK] at seven"
    (prediction,) = bundle.predict([text])
    (mask,) = prediction["masks"]
    expected = reference(text)
    tokens = bundle.preprocessor.vocabulary.tokens
    ranked = [tokens[i] for i in np.argsort(-expected, kind="stable") if i < len(tokens)]
    assert list(mask["probabilities"]) == [each for each in ranked if each not in SPECIAL_TOKENS][:5]
    assert mask["token"] == next(iter(mask["probabilities"]))
    for token, probability in mask["probabilities"].items():
        assert probability == pytest.approx(float(expected[tokens.index(token)]), abs=1e-6)


def test_texts_of_a_batch_are_independent(monkeypatch):
    filler = masked_bundle().filler
    texts = ["[MASK]", "no mask", "old [MASK] and [MASK] bread", "bread " * 60 + "[MASK] seven", "a [MASK]"]
    together = filler.predict(texts, 3)
    assert [len(prediction["masks"]) for prediction in together] == [1, 0, 2, 1, 1]
    assert together[1] == {"masks": [], "note": "no [MASK] in this text"}
    monkeypatch.setattr(filling, "BATCH_TOKENS", 1)
    for text, prediction in zip(texts, together, strict=True):
        (alone,) = filler.predict([text], 3)
        for one, other in zip(alone["masks"], prediction["masks"], strict=True):
            assert list(one["probabilities"]) == list(other["probabilities"])
            assert list(one["probabilities"].values()) == pytest.approx(
                list(other["probabilities"].values()), abs=1e-5
            )


def test_every_mask_of_a_long_text_has_a_prediction():
    capacity = masked_bundle().preprocessor.max_length - 2
    text = " ".join(["[MASK]"] * (2 * capacity + 3))
    (prediction,) = masked_bundle().filler.predict([text], 1)
    assert len(prediction["masks"]) == 2 * capacity + 3


def test_any_typed_text_is_tokenized():
    texts = [text[:2000] + b"[MASK]" + text[-2000:] for text in EDGE_CASES]
    for prediction in masked_bundle().filler.predict(texts, 2):
        (mask,) = prediction["masks"]
        assert len(mask["probabilities"]) == 2
        assert not set(mask["probabilities"]) & set(SPECIAL_TOKENS)


def test_all_tokens_can_be_shown():
    (prediction,) = masked_bundle().filler.predict(["[MASK]"], 0)
    tokens = masked_bundle().preprocessor.vocabulary.tokens
    assert set(prediction["masks"][0]["probabilities"]) == set(tokens) - set(SPECIAL_TOKENS)
    (prediction,) = masked_bundle().filler.predict(["[MASK]"], 10**6)
    assert len(prediction["masks"][0]["probabilities"]) == len(tokens) - len(SPECIAL_TOKENS)


def test_a_saved_bundle_is_loaded(tmp_path):
    masked_bundle().save(tmp_path / "run")
    again = Bundle.load(tmp_path / "run")
    assert (again.task, again.labels, again.thresholds) == ("masked-lm", [], None)
    assert again.predict(["old [MASK]"]) == masked_bundle().predict(["old [MASK]"])


@pytest.mark.parametrize("texts", ["one text", [1], [["a", "b"]]])
def test_invalid_texts_are_rejected(texts):
    with pytest.raises(InputError, match="texts must be"):
        masked_bundle().predict(texts)


def test_probabilities_of_labels_are_rejected():
    with pytest.raises(InputError, match="expected a classifier or a matcher, got a masked language model"):
        masked_bundle().probabilities(["a"])


def test_thresholds_are_rejected():
    bundle = masked_bundle()
    with pytest.raises(InputError, match="got one of a masked language model"):
        Bundle(bundle.model, bundle.preprocessor, [], [0.5])
    with pytest.raises(InputError, match="expected as many labels as the model with 0 outputs"):
        Bundle(bundle.model, bundle.preprocessor, ["a"])
