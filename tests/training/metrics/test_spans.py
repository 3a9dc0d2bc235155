import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, classification_report
from seqeval.scheme import IOB1, IOB2, IOBES
from sklearn.metrics import confusion_matrix, f1_score

from kmha.errors import InputError
from kmha.tags import Scheme, prefixes, repair_tags
from training.metrics.bootstrap import Resampling, bootstrap_interval
from training.metrics.spans import most_frequent_errors, tag_resampled, tag_scores

SEQEVAL = {"bio": IOB2, "bioes": IOBES, "bmes": IOBES, "iob1": IOB1}
WITH_SPANS: tuple[Scheme, ...] = ("bio", "bioes", "bmes", "iob1")


def generated(scheme: Scheme, count: int, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Expected and predicted tags, which are partly equal; some sentences are invalid."""
    generator = random.Random(seed)
    names = [f"{prefix}-{name}" for prefix in prefixes(scheme) for name in ("A", "B-c")] + ["O"] * 3
    gold, predicted = [], []
    for _ in range(count):
        tags = generator.choices(names, k=generator.randrange(1, 12))
        other = [generator.choice(names) if generator.random() < 0.3 else tag for tag in tags]
        if generator.random() < 0.6:
            tags, other = repair_tags(tags, scheme), repair_tags(other, scheme)
        gold.append(tags)
        predicted.append(other)
    return gold, predicted


def as_seqeval(sentences: list[list[str]]) -> list[list[str]]:
    return [[tag.replace("M-", "I-") for tag in tags] for tags in sentences]


@pytest.mark.parametrize("scheme", WITH_SPANS)
@pytest.mark.parametrize("count, seeds", [(1000, range(1)), (20, range(50))])
def test_span_scores_equal_seqeval(scheme, count, seeds):
    for seed in seeds:
        gold, predicted = generated(scheme, count, seed)
        scores = tag_scores(gold, predicted, scheme)
        report: dict = classification_report(
            as_seqeval(gold),
            as_seqeval(predicted),
            mode="strict",
            scheme=SEQEVAL[scheme],
            output_dict=True,
            zero_division=0,
        )
        mean = report.pop("micro avg")
        assert scores["precision"] == pytest.approx(mean["precision"])
        assert scores["recall"] == pytest.approx(mean["recall"])
        assert scores["span_f1"] == pytest.approx(mean["f1-score"])
        assert scores["macro_f1"] == pytest.approx(report.pop("macro avg")["f1-score"])
        report.pop("weighted avg")
        assert scores["per_type"].keys() == report.keys() == set(scores["types"])
        for name, theirs in report.items():
            ours = scores["per_type"][name]
            assert [ours["precision"], ours["recall"], ours["f1"], ours["support"]] == pytest.approx(
                [theirs["precision"], theirs["recall"], theirs["f1-score"], theirs["support"]]
            )
        assert scores["token_accuracy"] == pytest.approx(accuracy_score(gold, predicted))


def test_a_case_by_hand():
    gold = ["B-P I-P O B-L O B-P".split(), ["O"]]
    predicted = ["B-P I-P O B-P B-L O".split(), ["O"]]
    scores = tag_scores(gold, predicted, "bio")
    assert scores == {
        "rows": 2,
        "words": 7,
        "token_accuracy": pytest.approx(4 / 7),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(1 / 3),
        "span_f1": pytest.approx(1 / 3),
        "macro_f1": pytest.approx((0 + 1 / 2) / 2),
        "types": ["L", "P"],
        "per_type": {
            "L": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
            "P": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2},
        },
        "confusion_matrix": [[0, 1, 0], [0, 1, 1], [1, 0, 0]],
    }


def test_schemes_agree_on_equal_spans():
    gold, predicted = "B-P I-P O B-L B-L".split(), "B-P I-P O B-L I-L".split()
    bioes, others = "B-P E-P O S-L S-L".split(), "B-P E-P O B-L E-L".split()
    scores = tag_scores([bioes], [others], "bioes")
    # Of words, more tags can be wrong.
    assert scores | {"token_accuracy": 0.8} == tag_scores([gold], [predicted], "bio")


@given(data=st.data())
def test_scores_of_words_without_a_scheme(data):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    tags = [
        [data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n)) for n in lengths] for _ in "xy"
    ]
    gold, predicted = tags
    flat = [[tag for sentence in part for tag in sentence] for part in tags]
    scores = tag_scores(gold, predicted, "none")
    assert scores["words"] == len(flat[0]) and "span_f1" not in scores
    if not flat[0]:
        assert scores["token_accuracy"] is None
        return
    assert scores["types"] == sorted({*flat[0], *flat[1]})
    assert scores["macro_f1"] == pytest.approx(f1_score(*flat, average="macro", zero_division=0))
    assert scores["token_accuracy"] == pytest.approx(np.mean(np.array(flat[0]) == np.array(flat[1])))
    if len(scores["types"]) > 1:  # scikit-learn warns of a matrix of one cell
        assert scores["confusion_matrix"] == confusion_matrix(*flat, labels=scores["types"]).tolist()


def test_no_sentences():
    assert tag_scores([], [], "bio")["span_f1"] is None is tag_scores([], [], "bio")["token_accuracy"]
    outside = tag_scores([["O"]], [["O"]], "bio")
    assert (outside["span_f1"], outside["token_accuracy"], outside["types"]) == (0.0, 1.0, [])


@pytest.mark.parametrize("call", [tag_scores, tag_resampled])
def test_mismatched_tags_raise(call):
    with pytest.raises(ValueError, match="as many sentences, got 1 and 0"):
        call([["O"]], [], "bio")
    with pytest.raises(ValueError, match="sentence 1: expected as many tags, got 2 and 1"):
        call([["O"], ["O", "O"]], [["O"], ["O"]], "bio")
    with pytest.raises(InputError, match="got 'NOUN'"):
        call([["O"]], [["NOUN"]], "bio")


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_intervals_equal_resampled_sentences(scheme):
    gold, predicted = generated(scheme, 80, 3)
    found = tag_resampled(gold, predicted, scheme).intervals(Resampling(resamples=2000))
    assert found == tag_resampled(gold, predicted, scheme).intervals(Resampling(resamples=2000))

    def score(name: str):
        def of(rows):
            return tag_scores([gold[row] for row in rows], [predicted[row] for row in rows], scheme)[name]

        return of

    for name in ("span_f1", "token_accuracy", "macro_f1"):
        lower, upper = bootstrap_interval(score(name), np.arange(80), resampling=Resampling(1, 300))
        assert found[name] == pytest.approx([lower, upper], abs=0.02)
        assert found[name][0] < tag_scores(gold, predicted, scheme)[name] < found[name][1]


def test_intervals_without_spans_or_words():
    assert list(tag_resampled([["a", "b"]], [["a", "c"]], "none").intervals()) == [
        "token_accuracy",
        "macro_f1",
    ]
    assert tag_resampled([["a", "b"]], [["a", "c"]], "none").intervals()["token_accuracy"] == [0.5, 0.5]
    assert tag_resampled([], [], "bio").intervals() == {} == tag_resampled([[]], [[]], "bio").intervals()
    assert tag_resampled([["O"], []], [["O"], []], "bio").intervals()["span_f1"] == [0.0, 0.0]


WORDS = "Yesterday Anna Lee met Bob in New York City .".split()
GOLD = "O B-P I-P O B-P O B-L I-L I-L O".split()


def errors_of(*predicted: str, **more) -> list[dict]:
    count = len(predicted)
    tags = [each.split() for each in predicted]
    found = most_frequent_errors([WORDS] * count, [GOLD] * count, tags, "bio", **more)
    json.dumps(found)
    return found


def test_no_errors():
    assert errors_of(" ".join(GOLD)) == []


def test_kinds_of_errors():
    found = errors_of("B-L B-L I-L O O O B-L I-L O O", places=["a.conll:7"])
    summary = [(each["wanted"], each["given"], each["same_words"], each["count"]) for each in found]
    assert summary == [
        (None, "L", None, 1),
        ("P", "L", True, 1),
        ("P", None, None, 1),
        ("L", "L", False, 1),
    ]
    shown = [(each["sentences"][0]["wanted"], each["sentences"][0]["given"]) for each in found]
    assert shown == [
        (None, "Yesterday"),
        ("Anna Lee", "Anna Lee"),
        ("Bob", None),
        ("New York City", "New York"),
    ]
    assert found[0]["sentences"][0]["text"] == "Yesterday Anna Lee met Bob in …"
    assert found[3]["sentences"][0]["text"] == "… Anna Lee met Bob in New York City ."
    assert {each["place"] for kind in found for each in kind["sentences"]} == {"a.conll:7"}


def test_most_frequent_errors_come_first_with_three_sentences():
    missed = "O B-P I-P O O O B-L I-L I-L O"
    other = "O B-P I-P O B-L O B-L I-L I-L O"
    found = errors_of(other, *[missed] * 5)
    assert [(each["given"], each["count"], len(each["sentences"])) for each in found] == [
        (None, 5, 3),
        ("L", 1, 1),
    ]
    assert [each["given"] for each in errors_of(other, *[missed] * 5, most=1)] == [None]
    assert "place" not in found[0]["sentences"][0]


def test_span_is_paired_with_the_one_that_shares_most_words():
    found = errors_of("O B-P I-P O B-P B-L I-L B-L I-L O")
    assert [(each["wanted"], each["given"], each["same_words"]) for each in found] == [
        (None, "L", None),
        ("L", "L", False),
    ]
    assert [each["sentences"][0]["given"] for each in found] == ["in New", "York City"]


def test_span_over_two_labeled_spans_counts_once():
    found = errors_of("O B-P I-P I-P I-P O B-L I-L I-L O")
    assert [(each["wanted"], each["given"], each["same_words"]) for each in found] == [
        ("P", "P", False),
        ("P", None, None),
    ]


def test_errors_of_words():
    (found,) = most_frequent_errors([["old", "bread"]], [["ADJ", "NOUN"]], [["ADJ", "VERB"]], "none")
    assert found == {
        "wanted": "NOUN",
        "given": "VERB",
        "same_words": True,
        "count": 1,
        "sentences": [{"text": "old bread", "wanted": "bread", "given": "bread"}],
    }


def test_single_characters_are_joined_without_spaces():
    (found,) = most_frequent_errors([list("徐文彬先生")], [list("BMEBE")], [list("BESBE")], "bmes")[:1]
    assert found["sentences"][0] == {"text": "徐文彬先生", "wanted": "徐文彬", "given": "徐文"}


def test_errors_of_mismatched_tags_raise():
    with pytest.raises(ValueError, match="sentence 0: expected a tag for each of 1 words twice"):
        most_frequent_errors([["a"]], [["O"]], [["O", "O"]], "bio")
