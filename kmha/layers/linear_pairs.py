"""A linear classifier on the tokens that two texts share and do not share, as a layer."""

import keras
from keras import ops

from kmha.layers.comparison import ORDERS, shared_ngrams
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.embedding import FINGERPRINT_MODULUS, FINGERPRINT_MULTIPLIER, MULTIPLIER, Table
from kmha.layers.linear_ngrams import LARGEST_TABLE, known_rows
from kmha.layers.trigrams import BUCKETS, Trigrams

# Shares of n-grams and of stems (two kinds of weights, three shares each), cosine, BM25, lengths, numbers, equal words,
# unmatched tokens.
OVERLAP_FEATURES = 6 * (len(ORDERS) + 1) + 1 + 2 + 4 + 3 + 1 + 6
# Cosine and two shares of trigrams of characters, with and without weights.
TRIGRAM_FEATURES = 6
# Parts of the logits: numbers, tokens only in A, in both and only in B, pairs of tokens.
PARTS = 5
# Tokens of a word that tell it from other words.
TOKENS_OF_WORD = 4
# Parameters of BM25, Robertson and Zaragoza 2009, as in most search engines.
K1, B = 1.2, 0.75


def pair_keys(ids_a, ids_b, slots: int):
    """The slot of a pair of tokens, int32 in [0, slots), and its fingerprint, from ids int32 below 2**18."""
    slot = ops.mod(ids_a * MULTIPLIER + ids_b, slots)
    return slot, ops.mod(ids_a * FINGERPRINT_MULTIPLIER + ids_b, FINGERPRINT_MODULUS)


@keras.saving.register_keras_serializable(package="kmha")
class LinearPairs(ConfigurableLayer):
    """Logits of a linear model on the overlap of two texts; the weights are fitted outside of Keras.

    The features of a pair are numbers such as the TF-IDF cosine (see `overlap`), whether each token is only in A, in
    both texts or only in B, and known pairs of a token that is only in A and one that is only in B. Repeated tokens
    count once, except in the cosine and BM25. Tokens of wordpiece vocabularies are joined to words; a word of several
    tokens counts in the numbers only, as a rare word. Longer n-grams are those of tokens.

    Args:
        num_labels: C.
        vocabulary_size: V.
        first_id: Smaller ids (special and unknown tokens) are left out.
        rows: Known pairs of tokens; row 0 is that of unknown ones.
        slots: Size of the hash table of the pairs, below 2**18.
        symmetric: Whether the logits are the mean over both orders of the texts.
        trigrams: Trigrams of characters inside a token, see `Trigrams`; 0: the overlap has no numbers of them.

    Call:
        ids_a: int32 [B, T].
        mask_a: int32 [B, T]; 1 = a real token.
        ids_b: int32 [B, S].
        mask_b: int32 [B, S].
        return_parts: Whether to return, in place of the logits, the overlap features, float32 [B, F], and the logits by
            what they come from, float32 [B, `PARTS`, C]: the features (with the bias), tokens only in A, in both and
            only in B, and pairs.
        Returns float32 [B, C].
    """

    def __init__(
        self,
        num_labels: int,
        vocabulary_size: int,
        first_id: int = 0,
        rows: int = 0,
        slots: int = 1,
        symmetric: bool = False,
        trigrams: int = 0,
        **kwargs,
    ):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.num_labels, self.vocabulary_size, self.first_id = num_labels, vocabulary_size, first_id
        self.trigrams = trigrams
        self.num_features = OVERLAP_FEATURES + (TRIGRAM_FEATURES if trigrams else 0)
        self.rows, self.slots, self.symmetric = rows, slots, symmetric
        options = {"embeddings_initializer": "zeros", "dtype": "float32"}
        self.tokens = Table(vocabulary_size, 3 * num_labels, name="tokens", **options)
        self.pairs = Table(rows + 1, num_labels, name="pairs", **options)
        self.spelling = Trigrams(vocabulary_size, trigrams, name="spelling") if trigrams else None

    def build(self, ids_a_shape, mask_a_shape=None, ids_b_shape=None, mask_b_shape=None):
        """Creates the weights."""
        self.tokens.build(ids_a_shape)
        self.pairs.build(ids_a_shape)
        # A layer that is not trainable does not pass this on to the layers inside.
        self.tokens.trainable = self.pairs.trainable = False
        vocabulary = (self.vocabulary_size,)
        if self.spelling is not None:
            self.spelling.build(ids_a_shape)
            self.trigram_weights = self.add_weight(
                name="trigram_weights", shape=(BUCKETS,), dtype="float32", initializer="ones", trainable=False
            )
        for name, shape, dtype, initializer in (
            ("idf", vocabulary, "float32", "ones"),
            ("stems", vocabulary, "int32", "zeros"),
            ("is_number", vocabulary, "int8", "zeros"),
            ("continues", vocabulary, "int8", "zeros"),
            ("idf_of_unknown", (), "float32", "ones"),
            ("mean_length", (), "float32", "ones"),
            ("packed", (self.slots,), "int32", "zeros"),
            ("kernel", (self.num_features, self.num_labels), "float32", "zeros"),
            ("bias", (self.num_labels,), "float32", "zeros"),
        ):
            weight = self.add_weight(
                name=name, shape=shape, dtype=dtype, initializer=initializer, trainable=False
            )
            setattr(self, name, weight)

    def call(self, ids_a, mask_a, ids_b, mask_b, return_parts=False):
        """See the class."""
        features, parts = self._parts(ids_a, mask_a, ids_b, mask_b)
        if self.symmetric:
            swapped = self._parts(ids_b, mask_b, ids_a, mask_a)
            features, parts = (features + swapped[0]) / 2, (parts + swapped[1]) / 2
        return (features, parts) if return_parts else ops.sum(parts, axis=1)

    def _parts(self, ids_a, mask_a, ids_b, mask_b):
        features, *marks = self.overlap(ids_a, mask_a, ids_b, mask_b)
        of_only_a, of_both, _ = ops.split(self.tokens(ids_a), 3, axis=-1)
        of_only_b = ops.split(self.tokens(ids_b), 3, axis=-1)[2]
        weights = of_only_a, of_both, of_only_b
        tokens = [
            ops.sum(each * ops.expand_dims(mark, 2), axis=1)
            for each, mark in zip(weights, marks, strict=True)
        ]
        only_a, _, only_b = marks
        slot, fingerprint = pair_keys(ops.expand_dims(ids_a, 2), ops.expand_dims(ids_b, 1), self.slots)
        unmatched = ops.cast(ops.expand_dims(only_a, 2) * ops.expand_dims(only_b, 1), "int32")
        # Row 0, of unknown pairs, is zero.
        rows = known_rows(self.packed, slot, fingerprint) * unmatched
        pairs = ops.sum(self.pairs(rows), axis=(1, 2))
        return features, ops.stack([ops.matmul(features, self.kernel) + self.bias, *tokens, pairs], axis=1)

    def overlap(self, ids_a, mask_a, ids_b, mask_b):
        """The numbers that describe the overlap, and which tokens the texts share.

        Returns:
            The features float32 [B, F]; and float32, 1 at the first occurrence of each word of one token that is only
            in A [B, T], of A in both texts [B, T], and only in B [B, S].
        """
        a, b = self._text(ids_a, mask_a), self._text(ids_b, mask_b)
        sides = a["words"], b["words"]
        (single,) = shared_ngrams(a["keys"], b["keys"], *sides, (1,))
        (stems,) = shared_ngrams(a["stems"], b["stems"], *sides, (1,))
        shared = single, *shared_ngrams(ids_a, ids_b, a["tokens"], b["tokens"], ORDERS[1:]), stems
        features = []
        for order, equal in zip((*ORDERS, 1), shared, strict=True):
            in_b, in_a = ops.max(equal, axis=2), ops.max(equal, axis=1)
            first_a, first_b = a["first"][order - 1], b["first"][order - 1]
            features += _shares(first_a, first_b, in_b, in_a)
            weighted = first_a * a["weights"][order - 1], first_b * b["weights"][order - 1]
            features += _shares(*weighted, in_b, in_a)
        products = ops.sum(single * ops.expand_dims(a["idf"], 2) * ops.expand_dims(b["idf"], 1), axis=(1, 2))
        features.append(products / ops.maximum(a["norm"] * b["norm"], 1e-6))
        features += [self._bm25(a, b, ops.sum(single, axis=2)), self._bm25(b, a, ops.sum(single, axis=1))]
        log_a, log_b = _log(a["length"]), _log(b["length"])
        features += [log_a, log_b, log_a - log_b, _log(ops.abs(a["length"] - b["length"]))]
        in_b, in_a = ops.max(single, axis=2), ops.max(single, axis=1)
        only_a, both, only_b = (
            a["first"][0] * (1.0 - in_b),
            a["first"][0] * in_b,
            b["first"][0] * (1.0 - in_a),
        )
        for marks, side in ((both, a), (only_a, a), (only_b, b)):
            features.append(_log(ops.sum(marks * side["is_number"], axis=1)))
        unmatched = ops.sum(only_a, axis=1) + ops.sum(only_b, axis=1)
        same_length = ops.equal(a["length"], b["length"])
        features.append(ops.cast(ops.logical_and(unmatched < 0.5, same_length), "float32"))
        for marks, side in ((only_a, a), (only_b, b)):
            idf = marks * side["idf"]
            features += [ops.max(idf, axis=1), _log(ops.sum(idf, axis=1)), _log(ops.sum(marks, axis=1))]
        if self.spelling is not None:
            features += self._trigram_features(
                *(self.text_trigrams(*text) for text in ((ids_a, mask_a), (ids_b, mask_b)))
            )
        is_token_a, is_token_b = a["is_token"], b["is_token"]
        return ops.stack(features, axis=-1), only_a * is_token_a, both * is_token_a, only_b * is_token_b

    def text_trigrams(self, ids, mask):
        """Which trigrams of characters a text has, float32 [B, BUCKETS]; from its token ids and mask, int32 [B, T]."""
        assert self.spelling is not None
        tokens, continues = self._tokens(ids, mask)
        return self.spelling(ids, tokens, continues)

    def _trigram_features(self, found_a, found_b):
        features = []
        for weights in (1.0, self.trigram_weights):
            both = ops.sum(found_a * found_b * weights, axis=1)
            # A trigram weighs at least 1, so this changes texts without any only.
            all_a, all_b = (
                ops.maximum(ops.sum(found * weights, axis=1), 1.0) for found in (found_a, found_b)
            )
            features += [both / all_a, both / all_b, both / ops.sqrt(all_a * all_b)]
        return features

    def _tokens(self, ids, mask):
        """Whether each id is a token that counts, and whether it continues a word, int32 [B, T] each."""
        tokens = ops.cast(ids >= self.first_id, "int32") * ops.cast(mask, "int32")
        return tokens, ops.cast(ops.take(self.continues, ids), "int32") * tokens

    def _text(self, ids, mask):
        """The values of one text by name, [B, T] each; those of a word are at its last token."""
        tokens, continues = self._tokens(ids, mask)
        last = tokens * (1 - ops.pad(continues[:, 1:], ((0, 0), (0, 1))))
        stem, is_number = ops.take(self.stems, ids), ops.cast(ops.take(self.is_number, ids), "int32")
        keys, stems, numbers = ids, stem, is_number
        # A word of several tokens has the stem of the first one and a hash of the last ones.
        for _ in range(TOKENS_OF_WORD - 1):
            before, stem_before, number_before = (
                ops.pad(each[:, :-1], ((0, 0), (1, 0))) for each in (keys, stems, numbers)
            )
            keys = ids + continues * (ops.mod(before * MULTIPLIER + ids, LARGEST_TABLE) - ids)
            stems = stem + continues * (stem_before - stem)
            numbers = ops.maximum(is_number, continues * number_before)
        is_token = ops.cast(last * (1 - continues), "float32")
        words, tokens = ops.cast(last, "float32"), ops.cast(tokens, "float32")
        token_idf = ops.take(self.idf, ids) * tokens
        # A word of several tokens is rare.
        idf = token_idf * is_token + self.idf_of_unknown * (words - is_token)
        keys = keys + self.vocabulary_size * last * continues
        positions = ops.arange(ops.shape(ids)[1])
        is_earlier = ops.cast(ops.expand_dims(positions, 1) > ops.expand_dims(positions, 0), "float32")
        (same_words,) = shared_ngrams(keys, keys, words, words, (1,))
        same = same_words, *shared_ngrams(ids, ids, tokens, tokens, ORDERS[1:])
        first, weights, valid, total = [], [], tokens, token_idf
        for order, equal in zip(ORDERS, same, strict=True):
            if order > 1:
                # An n-gram ends where the one before it is followed by a token.
                valid = ops.pad(valid[:, :-1], ((0, 0), (1, 0))) * tokens
                total = ops.pad(total[:, :-1], ((0, 0), (1, 0))) + token_idf
            first.append((words if order == 1 else valid) * (1.0 - ops.max(equal * is_earlier, axis=2)))
            weights.append(idf if order == 1 else total)
        squares = ops.sum(same_words * ops.expand_dims(idf, 2) * ops.expand_dims(idf, 1), axis=(1, 2))
        return {
            "keys": keys,
            "stems": stems,
            "tokens": tokens,
            "words": words,
            "is_token": is_token,
            "idf": idf,
            "first": first,
            "weights": weights,
            "norm": ops.sqrt(ops.maximum(squares, 1e-12)),
            "length": ops.sum(words, axis=1),
            "is_number": ops.cast(numbers, "float32"),
        }

    def _bm25(self, query, document, counts):
        """The BM25 score float32 [B] of a document; `counts` [B, T]: how often it has each token of the query."""
        norm = K1 * (1 - B + B * document["length"] / self.mean_length)
        gains = (K1 + 1) * counts / (counts + ops.expand_dims(norm, 1))
        return ops.sum(query["first"][0] * query["idf"] * gains, axis=1)

    def scale(self, factors) -> None:
        """Multiplies the logits by a number or by one for each label, float [C]."""
        factors = factors * ops.ones(self.num_labels)
        self.tokens.embeddings.assign(self.tokens.embeddings * ops.tile(factors, 3))
        for weight in (self.pairs.embeddings, self.kernel, self.bias):
            weight.assign(weight * factors)


def _shares(weights_a, weights_b, in_b, in_a):
    """The weight of the shared n-grams as a fraction of A, of B and of both: three of float32 [B]."""
    found_a, found_b = ops.sum(weights_a * in_b, axis=1), ops.sum(weights_b * in_a, axis=1)
    all_a, all_b = ops.sum(weights_a, axis=1), ops.sum(weights_b, axis=1)
    parts = ((found_a, all_a), (found_b, all_b), (found_a + found_b, all_a + all_b))
    return [found / ops.maximum(total, 1e-6) for found, total in parts]


def _log(counts):
    # Not log1p, which ONNX lacks.
    return ops.log(1.0 + counts)
