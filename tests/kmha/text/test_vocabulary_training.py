"""Training a vocabulary: reproducible, within its size, and by the rules of its tokenizer."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import SPECIAL_TOKENS, TOKENIZATIONS, Tokenization, Vocabulary
from kmha.text.vocabulary_training import prune_vocabulary, train_vocabulary
from tests.bundles import TEXTS
from tests.command_runs import ROOT, clean_environment

every_tokenization = pytest.mark.parametrize("tokenization", TOKENIZATIONS)
both_cases = pytest.mark.parametrize("lower_case", [True, False])
# All characters have the same frequency, so that a random tie-break is detected.
TIES = [" ".join(chr(97 + (i * j) % 26) + chr(97 + (i + j) % 26) for j in range(26)) for i in range(26)]
PROGRAM = """
import json, sys
from kmha.quiet import import_tensorflow
import_tensorflow()
from kmha.text.vocabulary_training import train_vocabulary
texts = json.loads(sys.argv[1])
print(json.dumps([train_vocabulary(texts, *given).tokens for given in json.loads(sys.argv[2])]))
"""


@pytest.mark.second
def test_separate_processes_train_the_same_vocabulary():
    given: list[tuple[Tokenization, int, int]] = [
        ("wordpiece", 400, 1),
        ("wordpiece", 60, 1),
        ("wordpiece", 24, 1),
        ("char", 20, 1),
        ("word", 40, 1),
    ]
    texts = [*TEXTS, *TIES]
    here = [list(train_vocabulary(texts, *arguments).tokens) for arguments in given]
    other_hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(texts), json.dumps(given)],
        env={**clean_environment(), "PYTHONHASHSEED": other_hashes},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) == here


@pytest.mark.parametrize("size", [40, 120, 400])
def test_wordpiece_is_the_same_in_many_runs(size):
    texts = [*TEXTS, *TIES]
    assert len({train_vocabulary(texts, "wordpiece", size, 1).tokens for _ in range(8)}) == 1


@every_tokenization
def test_special_tokens_come_first(tokenization):
    assert train_vocabulary(TEXTS, tokenization, 100, 1).tokens[:5] == SPECIAL_TOKENS


@every_tokenization
@pytest.mark.parametrize("size", [6, 7, 20, 33, 90, 1000])
def test_the_size_is_never_exceeded(tokenization, size):
    assert min(size, 7) - 1 <= len(train_vocabulary(TEXTS, tokenization, size, 1)) <= size


def test_a_small_wordpiece_vocabulary_has_the_most_frequent_characters():
    texts = ["aaaa bbb cc d"] * 3
    assert set(train_vocabulary(texts, "wordpiece", 9, 1).tokens[5:]) == {"a", "b", "##a", "##b"}


def test_many_characters_that_never_continue_a_word_need_one_token_each():
    ideographs = "".join(chr(0x4E00 + i) for i in range(50))
    trained = train_vocabulary([ideographs, "ab"], "wordpiece", 5 + 52 + 1, 1)
    assert set(ideographs) <= set(trained.tokens)


@every_tokenization
@pytest.mark.parametrize("texts", [[], [""], [" \n "]])
def test_training_on_no_texts_gives_the_special_tokens(tokenization, texts):
    assert train_vocabulary(texts, tokenization, 100, 1).tokens == SPECIAL_TOKENS


def test_rare_words_are_left_out():
    texts = ["bread bread salt", "salt Bread oil"]
    assert train_vocabulary(texts, "word", 100, 3).tokens[5:] == ("bread",)
    assert train_vocabulary(texts, "word", 100, 2).tokens[5:] == ("bread", "salt")
    assert train_vocabulary(texts, "word", 100, 1, lower_case=False).tokens[5:] == (
        "bread",
        "salt",
        "Bread",
        "oil",
    )


@every_tokenization
@both_cases
@pytest.mark.parametrize(
    "text",
    [
        "港口，面包！（七）１２３",
        "ﬁne ² Ⅳ Straße ΣΑΣ ａｂ",
        "a\u00a0b\u3000c\u2009d",
        "bread\u200bsalt \u00adoil soft\u00adhyphen 👩\u200d🍳",
        "tab\tnew\nline\x01\x85\0end",
        "a\u2028b\u2029a\u1680b",
        "\ufffd \ue000x",
        "כתובית עברית العربية",
        "İstanbul ǅ K Å",
    ],
)
def test_trained_tokens_occur_in_their_texts(tokenization, lower_case, text):
    vocabulary = train_vocabulary([text], tokenization, 1000, 1, lower_case)
    processed = Preprocessor(vocabulary, tokenization, lower_case)
    ids = processed.tokenize(tf.constant([text])).flat_values.numpy()
    assert len(ids) and processed.unknown_id not in ids


@pytest.mark.parametrize("tokenization", ["char", "word"])
def test_every_trained_word_or_character_is_used(tokenization):
    vocabulary = train_vocabulary(TEXTS, tokenization, 1000, 1)
    ids = Preprocessor(vocabulary, tokenization, max_length=500).tokenize(tf.constant(TEXTS)).flat_values
    assert set(np.unique(ids)) == set(range(5, len(vocabulary)))


@every_tokenization
def test_overlong_words_and_lone_surrogates_are_supported(tokenization):
    vocabulary = train_vocabulary(["ä" * 400 + " ok", "ä" * 400 + " \ud800"] * 3, tokenization, 1000, 1)
    ids = Preprocessor(vocabulary, tokenization).tokenize(tf.constant(["ok"]))
    assert vocabulary.id_of("[UNK]") not in ids.flat_values.numpy()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("wordpice", 100), "did you mean wordpiece?"),
        (("zzz", 100), "wordpiece, char, word"),
        (("char", 5), "more than 5"),
        (("wordpiece", -1), "got -1"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, words):
    with pytest.raises(InputError) as error:
        train_vocabulary(TEXTS, *arguments)
    assert words in str(error.value)


MORE = (
    "Captains count crates while gulls circle overhead",
    "Forty captains sail past northern lighthouses",
    "船长在数箱子",
)
WHOLE = {
    tokenization: train_vocabulary((*TEXTS, *MORE), tokenization, 400, 1, lower_case=True)
    for tokenization in ("wordpiece", "char", "word")
}
texts = st.lists(st.sampled_from([*TEXTS, *MORE, "", "breadcrates", "é", "zq"]), max_size=4)


def tokens_of(vocabulary: Vocabulary, tokenization, given_texts) -> list[list[str]]:
    preprocessor = Preprocessor(vocabulary, tokenization, True, 64)
    return [
        [vocabulary.tokens[index] for index in row]
        for row in preprocessor.tokenize(list(given_texts)).to_list()
    ]


@pytest.mark.parametrize("tokenization", WHOLE)
@given(given_texts=texts)
def test_texts_are_tokenized_as_before(tokenization, given_texts):
    whole, given_texts = WHOLE[tokenization], [*given_texts, TEXTS[0]]
    pruned = prune_vocabulary(whole, given_texts, tokenization, lower_case=True)
    before, after = (tokens_of(each, tokenization, given_texts) for each in (whole, pruned.vocabulary))
    assert before == after
    # The order is the same, and the previous ids have the same tokens.
    assert [whole.tokens[index] for index in pruned.kept_ids] == list(pruned.vocabulary.tokens)
    assert (np.diff(pruned.kept_ids) > 0).all()
    assert set(SPECIAL_TOKENS) <= set(pruned.vocabulary.tokens)


def test_unused_tokens_are_removed_but_new_words_can_be_spelled():
    whole = WHOLE["wordpiece"]
    pruned = prune_vocabulary(whole, iter(TEXTS), "wordpiece", lower_case=True).vocabulary
    removed = set(whole.tokens) - set(pruned.tokens)
    assert {"captains", "船"} <= removed and len(pruned) < len(whole)
    assert "bread" in pruned.tokens
    for character in "bread":
        assert {character, f"##{character}"} & set(whole.tokens) <= set(pruned.tokens)
    ((*pieces,),) = tokens_of(pruned, "wordpiece", ["abler"])
    assert "[UNK]" not in pieces and len(pieces) > 1


def test_case_and_order_of_the_vocabulary_matter():
    whole = Vocabulary(["B", "b", *SPECIAL_TOKENS, "##B", "##b", "Bb"])
    cased = prune_vocabulary(whole, ["Bb"], "wordpiece", lower_case=False)
    assert cased.vocabulary.tokens == ("B", "b", *SPECIAL_TOKENS, "##B", "##b", "Bb")
    lowered = prune_vocabulary(whole, ["Bb"], "wordpiece", lower_case=True)
    assert lowered.kept_ids.tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_no_text_leaves_the_special_tokens():
    assert prune_vocabulary(WHOLE["word"], [], "word").vocabulary.tokens == tuple(SPECIAL_TOKENS)


def test_a_vocabulary_that_the_tokenizer_cannot_take_is_rejected():
    with pytest.raises(InputError, match="cannot be used"):
        prune_vocabulary(Vocabulary([*SPECIAL_TOKENS, "x" * 300]), ["x"])
