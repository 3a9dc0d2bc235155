import json

import pytest

from training.metrics.spans import most_frequent_errors

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
    summary = [(each["expected"], each["given"], each["same_words"], each["count"]) for each in found]
    assert summary == [
        (None, "L", None, 1),
        ("P", "L", True, 1),
        ("P", None, None, 1),
        ("L", "L", False, 1),
    ]
    shown = [(each["sentences"][0]["expected"], each["sentences"][0]["given"]) for each in found]
    assert shown == [
        (None, "Yesterday"),
        ("Anna Lee", "Anna Lee"),
        ("Bob", None),
        ("New York City", "New York"),
    ]
    assert found[0]["sentences"][0]["text"] == "Yesterday Anna Lee met Bob in …"
    assert found[3]["sentences"][0]["text"] == "… Anna Lee met Bob in New York City ."
    assert {each["place"] for kind in found for each in kind["sentences"]} == {"a.conll:7"}


def test_the_most_frequent_come_first_and_three_sentences_are_shown():
    missed = "O B-P I-P O O O B-L I-L I-L O"
    other = "O B-P I-P O B-L O B-L I-L I-L O"
    found = errors_of(other, *[missed] * 5)
    assert [(each["given"], each["count"], len(each["sentences"])) for each in found] == [
        (None, 5, 3),
        ("L", 1, 1),
    ]
    assert [each["given"] for each in errors_of(other, *[missed] * 5, most=1)] == [None]
    assert "place" not in found[0]["sentences"][0]


def test_a_span_is_held_against_the_one_that_shares_most_words():
    found = errors_of("O B-P I-P O B-P B-L I-L B-L I-L O")
    assert [(each["expected"], each["given"], each["same_words"]) for each in found] == [
        (None, "L", None),
        ("L", "L", False),
    ]
    assert [each["sentences"][0]["given"] for each in found] == ["in New", "York City"]


def test_a_span_over_two_wanted_ones_counts_once():
    found = errors_of("O B-P I-P I-P I-P O B-L I-L I-L O")
    assert [(each["expected"], each["given"], each["same_words"]) for each in found] == [
        ("P", "P", False),
        ("P", None, None),
    ]


def test_errors_of_words():
    (found,) = most_frequent_errors([["old", "bread"]], [["ADJ", "NOUN"]], [["ADJ", "VERB"]], "none")
    assert found == {
        "expected": "NOUN",
        "given": "VERB",
        "same_words": True,
        "count": 1,
        "sentences": [{"text": "old bread", "expected": "bread", "given": "bread"}],
    }


def test_characters_are_shown_without_spaces():
    (found,) = most_frequent_errors([list("徐文彬先生")], [list("BMEBE")], [list("BESBE")], "bmes")[:1]
    assert found["sentences"][0] == {"text": "徐文彬先生", "expected": "徐文彬", "given": "徐文"}


def test_tags_that_do_not_fit():
    with pytest.raises(ValueError, match="sentence 0: expected a tag for each of 1 words twice"):
        most_frequent_errors([["a"]], [["O"]], [["O", "O"]], "bio")
