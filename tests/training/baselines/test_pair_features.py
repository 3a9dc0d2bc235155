import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import training.baselines.pair_features as pair_features
from training.baselines.bm25 import word_terms
from training.baselines.pair_features import FEATURE_NAMES, PairFeatures

_TEXTS = ["Red car, red house", "the Blue car costs 1,500 euros", "a red house", "Anna paid 20 or 30"]
_PAIR = st.tuples(*[st.text(alphabet="ab1A c.", max_size=14)] * 2)
_FITTED = PairFeatures.fit(_TEXTS)


def features(a: str, b: str, fitted: PairFeatures = _FITTED) -> dict[str, float]:
    row = fitted.matrix([a], [b])
    assert row.shape == (1, len(FEATURE_NAMES))
    return dict(zip(FEATURE_NAMES, row[0].tolist(), strict=True))


def grams(text: str, order: int) -> set[tuple[str, ...]]:
    words = word_terms(text)
    return set(zip(*(words[step:] for step in range(order)), strict=False))


def reference_shares(a: str, b: str, order: int, weigh) -> list[float]:
    in_a, in_b = grams(a, order), grams(b, order)
    both, *wholes = (sum(map(weigh, terms)) for terms in (in_a & in_b, in_a | in_b, in_a, in_b))
    return [both / whole if whole else 0.0 for whole in wholes]


def test_overlap_by_hand():
    found = features("Red car, old house", "red CAR old")
    # {red, car, ",", old, house} and {red, car, old}; two-grams {red car} of four and of two.
    assert found["1-grams in both, of all"] == pytest.approx(3 / 5)
    assert found["1-grams in both, of a"] == pytest.approx(3 / 5)
    assert found["1-grams in both, of b"] == pytest.approx(1.0)
    assert found["2-grams in both, of all"] == pytest.approx(1 / 5)
    assert found["2-grams in both, of a"] == pytest.approx(1 / 4)
    assert found["2-grams in both, of b"] == pytest.approx(1 / 2)
    assert found["3-grams in both, of all"] == 0.0
    assert found["log length ratio"] == pytest.approx(np.log(6 / 4))
    assert found["log length difference"] == pytest.approx(np.log(3))
    assert found["equal texts"] == 0.0


def test_rare_terms_have_higher_weights():
    # Of four texts two hold "red", one "blue", none "green".
    red, blue, green = 1 + np.log(5 / 3), 1 + np.log(5 / 2), 1 + np.log(5)
    assert features("red blue", "red")["1-grams in both, of a, weighted"] == pytest.approx(red / (red + blue))
    assert features("red green", "green")["1-grams in both, of a, weighted"] == pytest.approx(
        green / (red + green)
    )


def test_numbers_and_capitalized_words():
    found = features("Anna paid 1,500 of 20", "Bert and Anna paid 1,500, 7 and 8.5")
    assert found["log numbers in both"] == pytest.approx(np.log(2))
    assert found["log numbers in a alone"] == pytest.approx(np.log(2))
    assert found["log numbers in b alone"] == pytest.approx(np.log(3))
    assert found["log capitalized words in both"] == pytest.approx(np.log(2))
    assert found["log capitalized words in a alone"] == 0.0
    assert found["log capitalized words in b alone"] == pytest.approx(np.log(2))


def test_cosines_and_bm25_equal_their_modules():
    a, b = "a red car", "the red house"
    found = features(a, b)
    for name, vectorizer in (("words", _FITTED.words), ("characters", _FITTED.pieces)):
        left, right = vectorizer.transform([a, b]).toarray()
        assert found[f"tf-idf cosine of {name}"] == pytest.approx(left @ right)
    assert found["bm25 of b for a"] == pytest.approx(_FITTED.bm25.scores([a], [b])[0])
    assert found["bm25 of a for b"] == pytest.approx(_FITTED.bm25.scores([b], [a])[0])


@settings(max_examples=80, deadline=None)
@given(st.lists(_PAIR, min_size=1, max_size=5), st.integers(1, 5))
def test_overlap_equals_a_reference_with_sets(pairs, at_once):
    a, b = map(list, zip(*pairs, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_features, "_ROWS_AT_ONCE", at_once)
        found = _FITTED.matrix(a, b)

    def weigh(gram):
        return 1 + np.log(5 / (1 + sum(gram in grams(text, len(gram)) for text in _TEXTS)))

    expected = [
        [share for order in (1, 2, 3) for share in reference_shares(a, b, order, lambda _: 1.0)]
        + [share for order in (1, 2) for share in reference_shares(a, b, order, weigh)]
        for a, b in pairs
    ]
    np.testing.assert_allclose(found[:, :15], expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(_PAIR)
def test_swapped_texts_swap_the_features(pair):
    forth, back = features(*pair), features(*pair[::-1])
    for name, value in forth.items():
        if name == "log length ratio":
            assert back[name] == pytest.approx(-value)
            continue
        if name.startswith("bm25"):
            other = {"bm25 of b for a": "bm25 of a for b", "bm25 of a for b": "bm25 of b for a"}[name]
        elif "cosine" in name or "both, of all" in name or "difference" in name or "equal" in name:
            other = name
        else:
            swapped = {"of a": "of b", "of b": "of a", "in a alone": "in b alone", "in b alone": "in a alone"}
            other = next((name.replace(old, new) for old, new in swapped.items() if old in name), name)
        assert back[other] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("text", ["", " \n ", "?!", "\x00", "red car", "日本", "x" * 5000])
def test_blank_and_equal_texts_give_finite_numbers(text):
    alone, same = features(text, "red car"), features(text, text)
    assert np.isfinite([*alone.values(), *same.values()]).all()
    assert same["equal texts"] == 1.0
    assert same["1-grams in both, of all"] == (1.0 if word_terms(text) else 0.0)


def test_scripts_without_spaces_use_characters():
    fitted = PairFeatures.fit(["小明打碎了一个杯子", "树上飞来一只鸟"])
    assert fitted.characters
    found = features("打碎杯子", "杯子打碎", fitted)
    assert found["1-grams in both, of all"] == 1.0
    assert found["2-grams in both, of all"] == pytest.approx(2 / 4)
    assert found["3-grams in both, of all"] == 0.0
    assert features("打 碎", "打碎", fitted)["2-grams in both, of all"] == 1.0


def test_no_rows_and_unequal_lengths():
    assert _FITTED.matrix([], []).shape == (0, len(FEATURE_NAMES))
    with pytest.raises(ValueError, match="got 1 and 2"):
        _FITTED.matrix(["red"], ["red", "car"])


def test_one_short_text_is_enough_to_fit():
    assert np.isfinite(PairFeatures.fit(["a"]).matrix(["a", "b c d"], ["a", "d c b"])).all()
