import numpy as np
import pytest

from kmha.errors import InputError
from training.baselines.text_linear import fit_baseline, sample_rows, uses_characters
from training.metrics.confusion import f1, indicator_counts

_ENGLISH = ["the film was good", "a good, warm story", "the film was bad", "bad and cold story"] * 4
_CHINESE = ["这本书很好看", "房间干净,很好", "这本书太差了", "房间很脏,太差"] * 4
_IDS = np.array([1, 1, 0, 0] * 4)


@pytest.mark.parametrize(
    ("texts", "unit", "unseen"),
    [
        (_ENGLISH, "word", ["Good acting", "so BAD"]),
        (_CHINESE, "character", ["服务很好", "服务太差"]),
    ],
)
def test_sixteen_rows_are_memorized(texts, unit, unseen):
    baseline = fit_baseline(texts, _IDS, multi_label=False, seed=0)
    assert baseline.predict(texts).tolist() == _IDS.tolist()
    assert baseline.predict(unseen).tolist() == [1, 0]
    assert f"{unit} 1-2-grams" in baseline.description
    assert "16 training rows" in baseline.description and "\n" not in baseline.description


def test_label_ids_may_have_gaps():
    ids = np.array([7, 2, 4, 4] * 4)
    baseline = fit_baseline(_ENGLISH, ids, multi_label=False, seed=0)
    predictions = baseline.predict(_ENGLISH)
    assert predictions.dtype == np.int64 and predictions.tolist() == ids.tolist()


def test_single_label_is_always_predicted():
    baseline = fit_baseline(_ENGLISH, np.full(16, 3), multi_label=False, seed=0)
    assert baseline.predict(["anything", ""]).tolist() == [3, 3]


@pytest.mark.parametrize("with_validation", [True, False])
def test_several_labels(with_validation):
    texts = [f"{left} {right}" for left in ("red", "green", "red hot") for right in ("car", "house")] * 8
    # Columns: red, car, on every row, on no row.
    targets = np.array([["red" in text, "car" in text, True, False] for text in texts], np.int8)
    validation = (texts[:12], targets[:12]) if with_validation else None
    baseline = fit_baseline(texts, targets, multi_label=True, seed=0, validation=validation)
    predictions = baseline.predict(texts)
    assert predictions.dtype == np.int8
    assert predictions.tolist() == targets.tolist()
    assert baseline.thresholds is not None and baseline.thresholds.shape == (4,)


def test_thresholds_come_from_the_validation_rows():
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(list("abcdefgh"), 4)) for _ in range(200)]
    targets = np.array([["a" in text.split() and "b" in text.split()] for text in texts], np.int8)
    everywhere = fit_baseline(
        texts, targets, multi_label=True, seed=0, validation=(texts, np.ones((200, 1), np.int8))
    )
    assert everywhere.predict(texts).all()
    honest = fit_baseline(texts, targets, multi_label=True, seed=0, validation=(texts, targets))
    assert 0 < honest.predict(texts).sum() < 200


def _rare_labels():
    """120 rows of three of 40 words, each of which has a label, among twelve frequent words."""
    random = np.random.default_rng(0)
    names, common = [f"name{number}" for number in range(40)], [f"word{number}" for number in range(12)]
    chosen = [random.choice(40, 3, replace=False) for _ in range(120)]
    texts = [
        " ".join(random.permutation([*(names[number] for number in row), *random.choice(common, 15)]))
        for row in chosen
    ]
    return texts, np.array([np.isin(np.arange(40), row) for row in chosen], np.int8)


def test_validation_rows_choose_ngrams_and_penalty():
    texts, targets = _rare_labels()
    parts = [(texts[place::3], targets[place::3]) for place in range(3)]
    fitted = fit_baseline(*parts[0], multi_label=True, seed=0, validation=parts[1])
    assert "word 1-grams + LinearSVC (C 10 per label" in fitted.description
    counts = indicator_counts(parts[2][1], fitted.predict(parts[2][0]))
    assert f1(counts).mean() > 0.9 and 0.8 < fitted.validation_score <= 1


@pytest.mark.parametrize("join", [True, False])
def test_chosen_model_is_trained_on_validation_rows_too(join):
    validation = ["zebra story", "zebra film"], np.array([1, 0])
    options = {"multi_label": False, "seed": 0, "join_validation": join}
    baseline = fit_baseline(_ENGLISH, _IDS, validation=validation, **options)
    assert ("zebra" in baseline.vectorizer.vocabulary_) is join
    assert ("16 training rows and 2 validation rows" in baseline.description) is join


def test_same_seed_gives_the_same_baseline():
    first, second = (fit_baseline(_ENGLISH, _IDS, multi_label=False, seed=5, max_rows=8) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)


def test_rows_over_the_limit_are_sampled_and_described():
    texts = [f"word{row}" for row in range(50)]
    baseline = fit_baseline(texts, np.arange(50) % 2, multi_label=False, seed=0, max_rows=20)
    assert len(baseline.vectorizer.vocabulary_) == 20
    assert "a random 20 of 50 training rows" in baseline.description


def test_sample_rows_equals_the_sample_of_fit_baseline():
    texts, targets = [f"word{row} all" for row in range(50)], np.arange(50) % 2
    whole = fit_baseline(texts, targets, multi_label=False, seed=3, max_rows=20)
    rows = sample_rows(50, seed=3, most=20)
    given = [texts[row] for row in rows]
    drawn = fit_baseline(given, targets[rows], multi_label=False, seed=3, max_rows=20, of_rows=50)
    assert drawn.description == whole.description and np.array_equal(drawn.weights, whole.weights)
    assert drawn.vectorizer.vocabulary_ == whole.vectorizer.vocabulary_
    assert sample_rows(20, seed=3, most=20).tolist() == list(range(20))


def test_many_rows_without_a_common_word(monkeypatch):
    monkeypatch.setattr("training.baselines.text_linear._ROWS_WITH_RARE_TERMS", 10)
    texts = [f"word{row}" for row in range(20)]
    baseline = fit_baseline(texts, np.arange(20) % 2, multi_label=False, seed=0)
    assert baseline.predict(texts).tolist() == [0, 1] * 10


def test_blank_and_unusual_texts_are_predicted():
    baseline = fit_baseline([*_ENGLISH, "", "?!"], np.append(_IDS, [0, 1]), multi_label=False, seed=0)
    assert set(baseline.predict(["", " \n", "\x00", "日本", "👍"]).tolist()) <= {0, 1}


@pytest.mark.parametrize(("multi_label", "shape"), [(False, (0,)), (True, (0, 2))])
def test_no_text_gives_no_prediction(multi_label, shape):
    targets = np.stack([_IDS, 1 - _IDS], axis=1) if multi_label else _IDS
    baseline = fit_baseline(_ENGLISH, targets, multi_label=multi_label, seed=0)
    assert baseline.predict([]).shape == shape


def test_blank_texts_raise():
    with pytest.raises(InputError, match="all 2 texts are blank"):
        fit_baseline(["", "  "], np.array([0, 1]), multi_label=False, seed=0)


def test_unequal_lengths_raise():
    with pytest.raises(ValueError, match="16 texts and 15 targets"):
        fit_baseline(_ENGLISH, _IDS[:15], multi_label=False, seed=0)


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("plain words", False),
        ("русский текст", False),
        ("这是中文", True),
        ("iPhone 发布会在今天上午举行了吧", True),
        ("the word 中文 means Chinese", False),
        ("ひらがなとカタカナ", True),
        ("한국어 문장", True),
        ("ภาษาไทย", True),
        ("123 ... !", False),
        ("", False),
    ],
)
def test_scripts_without_spaces_use_characters(text, characters):
    assert uses_characters([text]) is characters


def test_script_of_many_texts_is_detected_from_a_sample():
    assert uses_characters(["中文"] * 5000 + ["x"])
    assert not uses_characters([])
