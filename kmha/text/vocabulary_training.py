"""Builds a vocabulary from training texts."""

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from kmha.errors import InputError, did_you_mean
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


def train_vocabulary(
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    size: int = 16_000,
    min_frequency: int = 2,
    lower_case: bool = True,
) -> Vocabulary:
    """Learns a vocabulary by the rules that the tokenizer of the same name applies in the graph.

    Args:
        texts: A list, or another iterable that can be read several times.
        tokenization: "wordpiece" (BERT's), "char" or "word" (split at white space and punctuation).
        size: Most tokens to keep, special tokens included. Characters come before longer pieces, and the most
            frequent ones where not even they fit.
        min_frequency: Words and pieces of words seen less often are left out; WordPiece keeps rare characters.
        lower_case: Whether texts are lower-cased and stripped of accents first.

    Returns:
        The special tokens, then the learnt ones: the same for the same texts, in every process.

    Raises:
        InputError: The tokenization is not known, or the size leaves no room.

    Source: WordPiece as in Devlin et al. 2019, arXiv:1810.04805, trained by the `tokenizers` library.
    """
    if size <= len(SPECIAL_TOKENS):
        raise InputError(f"vocabulary size must be more than {len(SPECIAL_TOKENS)}, got {size}")
    if tokenization not in TOKENIZATIONS:
        hint = did_you_mean(str(tokenization), TOKENIZATIONS)
        raise InputError(
            f"tokenization must be one of {', '.join(TOKENIZATIONS)}, got {tokenization!r}{hint}"
        )
    learn = _learn_pieces if tokenization == "wordpiece" else _learn_whole
    learnt = learn(texts, tokenization, size, min_frequency, lower_case)
    return Vocabulary([token for token in learnt if len(token.encode()) <= LONGEST_WORD_BYTES])


def _learn_whole(texts, tokenization, size, min_frequency, lower_case) -> list[str]:
    """Words or characters by their number."""
    from tokenizers import models, trainers

    trainer = trainers.WordLevelTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    return _train(models.WordLevel(unk_token=UNKNOWN), trainer, _normalized(texts, lower_case), tokenization)


def _learn_pieces(texts, tokenization, size, min_frequency, lower_case) -> list[str]:
    """Characters, then pieces of words."""
    from tokenizers import models, trainers

    def train(
        texts: Iterator[str], size: int, limit: int, characters: list[str], continuations: list[str]
    ) -> list[str]:
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIAL_TOKENS, *continuations],
            # Its own limit is 1,000 characters, far too few for Chinese, and breaks ties by chance.
            limit_alphabet=limit,
            initial_alphabet=characters,
            continuing_subword_prefix=CONTINUATION,
            show_progress=False,
        )
        return _train(models.WordPiece(unk_token=UNKNOWN), trainer, texts, tokenization)

    # The trainer numbers continuation characters in the order of a hash map and breaks ties by number. A first
    # pass without merges finds them; given in sorted order they make the result repeatable.
    found = train(_different_words(_normalized(texts, lower_case)), 1, sys.maxunicode, [], [])
    alphabet = found[len(SPECIAL_TOKENS) :]
    continuations = sorted(token for token in alphabet if token.startswith(CONTINUATION))
    characters = sorted(token for token in alphabet if not token.startswith(CONTINUATION))
    room = size - len(SPECIAL_TOKENS)
    if len(alphabet) > room:
        counts = Counter(itertools.chain.from_iterable(_normalized(texts, lower_case)))
        # A character takes one token or, where it also continues words, two.
        kept = max(room // 2, room - len(continuations))
        characters = sorted(characters, key=lambda character: (-counts[character], character))[:kept]
        known = {CONTINUATION + character for character in characters}
        continuations = [token for token in continuations if token in known]
    return train(_normalized(texts, lower_case), size, len(characters), characters, continuations)


def _different_words(texts: Iterator[str]) -> Iterator[str]:
    """Texts in which each word stands once for many rows: all that it takes to meet every character of words."""
    while chunk := list(itertools.islice(texts, CHUNK_ROWS)):
        yield " ".join(sorted(set(" ".join(chunk).split(" "))))


def _normalized(texts: Iterable[str], lower_case: bool) -> Iterator[str]:
    """The texts as the tokenizers in the graph see them: what is learnt by other rules would never be found."""
    import tensorflow as tf

    from kmha.text.tokenizers import normalizer

    normalize = normalizer(lower_case)
    remaining = iter(texts)
    while chunk := [text.encode("utf-8", "replace") for text in itertools.islice(remaining, CHUNK_ROWS)]:
        yield from (text.decode() for text in normalize(tf.constant(chunk)).numpy())


def _train(model, trainer, texts: Iterator[str], tokenization: Tokenization) -> list[str]:
    """The tokens that the `tokenizers` library learns from normalised texts, in the order of its ids."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

    learner = Tokenizer(model)
    if tokenization == "char":
        one_space = normalizers.Replace(Regex(r"\s+"), " ")
        learner.normalizer = normalizers.Sequence([one_space, normalizers.Strip()])
        learner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    else:
        learner.normalizer = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
        )
        learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(texts, trainer)
    return [token for token, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1])]
