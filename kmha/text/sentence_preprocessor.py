"""Sentences to features in the graph: raw texts are split into words, long sentences into windows.

Each word is tagged in the window in which it is closest to the middle.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from kmha.errors import InputError
from kmha.features import (
    CHARACTER_IDS,
    MAX_WORDS,
    MIN_WINDOW_LENGTH,
    NUM_CHARACTERS,
    PADDING_MASK,
    SEGMENT_IDS,
    SPELLING_LENGTH,
    TOKEN_IDS,
    WORD_MASK,
    WORD_STARTS,
    TextInputs,
)
from kmha.text.preprocessor import BYTES_PER_TOKEN, Preprocessor
from kmha.text.words import Ragged, Split, Words, rows_of_values, split_words


class Windows(NamedTuple):
    """V windows of sentences, in the order of the sentences."""

    sequences: Any  # token ids with special tokens, ragged int32 [V, None]
    words: Any  # index of each word among all words of all sentences, ragged int64 [V, None]; those to tag come first
    starts: Any  # position of each word's first token in the sequence, ragged int32 [V, None]
    counts: Any  # number of words to tag in each window, int64 [V]; each word is tagged in one window
    sentences: Any  # index of the sentence of each window, int64 [V]; each sentence has one or more


def max_word_tokens(tokens: int) -> int:
    """Maximum tokens of a word, so that each word fits in a window of `tokens` tokens at a stride of half of that."""
    return tokens // 2


def split_windows(pieces, word_splits, tokens: int, start_id: int, end_id: int) -> Windows:
    """Splits sentences into windows of at most `tokens` tokens with a stride of half of that.

    The token ids of each word are ragged int32 [N, None], 1 to `max_word_tokens` each; `word_splits`, int64 [B + 1],
    has the index of the first word of each sentence, and N. The special tokens around a window are not counted.
    """
    stride = tokens // 2
    ends = pieces.row_splits[1:]
    begins = pieces.row_splits[:-1]
    bounds = tf.gather(pieces.row_splits, word_splits)
    sizes = bounds[1:] - bounds[:-1]
    counts = tf.maximum(sizes - tokens + stride - 1, 0) // stride + 1
    sentences = rows_of_values(tf.pad(tf.cumsum(counts), [[1, 0]]))
    first_token = tf.gather(bounds, sentences) + stride * tf.ragged.range(counts).flat_values
    last_word = tf.gather(word_splits, sentences + 1)
    first = tf.minimum(tf.searchsorted(begins, first_token, out_type=tf.int64), last_word)
    last = tf.searchsorted(ends, first_token + tokens, side="right", out_type=tf.int64)
    last = tf.maximum(tf.minimum(last, last_word), first)
    # A word is tagged in the window whose middle is closest to its own.
    word_sentences = rows_of_values(word_splits)
    middle = begins + ends - 2 * tf.gather(bounds, word_sentences) - stride
    home = tf.clip_by_value(middle // (2 * stride), 0, tf.gather(counts, word_sentences) - 1)
    home += tf.gather(tf.cumsum(counts, exclusive=True), word_sentences)
    core = tf.math.bincount(tf.cast(home, tf.int32), minlength=tf.size(sentences), dtype=tf.int64)
    core = core[: tf.size(sentences)]
    core_end = tf.cumsum(core)
    words: Any = tf.concat(
        [
            tf.ragged.range(core_end - core, core_end),
            tf.ragged.range(first, core_end - core),
            tf.ragged.range(core_end, last),
        ],
        axis=1,
    )
    token_begin = tf.gather(pieces.row_splits, first)
    inner = tf.ragged.range(token_begin, tf.gather(pieces.row_splits, last))
    inner = inner.with_flat_values(tf.gather(pieces.flat_values, inner.flat_values))
    ones = tf.ones([tf.size(sentences), 1], tf.int32)
    starts = (
        tf.gather(begins, words.flat_values) - tf.gather(token_begin, rows_of_values(words.row_splits)) + 1
    )
    return Windows(
        tf.concat([start_id * ones, inner, end_id * ones], axis=1),
        words,
        words.with_flat_values(tf.cast(starts, tf.int32)),
        core,
        sentences,
    )


def first_windows(windows: Windows) -> Any:
    """Index of the first window of each sentence, int64 [B]."""
    ones = tf.ones_like(windows.sentences[:1], tf.bool)
    return tf.where(tf.concat([ones, windows.sentences[1:] != windows.sentences[:-1]], axis=0))[:, 0]


SPLITS = ("words", "characters")


class EncodedSentences(NamedTuple):
    """Windows of sentences, and character ids of all words, int32 [N, 20], padded with 0; None without them."""

    windows: Windows
    spellings: Any


class SentencePreprocessor(tf.Module):
    """Turns sentences into features of windows of at most `max_length` tokens.

    Args:
        part: Tokenizes words.
        split: How raw texts are split: "words", or "characters" where each visible character is a word.
        characters: Whether to add character ids of the words, for a character encoder.

    Raises:
        InputError: The split is unknown, or max_length is below 8.
    """

    def __init__(self, part: Preprocessor, split: Split = "words", characters: bool = False):
        super().__init__(name="sentence_preprocessor")
        if split not in SPLITS:
            raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if part.max_length < MIN_WINDOW_LENGTH:
            raise InputError(
                f"max_length must be at least {MIN_WINDOW_LENGTH} for sentences, got {part.max_length}"
            )
        self.part = part
        self.split: Split = split
        self.characters = bool(characters)
        self.num_texts = 1
        self.max_length = part.max_length
        self.max_bytes = BYTES_PER_TOKEN * MAX_WORDS
        self.vocabulary, self.padding_id, self.unknown_id = part.vocabulary, part.padding_id, part.unknown_id

    @property
    def inputs(self) -> list[TextInputs]:
        """The model's inputs of tokens; `feature_names` has all inputs."""
        return self.part.inputs

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features."""
        names = (TOKEN_IDS, SEGMENT_IDS, PADDING_MASK, WORD_STARTS, WORD_MASK)
        return (*names, CHARACTER_IDS) if self.characters else names

    def words(self, texts) -> Words:
        """The words of raw texts, string [B]; invalid UTF-8 is replaced."""
        return split_words(
            tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace"), self.split
        )

    def encode(self, words, length: int | None = None) -> EncodedSentences:
        """Tokenizes sentences, ragged string [B, None], and splits them into windows of at most `length` tokens.

        Invalid UTF-8 is replaced. The length is at least 8; None: max_length.
        """
        flat = tf.strings.unicode_transcode(words.flat_values, "UTF-8", "UTF-8", errors="replace")
        pieces = self.part.tokenize(flat, valid_utf8=True)
        max_tokens = min(length or self.max_length, self.max_length) - 2
        pieces = pieces[:, : max_word_tokens(max_tokens)]
        # A word without tokens gets [UNK], so that it can have a tag.
        unknown = tf.fill([pieces.nrows(), 1], self.unknown_id)
        unknown = Ragged.from_tensor(unknown, lengths=tf.cast(pieces.row_lengths() == 0, tf.int64))
        pieces = tf.concat([pieces, unknown], axis=1)
        start, end = self.part.start_id, self.part.end_id
        windows = split_windows(pieces, words.row_splits, max_tokens, start, end)
        return EncodedSentences(windows, spell_words(flat) if self.characters else None)

    def select_windows(self, encoded: EncodedSentences, indices) -> EncodedSentences:
        """Some of the windows, by index, integers [V]."""
        return encoded._replace(windows=Windows(*(tf.gather(part, indices) for part in encoded.windows)))

    def pad(self, encoded: EncodedSentences, lengths: tuple[int | None, int | None] = (None, None)) -> dict:
        """Features of windows, padded to T and W of `lengths`; None: the longest of the batch.

        Returns:
            token_ids, segment_ids, padding_mask int32 [V, T]; word_starts (0 = no word), word_mask (1 = to be tagged)
            int32 [V, W]; with character features also character_ids int32 [V, W, 20].
        """
        windows = encoded.windows
        features = self.part.pad_sequences(windows.sequences, TOKEN_IDS, PADDING_MASK, lengths[0])
        # At least one word: some runtimes do not support an empty axis.
        width = tf.maximum(windows.starts.bounding_shape()[1], 1) if lengths[1] is None else lengths[1]
        starts = windows.starts.to_tensor(0, shape=(None, None))
        starts = tf.pad(starts, tf.stack([[0, 0], [0, tf.cast(width, tf.int32) - tf.shape(starts)[1]]]))
        mask = tf.sequence_mask(windows.counts, tf.shape(starts)[1], dtype=tf.int32)
        features |= {
            SEGMENT_IDS: tf.zeros_like(features[TOKEN_IDS]),
            WORD_STARTS: starts,
            WORD_MASK: mask,
        }
        if encoded.spellings is not None:
            spelled = windows.words.with_flat_values(tf.gather(encoded.spellings, windows.words.flat_values))
            spelled = spelled.to_tensor(0, shape=(None, None, SPELLING_LENGTH))
            missing = tf.shape(starts)[1] - tf.shape(spelled)[1]
            features[CHARACTER_IDS] = tf.pad(spelled, tf.stack([[0, 0], [0, missing], [0, 0]]))
        return features

    def get_config(self) -> dict:
        """The constructor's arguments, with those of the part except the vocabulary, as JSON values."""
        return {**self.part.get_config(), "split": self.split, "characters": self.characters}


def spell_words(words):
    """Character ids int32 [N, 20] of words, string [N] of valid UTF-8: 1 + code point; 0 = no character.

    A longer word has its first ten and last ten characters.
    """
    characters = tf.strings.unicode_decode(words, "UTF-8")
    half = SPELLING_LENGTH // 2
    lengths = characters.row_lengths()
    from_start, from_end = tf.ragged.range(lengths).flat_values, tf.ragged.range(lengths, 0, -1).flat_values
    at_ends = tf.boolean_mask(characters.flat_values, (from_start < half) | (from_end <= half))
    ids = Ragged.from_row_lengths(
        1 + at_ends % (NUM_CHARACTERS - 1), tf.minimum(lengths, 2 * half), validate=False
    )
    return ids.to_tensor(0, shape=(None, SPELLING_LENGTH))
