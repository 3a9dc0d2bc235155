import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from kmha.text.vocabulary_pruning import prune_vocabulary
from kmha.text.vocabulary_training import train_vocabulary
from tests.bundles import TEXTS

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
    gone = set(whole.tokens) - set(pruned.tokens)
    assert {"captains", "船"} <= gone and len(pruned) < len(whole)
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
