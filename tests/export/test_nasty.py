import pytest

from export.layer_outputs import sequences
from export.nasty import LONG_BYTES, nasty_texts
from tests.bundles import make_bundle


@pytest.mark.parametrize("tokenization", ["wordpiece", "word", "char"])
def test_they_are_what_they_are_called(tokenization):
    bundle = make_bundle(tokenization=tokenization)
    texts = nasty_texts(bundle)
    ids = dict(zip(texts, sequences(bundle, list(texts.values())), strict=True))
    unknown, longest = bundle.preprocessor.unknown_id, bundle.preprocessor.max_length
    assert set(ids["only unknown words"][1:-1]) == {unknown}
    assert ids["empty"] == ids["white space"] and len(ids["empty"]) == 2
    assert LONG_BYTES - 100 < len(texts["100 kB"]) <= LONG_BYTES
    assert len(ids["longest length"]) == len(ids["one past the longest"]) == longest
    for name, text in texts.items():
        if "UTF-8" in name or name.startswith("half"):
            with pytest.raises(UnicodeDecodeError):
                text.decode()


@pytest.mark.parametrize("tokenization", ["wordpiece", "word", "char"])
def test_the_longest_length_is_met_exactly_with_known_tokens(tokenization):
    bundle = make_bundle(tokenization=tokenization)
    text = nasty_texts(bundle)["longest length"]
    (uncut,) = bundle.preprocessor.tokenize([text]).to_list()
    assert len(uncut) == bundle.preprocessor.max_length - 2
    assert bundle.preprocessor.unknown_id not in uncut
