"""One text against many, in a graph: the query is cut and encoded once, the candidates in chunks."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from export.graph.model_function import TextCutter, padded
from kmha.bundle.bundle import Bundle
from kmha.inference.ranker import compare_query, repeat_query

CHUNK_ROWS = 128
# Attention weights that a head makes of a chunk, at the most: those of 128 pairs of 128 tokens each.
CHUNK_WEIGHTS = CHUNK_ROWS * 128 * 128


def chunk_rows(max_length: int) -> int:
    """Candidates that are compared together, so that memory has an end whatever their number and length."""
    return max(1, min(CHUNK_ROWS, CHUNK_WEIGHTS // max_length**2))


def scores_function(bundle: Bundle, cutter: TextCutter) -> Any:
    """A graph function of a query, string [1], and candidates, string [N], that gives float32 [N].

    The query is text A of every pair. It is encoded once; only the joint form, which reads both texts as one, encodes
    it with every candidate. Equal candidates are compared once and so get exactly equal scores.

    Args:
        bundle: Of a matcher with one score.
        cutter: Of that bundle.
    """
    model = bundle.model
    rows = chunk_rows(max(given.part.max_length for given in cutter.inputs))

    def scores(query, candidates):
        compare = _comparison(model, cutter.features({0: query}))
        different, places = tf.unique(candidates)
        cut = cutter.cut({1: different})
        # Candidates of similar length together, so that little is computed for padding.
        lengths = tf.add_n([tf.cast(sequences.row_lengths(), tf.int32) for _, sequences in cut])
        order = tf.argsort(lengths, stable=True)

        def chunk(first, found):
            chosen = order[first : first + rows]
            features = padded([(given, tf.gather(ids, chosen)) for given, ids in cut])
            logits = compare(features)
            return first + rows, tf.concat([found, model.probabilities(logits)[:, 0]], axis=0)

        _, found = tf.while_loop(
            lambda first, _: first < tf.size(order),
            chunk,
            [tf.constant(0), tf.zeros([0], tf.float32)],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
            # Chunks side by side would need the memory of all of them.
            parallel_iterations=1,
        )
        return tf.gather(tf.gather(found, tf.math.invert_permutation(order)), places)

    return tf.function(scores, autograph=False)


def vector_scores_function(bundle: Bundle) -> Any:
    """A graph function of the query's vector float32 [1, D] and others [N, D] that gives scores float32 [N]."""
    model = bundle.model

    def scores(query, vectors):
        return model.probabilities(model.score_vectors(query, vectors))[0]

    return tf.function(scores, autograph=False)


def _comparison(model, query: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """What gives logits [B, 1] of the features of some candidates."""
    if model.form == "joint":
        return lambda features: model(repeat_query(query, features), training=False)
    if model.form == "bi":
        vector = model.vectors(query, "a", training=False)
        return lambda features: tf.transpose(
            model.score_vectors(vector, model.vectors(features, "b", training=False))
        )
    encoded = model.encode(query, "a")
    return lambda features: compare_query(model, query, encoded, features)
