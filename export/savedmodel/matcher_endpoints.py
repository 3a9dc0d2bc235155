"""Graph functions of a served matcher: scores of pairs, ranking of candidates, and text vectors."""

from typing import Any

import tensorflow as tf

from export import names
from export.graph.ranking import scores_function, vector_scores_function
from export.savedmodel.endpoints import TextEndpoints, concrete_function
from kmha.bundle.bundle import Bundle


class MatcherEndpoints(TextEndpoints):
    """A matcher's endpoints: tokenizers, model, threshold and input checks in one graph."""

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._target, self._form = bundle.model.target, bundle.model.form
        self._parts.scores = scores_function(bundle, self._parts.tokenizer)
        if self._form == "bi":
            self._parts.vector_scores = vector_scores_function(bundle)

    def predict_text(self, text_a, text_b):
        """Scores pairs of texts.

        Args:
            text_a: string [B]; any bytes.
            text_b: string [B].

        Returns:
            "score" float32 [B], and with a decision threshold "match" int32 [B], 1 where the score reaches it. Of
            classes "label" string [B], the best one, "labels" string [B, C] and "probabilities" float32 [B, C]. With
            a threshold for abstention also "abstained" int32 [B].
        """
        outputs = self._predict(*_same_rows(text_a, text_b))
        if self._target == "classes":
            return self._labelled(outputs)
        score = outputs[:, 0]
        if self._thresholds is None:
            return {names.SCORE: score}
        match = score >= tf.constant(self._thresholds[0])
        abstained = self._abstained(tf.where(match, score, 1.0 - score))
        return {names.SCORE: score, names.MATCH: tf.cast(match, tf.int32), **abstained}

    def classify(self, inputs):
        """Classifies serialized examples, as TensorFlow Serving's Classify call sends them.

        Args:
            inputs: string [B]; each a tf.Example with the bytes features "text_a" and "text_b".

        Returns:
            "classes" string [B, C] (all labels, in the order of the scores) and "scores" float32 [B, C].
        """
        return self._classified(inputs, [names.TEXT_A, names.TEXT_B])

    def explain(self, text_a, text_b):
        """Scores pairs of texts and returns the attention weights.

        Args:
            text_a: string [B]; any bytes.
            text_b: string [B].

        Returns:
            "tokens_a" string [B, T] and "tokens_b" [B, S], of several granularities "char_tokens_a" and so on; weights
            float32 [B, L, N, T, S] by direction, such as "attention_a_to_b"; and "scores" float32 [B, 1] or
            "probabilities" [B, C].
        """
        return self._explained(*_same_rows(text_a, text_b))

    def rank(self, query, candidates):
        """Sorts candidates by their score with a query.

        Args:
            query: string [1], text A of every pair.
            candidates: string [N], texts B; N may be 0.

        Returns:
            "order" int32 [N], the numbers of the candidates from best to worst (equal scores in input order), and
            "scores" float32 [N] in that order.
        """
        return _ranked(self._parts.scores(_single(query), candidates))

    def rank_vectors(self, query, vectors):
        """Sorts texts by their score with a query, from vectors that `embed` returned.

        Args:
            query: string [1].
            vectors: float32 [N, D]; N may be 0.

        Returns:
            As `rank`.
        """
        return _ranked(self._parts.vector_scores(self._vectors(0, _single(query)), vectors))

    def embed_query(self, text):
        """Unit vectors float32 [B, D] of queries, string [B], where queries have their own encoder."""
        return self._embed(names.EMBED_QUERY, text)

    def embed_query_ids(self, **inputs):
        """As `embed_query`, from token ids and masks."""
        return self._embed_ids(names.EMBED_QUERY, inputs)

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name, as the matcher's form and target allow."""
        texts = [_strings(name) for name in (names.TEXT_A, names.TEXT_B)]
        predict_text = concrete_function(self.predict_text, *texts)
        found = {
            names.SERVING_DEFAULT: predict_text,
            names.PREDICT_TEXT: predict_text,
            **self.ids_signatures(),
            names.EXPLAIN: concrete_function(self.explain, *texts),
        }
        if self._target == "classes":
            return {**found, names.CLASSIFY: concrete_function(self.classify, _strings(names.INPUTS))}
        found[names.RANK] = concrete_function(self.rank, _strings(names.QUERY), _strings(names.CANDIDATES))
        if self._form != "bi":
            return found
        found |= self.embed_signatures()
        dim = found[names.EMBED].structured_outputs[names.VECTORS].shape[-1]
        vectors = tf.TensorSpec([None, dim], tf.float32, names.VECTORS)
        found[names.RANK_VECTORS] = concrete_function(self.rank_vectors, _strings(names.QUERY), vectors)
        if names.EMBED_QUERY in self._parts.embedded:
            specs = self._parts.specs[self._parts.embedded[names.EMBED_QUERY]]
            found[names.EMBED_QUERY] = concrete_function(self.embed_query, _strings(names.TEXT))
            found[names.EMBED_QUERY_IDS] = concrete_function(self.embed_query_ids, **specs)
        return found


def _strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name)


def _ranked(scores):
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    return {names.ORDER: order, names.SCORES: tf.gather(scores, order)}


def _single(query):
    """Checks that there is one query: a server that joins two requests would mix up their candidates."""
    size = tf.size(query)
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.equal(size, 1), [f"{names.QUERY} must be one text, got", size])]
    ):
        return tf.identity(query)


def _same_rows(text_a, text_b):
    """Checks that both columns have the same number of rows."""
    sizes = [tf.size(text_a), tf.size(text_b)]
    message = [f"{names.TEXT_B} must have as many rows as {names.TEXT_A},", sizes[0], "got", sizes[1]]
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(*sizes), message)]):
        return tf.identity(text_a), tf.identity(text_b)
