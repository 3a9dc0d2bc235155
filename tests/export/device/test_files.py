import json

import pytest

from export.device.files import tokenizer_values, write_tokenizer
from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.bundles import make_bundle, one_label_bundle, several_label_bundle


def test_the_file_has_all_values(tmp_path):
    bundle = several_label_bundle()
    write_tokenizer(bundle, tmp_path / "t.json")
    values = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert values == json.loads(json.dumps(tokenizer_values(bundle)))
    assert values["vocabulary"] == list(bundle.preprocessor.vocabulary.tokens)
    assert values["labels"] == bundle.labels and values["thresholds"] == bundle.thresholds
    assert (values["format"], values["max_length"], values["max_bytes"]) == (1, 24, 24 * 64)
    assert values["special_ids"] == {"padding": 0, "unknown": 1, "start": 2, "end": 3, "mask": 4}
    # Small enough to send to a page with every model.
    assert (tmp_path / "t.json").stat().st_size < 100_000


def test_the_same_bundle_gives_the_same_bytes(tmp_path):
    for name in "ab":
        write_tokenizer(one_label_bundle(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("token", "lower_case", "is_refused"),
    [("new york", True, True), ("\u3000", False, True), ("\u3000", True, False), ("a\x85b", True, False)],
)
def test_white_space_in_a_token_is_rejected(token, lower_case, is_refused):
    bundle = make_bundle()
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "bread", token])
    bundle.preprocessor = Preprocessor(vocabulary, "wordpiece", lower_case, 24)
    if not is_refused:
        assert tokenizer_values(bundle)["vocabulary"][-1] == token
        return
    with pytest.raises(InputError, match="vocabulary:7: expected tokens without white space"):
        tokenizer_values(bundle)
    bundle.preprocessor = Preprocessor(vocabulary, "char", lower_case, 24)
    assert tokenizer_values(bundle)["vocabulary"][-1] == token
