import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from kmha.bundle import bundle as module
from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from tests.bundles import (
    EDGE_CASES,
    ONE,
    SEVERAL,
    TEXTS,
    make_bundle,
    masked_bundle,
    one_label_bundle,
    several_label_bundle,
    tagger_bundle,
)
from tests.command_runs import ROOT, clean_environment

FORBIDDEN_TRAINING = """
import json, sys
sys.modules["training"] = None
from kmha.quiet import import_tensorflow
import_tensorflow()
from kmha.bundle.bundle import Bundle
bundle = Bundle.load(sys.argv[1])
print(json.dumps(bundle.predict(json.loads(sys.argv[2]))))
"""


def test_every_import_path_of_the_bundle_works():
    from kmha import Bundle as of_the_package
    from kmha.bundle import Bundle as of_earlier_versions

    assert of_the_package is of_earlier_versions is Bundle


@pytest.fixture(params=[one_label_bundle, several_label_bundle], ids=["one label", "several labels"])
def bundle(request):
    return request.param()


# Saving and loading.


def test_a_loaded_bundle_gives_the_same_predictions(tmp_path, bundle):
    bundle.details["data"] = {"train": "ü"}
    bundle.save(tmp_path)
    loaded = Bundle.load(str(tmp_path))
    texts = [*TEXTS, *EDGE_CASES]
    np.testing.assert_array_equal(loaded.probabilities(texts), bundle.probabilities(texts))
    assert loaded.predict(texts) == bundle.predict(texts)
    assert (loaded.labels, loaded.thresholds) == (bundle.labels, bundle.thresholds)
    assert loaded.multi_label == bundle.multi_label
    assert loaded.details == bundle.details
    assert loaded.preprocessor.get_config() == bundle.preprocessor.get_config()


def test_saving_a_loaded_bundle_changes_only_the_archive(saved, tmp_path):
    before = json.loads((saved / "bundle.json").read_text("utf-8"))
    Bundle.load(saved).save(tmp_path / "again")
    after = json.loads((tmp_path / "again" / "bundle.json").read_text("utf-8"))
    # The archive contains timestamps.
    assert before["files"].pop("model.keras") and after["files"].pop("model.keras")
    assert after == before


def test_the_sample_of_training_texts_is_saved(saved, tmp_path):
    assert Bundle.load(saved).sample == list(TEXTS)
    odd = ["", "two\nlines\r\n", "\u2028 \0 \x85", 'a "quote" 油']
    bundle = Bundle.load(saved)
    dataclasses.replace(bundle, sample=odd).save(tmp_path / "odd")
    assert Bundle.load(tmp_path / "odd").sample == odd
    dataclasses.replace(bundle, sample=[]).save(tmp_path / "odd")
    assert Bundle.load(tmp_path / "odd").sample == []


@pytest.mark.parametrize("tokenization", ["char", "word"])
def test_every_tokenization_is_saved(tmp_path, tokenization):
    made = make_bundle(tokenization=tokenization)
    made.save(tmp_path)
    np.testing.assert_array_equal(Bundle.load(tmp_path).probabilities(TEXTS), made.probabilities(TEXTS))


@pytest.mark.second
def test_a_new_process_without_the_training_code_gives_the_same_predictions(saved):
    texts = [
        text.decode("utf-8", "replace") for text in (*EDGE_CASES[:13], *(text.encode() for text in TEXTS))
    ]
    result = subprocess.run(
        [sys.executable, "-c", FORBIDDEN_TRAINING, str(saved), json.dumps(texts)],
        env=clean_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for here, there in zip(one_label_bundle().predict(texts), json.loads(result.stdout), strict=True):
        assert here["label"] == there["label"]
        assert here["probabilities"] == pytest.approx(there["probabilities"], abs=1e-6)


# Predictions.


def test_predictions_of_one_label():
    made = one_label_bundle()
    for row, prediction in zip(made.probabilities(TEXTS), made.predict(TEXTS), strict=True):
        assert row.dtype == np.float32 and row.sum() == pytest.approx(1, abs=1e-6)
        assert list(prediction) == ["label", "probability", "probabilities"]
        assert prediction["label"] == ONE[row.argmax()] and prediction["probability"] == row.max()
        assert prediction["probabilities"] == dict(zip(ONE, row.tolist(), strict=True))
    assert json.loads(json.dumps(made.predict(TEXTS))) == made.predict(TEXTS)


def test_predicted_labels_reach_their_threshold():
    made = several_label_bundle()
    row = made.probabilities(TEXTS[:1])[0]
    exact = [float(p) for p in row]
    above = [float(np.nextafter(p, np.float32(2))) for p in row]
    thresholds = [exact[0], above[1], exact[2], above[3]]
    # From the same probabilities: another trace of the model may differ in the last bit.
    prediction = Bundle(made.model, made.preprocessor, made.labels, thresholds).prediction_from(row)
    assert list(prediction) == ["labels", "probabilities"]
    assert set(prediction["labels"]) == {SEVERAL[0], SEVERAL[2]}
    chosen = [prediction["probabilities"][label] for label in prediction["labels"]]
    assert chosen == sorted(chosen, reverse=True)


def test_a_threshold_is_compared_as_float32():
    made = several_label_bundle()
    prediction = Bundle(made.model, made.preprocessor, made.labels, [0.1] * 4).prediction_from(
        np.full(4, 0.1, np.float32)
    )
    assert prediction["labels"] == list(SEVERAL)


def test_several_labels_have_default_thresholds_of_one_half(tmp_path):
    made = make_bundle(SEVERAL, multi_label=True)
    made.save(tmp_path)
    for prediction in (*made.predict(TEXTS), *Bundle.load(tmp_path).predict(TEXTS)):
        assert set(prediction["labels"]) == {k for k, p in prediction["probabilities"].items() if p >= 0.5}


def test_no_texts_have_no_predictions(bundle):
    assert bundle.predict([]) == []
    assert bundle.probabilities([]).shape == (0, len(bundle.labels))
    assert list(bundle.predict_stream(iter([]))) == []


def test_the_order_of_texts_of_mixed_lengths_is_retained(bundle, monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 64)
    generator = np.random.default_rng(3)
    words = " ".join(TEXTS).split()
    texts = [" ".join(generator.choice(words, size=size)) for size in generator.integers(0, 40, size=60)]
    together = bundle.probabilities(texts)
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    np.testing.assert_allclose(bundle.probabilities(texts), together, atol=1e-5)
    alone = np.concatenate([bundle.probabilities([text]) for text in texts[:12]])
    np.testing.assert_allclose(alone, together[:12], atol=1e-5)
    assert len({row.tobytes() for row in together}) > 40


def test_any_bytes_have_predictions(bundle):
    probabilities = bundle.probabilities(EDGE_CASES)
    assert np.isfinite(probabilities).all() and (probabilities >= 0).all() and (probabilities <= 1).all()
    as_texts = [
        text.decode("utf-8", "replace") for text in EDGE_CASES if b"\xff" not in text and b"\xed" not in text
    ]
    as_bytes = [text for text in EDGE_CASES if b"\xff" not in text and b"\xed" not in text]
    found = bundle.probabilities([*as_texts, "a\ud800b"])
    np.testing.assert_allclose(found[:-1], bundle.probabilities(as_bytes), atol=1e-6)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("texts", ["one text", b"bytes", [None], ["a", 3], [["a"]]])
def test_invalid_lists_of_texts_are_rejected(texts):
    with pytest.raises(InputError, match="texts must be"):
        one_label_bundle().predict(texts)


def test_a_stream_is_predicted_in_order_and_read_lazily(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ROWS", 4)
    read = []

    def stream():
        for index in range(10):
            read.append(index)
            yield TEXTS[index % len(TEXTS)]

    made = one_label_bundle()
    predictions = made.predict_stream(stream())
    first = next(predictions)
    assert read == [0, 1, 2, 3]
    labels = [prediction["label"] for prediction in [first, *predictions]]
    assert labels == [
        prediction["label"] for prediction in made.predict([TEXTS[i % len(TEXTS)] for i in range(10)])
    ]


# Token ids.


def test_ids_have_the_probabilities_of_their_texts():
    made = one_label_bundle()
    features = {name: values.numpy() for name, values in made.preprocessor(TEXTS).items()}
    expected = made.probabilities(TEXTS)
    ids, mask = features["token_ids"], features["padding_mask"]
    np.testing.assert_allclose(made.probabilities_of_ids(ids), expected, atol=1e-5)
    np.testing.assert_allclose(made.probabilities_of_ids(ids.tolist(), mask), expected, atol=1e-5)
    np.testing.assert_allclose(made.probabilities_of_ids(ids.astype("uint8"), mask > 0), expected, atol=1e-5)


def test_ids_of_padding_have_probabilities():
    found = one_label_bundle().probabilities_of_ids(np.zeros([2, 5], "int64"))
    assert np.isfinite(found).all() and found.shape == (2, 3)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[2, -1, 3]], "got -1"),
        ([[2, 100_000, 3]], "got 100000"),
        ([[2**40]], f"got {2**40}"),
        ([[2] * 25], "at most 24 long, got length 25"),
        ([2, 3], "[B, T]"),
        ([[2.0, 3.0]], "integers"),
        ([[True]], "integers"),
    ],
)
def test_ids_that_would_fail_or_wrap_are_rejected(ids, words):
    with pytest.raises(InputError) as error:
        one_label_bundle().probabilities_of_ids(ids)
    assert words in str(error.value)


def test_a_mask_of_another_shape_is_rejected():
    with pytest.raises(InputError, match="padding_mask must have the shape"):
        one_label_bundle().probabilities_of_ids([[2, 3]], [[1]])


IN_A_FORK = """
import multiprocessing, os, sys
from kmha import Bundle

def predict(bundle):
    return bundle.predict(["bread"])[0]["label"]

def load(folder):
    return predict(Bundle.load(folder))

def caught(function, argument):
    try:
        return function(argument)
    except ValueError as error:
        return str(error)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(caught, (load, sys.argv[1])))
    bundle = Bundle.load(sys.argv[1])
    print(predict(bundle))
    for function, argument in ((predict, bundle), (load, sys.argv[1])):
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, caught(function, argument).encode())
            os._exit(0)
        print(os.read(reading, 999).decode())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(load, (sys.argv[1],)))
"""


@pytest.mark.second
def test_a_forked_child_is_an_error_and_does_not_wait_forever(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    (tmp_path / "script.py").write_text(IN_A_FORK)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=300)
    lines = result.stdout.splitlines()
    label = one_label_bundle().predict(["bread"])[0]["label"]
    assert [lines[0], lines[1], lines[4]] == [label] * 3, result.stderr
    for line in lines[2:4]:
        assert "got a fork of process" in line and 'multiprocessing.get_context("spawn")' in line


def test_invalid_lists_of_texts_raise_one_clear_error():
    for bundle in (one_label_bundle(), masked_bundle(), tagger_bundle()):
        for texts, got in ((None, "NoneType"), (5, "int"), ("ab", "one string"), (iter("ab"), "str_")):
            with pytest.raises(InputError, match=f"texts must be a list of strings, got {got}"):
                bundle.predict(texts)  # pyright: ignore
