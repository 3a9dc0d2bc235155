import pytest

from export.verification.layer_outputs import sequences
from export.verification.rows import LONG_BYTES, edge_case_rows, edge_case_texts
from tests.bundles import make_bundle, make_pair_bundle


@pytest.mark.parametrize("tokenization", ["wordpiece", "word", "char"])
def test_edge_cases_match_their_descriptions(tokenization):
    bundle = make_bundle(tokenization=tokenization)
    texts = edge_case_rows(bundle)
    assert texts == edge_case_texts(bundle.preprocessor)
    ids = {name: row[0] for name, row in zip(texts, sequences(bundle, list(texts.values())), strict=True)}
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
def test_the_longest_text_has_exactly_the_longest_length(tokenization):
    bundle = make_bundle(tokenization=tokenization)
    text = edge_case_texts(bundle.preprocessor)["longest length"]
    (tokens,) = bundle.preprocessor.tokenize([text]).to_list()
    assert len(tokens) == bundle.preprocessor.max_length - 2
    assert bundle.preprocessor.unknown_id not in tokens


def test_pairs_have_every_edge_case_on_each_side_and_on_both():
    bundle = make_pair_bundle(("char", "word"))
    rows = edge_case_rows(bundle)
    assert rows["char, empty on both sides"] == (b"", b"")
    plain = rows["char, a plain text on both sides"][0]
    assert rows["char, NUL as A"] == (b"\0", plain) and rows["char, NUL as B"] == (plain, b"\0")
    assert rows["char, NUL on both sides"] == (b"\0", b"\0")
    found = {text for pair in rows.values() for text in pair}
    for part in bundle.preprocessor.parts:
        assert found >= set(edge_case_texts(part).values())
    # Edge cases of both tokenizers occur once.
    assert len(rows) == len(set(rows.values())) and "word, NUL as A" not in rows
    assert "word, longest length as A" in rows
