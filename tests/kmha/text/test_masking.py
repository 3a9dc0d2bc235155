import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.masking import NO_TOKEN, Masker
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary

# Special tokens are not at the beginning, as in published vocabularies.
TOKENS = ["[PAD]", "a", "[UNK]", "##a", "[CLS]", "[SEP]", "[MASK]", *"bcdefgh", "##b", "##c", "##"]
VOCABULARY = Vocabulary(TOKENS)
SPECIAL = [VOCABULARY.id_of(token) for token in SPECIAL_TOKENS]
ORDINARY = [index for index in range(len(TOKENS)) if index not in SPECIAL]
CONTINUING = [VOCABULARY.id_of(token) for token in ("##a", "##b", "##c")]
MASK = VOCABULARY.id_of("[MASK]")

rows_of_ids = st.lists(st.lists(st.integers(1, len(TOKENS) - 1), max_size=40), min_size=1, max_size=5).filter(
    lambda rows: any(rows)
)


def padded(rows, length=None):
    length = max(map(len, rows)) if length is None else length
    ids, mask = np.zeros((2, len(rows), length), np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    return ids, mask


def hidden(masker, rows, seeds, length=None):
    """The masked token ids of each row, and its masked positions with their targets."""
    ids, mask = padded(rows, length)
    masked = masker(ids, mask, np.asarray(seeds, np.int32), masker.slots(ids.shape[1]))
    seen, positions = (masked.features[name].numpy() for name in ("token_ids", "mask_positions"))
    targets = masked.targets.numpy()
    found = [
        dict(zip(p[t != NO_TOKEN].tolist(), t[t != NO_TOKEN].tolist(), strict=True))
        for p, t in zip(positions, targets, strict=True)
    ]
    assert (positions[targets == NO_TOKEN] == 0).all()
    assert all(list(each) == sorted(each) for each in found)
    return [row[: len(given)].tolist() for row, given in zip(seen, rows, strict=True)], found


def words_of(row) -> list[list[int]]:
    """Positions of the tokens of each word, as whole words are defined."""
    words: list[list[int]] = []
    for position, token in enumerate(row):
        continues = position > 0 and token in CONTINUING and row[position - 1] not in SPECIAL
        if token not in SPECIAL:
            words[-1].append(position) if continues else words.append([position])
    return words


@given(rows=rows_of_ids, seed=st.integers(-(2**31), 2**31 - 1), share=st.sampled_from([0.05, 0.15, 0.5, 0.9]))
def test_only_ordinary_tokens_are_masked_with_the_exact_share(rows, seed, share):
    seen, found = hidden(Masker(VOCABULARY, share=share), rows, [seed] * len(rows))
    for row, now, targets in zip(rows, seen, found, strict=True):
        maskable = [position for position, token in enumerate(row) if token not in SPECIAL]
        assert set(targets) <= set(maskable)
        assert all(row[position] == true for position, true in targets.items())
        assert all(now[p] == row[p] for p in range(len(row)) if p not in targets)
        assert all(now[p] == MASK or now[p] in ORDINARY for p in targets)
        expected = max(share * len(maskable), 1.0) if maskable else 0
        assert abs(len(targets) - expected) < 1 + 1e-3


@given(rows=rows_of_ids, seed=st.integers(0, 2**30), share=st.sampled_from([0.15, 0.5]))
def test_whole_words_are_masked_together(rows, seed, share):
    masker = Masker(VOCABULARY, share=share, whole_word=True)
    length = max(map(len, rows))
    _, found = hidden(masker, rows, range(seed, seed + len(rows)))
    for row, targets in zip(rows, found, strict=True):
        words = words_of(row)
        chosen = [word for word in words if set(word) <= set(targets)]
        assert sorted(sum(chosen, [])) == list(targets)
        available = sum(map(len, words))
        longest = max(map(len, words), default=0)
        assert len(targets) <= masker.slots(length)
        if longest <= masker.slots(length) - share * available - 1:
            assert abs(len(targets) - max(share * available, 1.0)) < max(longest, 1) or not words


@pytest.mark.parametrize("whole_word", [False, True])
def test_random_and_unchanged_tokens_have_their_shares(whole_word):
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, len(TOKENS), 120).tolist() for _ in range(400)]
    masker = Masker(VOCABULARY, whole_word=whole_word)
    seen, found = hidden(masker, rows, rng.integers(-(2**31), 2**31, len(rows)))
    maskable = sum(token not in SPECIAL for row in rows for token in row)
    total = sum(map(len, found))
    assert total / maskable == pytest.approx(0.15, abs=0.003)
    pairs = [(now[p], true) for now, targets in zip(seen, found, strict=True) for p, true in targets.items()]
    assert np.mean([now == MASK for now, _ in pairs]) == pytest.approx(0.8, abs=0.02)
    replaced = [(now, true) for now, true in pairs if now != MASK]
    # A random token is the original token with probability 1 / tokens.
    stays = 0.1 + 0.1 / len(ORDINARY)
    assert np.mean([now == true for now, true in pairs]) == pytest.approx(stays, abs=0.02)
    others = np.bincount([now for now, true in replaced if now != true], minlength=len(TOKENS))
    assert (others[ORDINARY] > 0).all() and others[SPECIAL].sum() == 0
    # All positions and tokens are masked equally often.
    positions = np.bincount([p for targets in found for p in targets], minlength=120)
    assert positions.min() > 0.4 * positions.mean() and positions.max() < 1.8 * positions.mean()


@given(rows=rows_of_ids, seed=st.integers(0, 2**30), more=st.integers(0, 30), whole_word=st.booleans())
def test_neither_padding_nor_other_rows_change_the_masking(rows, seed, more, whole_word):
    masker = Masker(VOCABULARY, whole_word=whole_word)
    ids, mask = padded(rows)
    wider, wider_mask = padded(rows, ids.shape[1] + more)
    seeds = np.arange(seed, seed + len(rows), dtype=np.int32)
    # As many slots as tokens: with too few, words are not masked.
    slots = masker.slots(ids.shape[1])
    alone = masker(ids[:1], mask[:1], seeds[:1], slots)
    together = masker(wider, wider_mask, seeds, slots)
    np.testing.assert_array_equal(alone.targets[0], together.targets[0])
    np.testing.assert_array_equal(alone.features["mask_positions"][0], together.features["mask_positions"][0])
    np.testing.assert_array_equal(
        alone.features["token_ids"][0], together.features["token_ids"][0, : ids.shape[1]]
    )


def test_equal_seeds_mask_equal_tokens():
    rows = [list(range(7, 14)) * 10] * 3
    masker = Masker(VOCABULARY)
    first = hidden(masker, rows, [5, 5, 6])
    assert first == hidden(masker, rows, [5, 5, 6])
    assert first[1][0] == first[1][1] != first[1][2]


@pytest.mark.parametrize("whole_word", [False, True])
def test_eager_graph_and_xla_agree(whole_word):
    rng = np.random.default_rng(1)
    ids, mask = padded([rng.integers(1, len(TOKENS), n).tolist() for n in (30, 17, 3, 0)])
    seeds = rng.integers(-(2**31), 2**31, 4).astype(np.int32)
    masker = Masker(VOCABULARY, whole_word=whole_word)
    slots = masker.slots(30)
    eager = masker(ids, mask, seeds, slots)
    for options in ({}, {"jit_compile": True}):
        compiled = tf.function(lambda ids, mask, seeds: masker(ids, mask, seeds, slots), **options)(
            ids, mask, seeds
        )
        tf.nest.map_structure(np.testing.assert_array_equal, compiled, eager)
    # In tf.data the number of slots is a tensor.
    dynamic = tf.function(masker)(ids, mask, seeds, tf.constant(slots))
    tf.nest.map_structure(np.testing.assert_array_equal, dynamic, eager)


@pytest.mark.parametrize("tokenization", ["char", "word"])
def test_a_word_is_a_token_in_other_tokenizations(tokenization):
    row = [VOCABULARY.id_of(token) for token in ("b", "##b", "##c", "c")] * 10
    whole = Masker(VOCABULARY, tokenization, whole_word=True)
    plain = Masker(VOCABULARY, tokenization)
    assert hidden(whole, [row], [3])[1] == hidden(plain, [row], [3])[1]


def test_the_slots_are_sufficient():
    masker = Masker(VOCABULARY)
    assert [masker.slots(length) for length in (1, 3, 8, 128, 512)] == [1, 1, 2, 20, 77]
    assert [Masker(VOCABULARY, whole_word=True).slots(length) for length in (3, 128)] == [3, 28]


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_out_of_range_is_rejected(share):
    with pytest.raises(InputError, match="share must be above 0 and below 1"):
        Masker(VOCABULARY, share=share)


def test_a_vocabulary_of_special_tokens_is_rejected():
    with pytest.raises(InputError, match="a token that is not special"):
        Masker(Vocabulary(SPECIAL_TOKENS))
