import numpy as np
import pytest

from export.tflite.__main__ import main
from export.tflite.string_model import convert_text, load_text_tflite
from kmha.errors import InputError
from kmha.text.vocabulary import Tokenization
from tests.bundles import EDGE_CASES, TEXTS, make_bundle, one_label_bundle
from tests.command_runs import call

SHORT = [text for text in EDGE_CASES if len(text) < 100]


@pytest.mark.second
@pytest.mark.parametrize("tokenization", ["wordpiece", "word"])
def test_strings_are_predicted_as_by_the_run(tokenization: Tokenization):
    bundle = make_bundle(tokenization=tokenization)
    predict = load_text_tflite(convert_text(bundle, bundle.preprocessor.max_length, "none"))
    texts = [*TEXTS, *SHORT]
    np.testing.assert_allclose(predict(texts), bundle.probabilities(texts), atol=1e-5)


def test_long_texts_are_truncated_between_the_special_tokens():
    bundle = one_label_bundle()
    predict = load_text_tflite(convert_text(bundle, 8, "none"))
    text = "old bread " * 30
    ids = bundle.preprocessor.add_special_tokens(bundle.preprocessor.tokenize([text])).to_tensor().numpy()
    truncated = np.concatenate([ids[:, :7], ids[:, -1:]], axis=1)
    np.testing.assert_allclose(predict([text]), bundle.probabilities_of_ids(truncated), atol=1e-5)


@pytest.mark.second
def test_the_command_writes_the_string_model_next_to_the_model(tmp_path):
    run, out = tmp_path / "run", tmp_path / "news.tflite"
    one_label_bundle().save(run)
    outcome = call(main, run, out, "--with-tokenizer", "--quantize", "dynamic")
    assert (outcome.status, outcome.out) == (0, f"{out}\n"), outcome.err
    predictions = load_text_tflite((tmp_path / "news.text.tflite").read_bytes())(TEXTS)
    np.testing.assert_allclose(predictions, one_label_bundle().probabilities(TEXTS), atol=0.1)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused = call(main, run, tmp_path / "other.tflite", "--with-tokenizer", "--quantize", "int8")
    assert refused.status == 2 and "got int8" in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_character_runs_are_rejected():
    with pytest.raises(InputError, match="got one of characters"):
        convert_text(make_bundle(tokenization="char"), 16, "none")
