"""Scores one query against many candidates in a graph: the query is encoded once, the candidates in chunks."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from export.graph.model_function import GraphTokenizer, pad_tokens
from kmha.bundle.bundle import Bundle
from kmha.inference.ranker import compare_query, repeat_query

CHUNK_ROWS = 128
# The most attention weights of one head for a chunk: those of 128 pairs of 128 tokens each.
CHUNK_WEIGHTS = CHUNK_ROWS * 128 * 128


def chunk_rows(max_length: int) -> int:
    """Candidates in a chunk. It limits memory for any number and length of candidates."""
    return max(1, min(CHUNK_ROWS, CHUNK_WEIGHTS // max_length**2))


def scores_function(bundle: Bundle, tokenizer: GraphTokenizer) -> Any:
    """A graph function of a query, string [1], and candidates, string [N], that returns float32 [N].

    The query is text A of every pair. It is encoded once; only the joint form, which reads both texts as one, encodes
    it with every candidate. Equal candidates are scored once and so get exactly equal scores.

    Args:
        bundle: The bundle of a matcher with one score.
        tokenizer: The bundle's.
    """
    model = bundle.model
    rows = chunk_rows(max(each.part.max_length for each in tokenizer.inputs))

    def scores(query, candidates):
        compare = _comparison(model, tokenizer.features({0: query}))
        different, places = tf.unique(candidates)
        tokens = tokenizer.tokenize({1: different})
        # Candidates of similar length share a chunk, so that little is computed for padding.
        lengths = tf.add_n([tf.cast(sequences.row_lengths(), tf.int32) for _, sequences in tokens])
        order = tf.argsort(lengths, stable=True)

        def chunk(first, found):
            chosen = order[first : first + rows]
            features = pad_tokens([(each, tf.gather(ids, chosen)) for each, ids in tokens])
            logits = compare(features)
            return first + rows, tf.concat([found, model.probabilities(logits)[:, 0]], axis=0)

        _, found = tf.while_loop(
            lambda first, _: first < tf.size(order),
            chunk,
            [tf.constant(0), tf.zeros([0], tf.float32)],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
            # Parallel chunks would need the memory of all of them.
            parallel_iterations=1,
        )
        return tf.gather(tf.gather(found, tf.math.invert_permutation(order)), places)

    return tf.function(scores, autograph=False)


def vector_scores_function(bundle: Bundle) -> Any:
    """A graph function of the query's vector float32 [1, D] and others [N, D] that returns scores float32 [N]."""
    model = bundle.model

    def scores(query, vectors):
        return model.probabilities(model.score_vectors(query, vectors))[0]

    return tf.function(scores, autograph=False)


def _comparison(model, query: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """A function of the features of candidates that returns logits [B, 1]."""
    if model.form == "joint":
        return lambda features: model(repeat_query(query, features), training=False)
    if model.form == "bi":
        vector = model.vectors(query, "a", training=False)
        return lambda features: tf.transpose(
            model.score_vectors(vector, model.vectors(features, "b", training=False))
        )
    encoded = model.encode(query, "a")
    return lambda features: compare_query(model, query, encoded, features)
