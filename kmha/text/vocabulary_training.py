"""Trains a vocabulary on texts, or removes the tokens of a vocabulary that texts do not use."""

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from kmha.errors import InputError, did_you_mean
from kmha.text.preprocessor import normalizer, tokenizer
from kmha.text.vocabulary import (
    CHUNK_ROWS,
    CONTINUATION,
    LONGEST_WORD_BYTES,
    SPECIAL_TOKENS,
    TOKENIZATIONS,
    UNKNOWN,
    Tokenization,
    Vocabulary,
)

# Of a token of a trained vocabulary.
MIN_FREQUENCY = 2


def train_vocabulary(
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    size: int = 16_000,
    min_frequency: int = MIN_FREQUENCY,
    lower_case: bool = True,
) -> Vocabulary:
    """Trains a vocabulary with the rules of the in-graph tokenizer of the same name.

    The texts are a list, or another iterable that can be read several times. The result has at most `size` tokens: the
    special ones, then the trained ones, identical for identical texts, in every process. Single characters have
    priority over longer pieces, frequent characters over rare ones. Words and pieces of words below `min_frequency` are
    skipped; WordPiece keeps rare characters.

    Source: WordPiece as in Devlin et al. 2019, arXiv:1810.04805, trained by the `tokenizers` library.
    """
    if size <= len(SPECIAL_TOKENS):
        raise InputError(f"vocabulary size must be more than {len(SPECIAL_TOKENS)}, got {size}")
    if tokenization not in TOKENIZATIONS:
        hint = did_you_mean(str(tokenization), TOKENIZATIONS)
        raise InputError(
            f"tokenization must be one of {', '.join(TOKENIZATIONS)}, got {tokenization!r}{hint}"
        )
    train = _train_wordpiece if tokenization == "wordpiece" else _train_whole_tokens
    tokens = train(texts, tokenization, size, min_frequency, lower_case)
    return Vocabulary([token for token in tokens if len(token.encode()) <= LONGEST_WORD_BYTES])


def _train_whole_tokens(texts, tokenization, size, min_frequency, lower_case) -> list[str]:
    """Words or characters by frequency."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    return _train(models.WordLevel(unk_token=UNKNOWN), trainer, _normalized(texts, lower_case), tokenization)


def _train_wordpiece(texts, tokenization, size, min_frequency, lower_case) -> list[str]:
    """Characters, then pieces of words."""

    def train(
        texts: Iterator[str], size: int, limit: int, characters: list[str], continuations: list[str]
    ) -> list[str]:
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIAL_TOKENS, *continuations],
            # The default limit of 1,000 characters is too small for Chinese and breaks ties at random.
            limit_alphabet=limit,
            initial_alphabet=characters,
            continuing_subword_prefix=CONTINUATION,
            show_progress=False,
        )
        return _train(models.WordPiece(unk_token=UNKNOWN), trainer, texts, tokenization)

    # The trainer numbers continuation characters in the order of a hash map and breaks ties by number. A first pass
    # without merges finds them; passing them in sorted order makes the result repeatable.
    found = train(_distinct_words(_normalized(texts, lower_case)), 1, sys.maxunicode, [], [])
    alphabet = found[len(SPECIAL_TOKENS) :]
    continuations = sorted(token for token in alphabet if token.startswith(CONTINUATION))
    characters = sorted(token for token in alphabet if not token.startswith(CONTINUATION))
    room = size - len(SPECIAL_TOKENS)
    if len(alphabet) > room:
        counts = Counter(itertools.chain.from_iterable(_normalized(texts, lower_case)))
        # A character takes one token, or two if it also continues words.
        limit = max(room // 2, room - len(continuations))
        characters = sorted(characters, key=lambda character: (-counts[character], character))[:limit]
        known = {CONTINUATION + character for character in characters}
        continuations = [token for token in continuations if token in known]
    return train(_normalized(texts, lower_case), size, len(characters), characters, continuations)


def _distinct_words(texts: Iterator[str]) -> Iterator[str]:
    """The distinct words of each chunk of rows: enough to find all characters of words."""
    while chunk := list(itertools.islice(texts, CHUNK_ROWS)):
        yield " ".join(sorted(set(" ".join(chunk).split(" "))))


def _normalized(texts: Iterable[str], lower_case: bool) -> Iterator[str]:
    """The texts normalized as by the in-graph tokenizers, so that the trained tokens can occur there."""
    normalize = normalizer(lower_case)
    for strings in _chunks(texts):
        yield from (text.decode() for text in normalize(strings).numpy())


def _chunks(texts: Iterable[str]) -> Iterator[tf.Tensor]:
    remaining = iter(texts)
    while chunk := [text.encode("utf-8", "replace") for text in itertools.islice(remaining, CHUNK_ROWS)]:
        yield tf.constant(chunk)


def _train(model, trainer, texts: Iterator[str], tokenization: Tokenization) -> list[str]:
    """The tokens that the `tokenizers` library trains on normalized texts, in the order of its ids."""
    tokenizer = Tokenizer(model)
    if tokenization == "char":
        one_space = normalizers.Replace(Regex(r"\s+"), " ")
        tokenizer.normalizer = normalizers.Sequence([one_space, normalizers.Strip()])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainer)
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


class PrunedVocabulary(NamedTuple):
    """The remaining tokens in their previous order, and their previous ids, int64 [V]: rows of an embedding table."""

    vocabulary: Vocabulary
    kept_ids: np.ndarray


def prune_vocabulary(
    vocabulary: Vocabulary,
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    lower_case: bool = True,
) -> PrunedVocabulary:
    """Removes the tokens that the texts do not use; the texts, which are read once, are tokenized exactly as before.

    Keeps the special tokens, every token of the texts, and for each character of the texts its own token and its
    continuation token, so that new words can be spelled. The embedding table holds most weights of a small model.
    """
    tokenize, normalize = tokenizer(vocabulary, tokenization, lower_case), normalizer(lower_case)
    is_used = np.zeros(len(vocabulary), bool)
    is_used[[vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = True
    characters: set[str] = set()
    for strings in _chunks(texts):
        is_used[tokenize(strings).flat_values.numpy()] = True
        characters.update(*(text.decode("utf-8") for text in normalize(strings).numpy()))
    single = (form for character in characters for form in (character, CONTINUATION + character))
    is_used[[vocabulary.ids[token] for token in single if token in vocabulary.ids]] = True
    kept_ids = np.flatnonzero(is_used)
    return PrunedVocabulary(Vocabulary([vocabulary.tokens[index] for index in kept_ids]), kept_ids)
