"""The endpoints of a served matcher: pairs of texts, one text against many, and vectors to keep."""

from typing import Any

import tensorflow as tf

from export.graph.embedding import EMBED, EMBED_QUERY, EMBED_QUERY_IDS, VECTORS
from export.graph.ranking import scores_function, vector_scores_function
from export.savedmodel.endpoints import (
    CLASSIFY,
    EXPLAIN,
    INPUTS,
    PREDICT_TEXT,
    SCORES,
    SERVING_DEFAULT,
    TEXT,
    IdsEndpoints,
    traced,
)
from kmha.bundle.bundle import Bundle

RANK, RANK_VECTORS = "rank", "rank_vectors"

TEXT_A, TEXT_B = "text_a", "text_b"
QUERY, CANDIDATES = "query", "candidates"
SCORE, MATCH, ORDER = "score", "match", "order"


class PairEndpoints(IdsEndpoints):
    """Answers pairs of strings or of token ids in one graph: tokenizers, model, threshold and checks inside.

    Args:
        bundle: A trained matcher's.
        xla: Whether `signatures` has the compiled `predict_ids_xla` too.
    """

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        model = bundle.model
        self._target, self._form = model.target, model.form
        self._parts.scores = scores_function(bundle, self._parts.cutter)
        if self._form == "bi":
            self._parts.vector_scores = vector_scores_function(bundle)

    def predict_text(self, text_a, text_b):
        """Answers pairs of texts.

        Args:
            text_a: string [B]; any bytes.
            text_b: string [B].

        Returns:
            "score" float32 [B], and where a threshold decides "match" int32 [B], 1 where the score reaches it. Of
            classes "label" string [B], the best one, "labels" string [B, C] and "probabilities" float32 [B, C]. With
            a probability to abstain below also "abstained" int32 [B].
        """
        answers = self._answers(*_same_rows(text_a, text_b))
        if self._target == "classes":
            return self._labelled(answers)
        score = answers[:, 0]
        if self._thresholds is None:
            return {SCORE: score}
        match = score >= tf.constant(self._thresholds[0])
        sure = self._abstained(tf.where(match, score, 1.0 - score))
        return {SCORE: score, MATCH: tf.cast(match, tf.int32), **sure}

    def classify(self, inputs):
        """Answers serialized examples, as TensorFlow Serving's Classify call sends them.

        Args:
            inputs: string [B]; each a tf.Example with the bytes features "text_a" and "text_b".

        Returns:
            "classes" string [B, C] (all names, in the order of the scores) and "scores" float32 [B, C].
        """
        return self._classified(inputs, [TEXT_A, TEXT_B])

    def explain(self, text_a, text_b):
        """Answers pairs of texts and shows what the model looked at.

        Args:
            text_a: string [B]; any bytes.
            text_b: string [B].

        Returns:
            "tokens_a" string [B, T] and "tokens_b" [B, S], of several granularities "char_tokens_a" and so on; weights
            float32 [B, L, N, T, S] by who looks at whom, such as "attention_a_to_b"; and "scores" float32 [B, 1] or
            "probabilities" [B, C].
        """
        return self._explained(*_same_rows(text_a, text_b))

    def rank(self, query, candidates):
        """Sorts candidates by how well they match a query.

        Args:
            query: string [1], text A of every pair.
            candidates: string [N], texts B; N may be 0.

        Returns:
            "order" int32 [N], the numbers of the candidates, the best first and equal ones as given, and "scores"
            float32 [N] in that order.
        """
        return _ranked(self._parts.scores(_one(query), candidates))

    def rank_vectors(self, query, vectors):
        """Sorts texts by how well they match a query, from vectors that `embed` gave before.

        Args:
            query: string [1].
            vectors: float32 [N, D]; N may be 0.

        Returns:
            As `rank`.
        """
        return _ranked(self._parts.vector_scores(self._vectors(0, _one(query)), vectors))

    def embed_query(self, text):
        """Unit vectors float32 [B, D] of queries, string [B], where they have an encoder of their own."""
        return self._embedded(EMBED_QUERY, text)

    def embed_query_ids(self, **inputs):
        """As `embed_query`, of token ids and masks."""
        return self._embedded_ids(EMBED_QUERY, inputs)

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name: those that the form and the target of the matcher have."""
        texts = [_strings(name) for name in (TEXT_A, TEXT_B)]
        predict_text = traced(self.predict_text, *texts)
        found = {
            SERVING_DEFAULT: predict_text,
            PREDICT_TEXT: predict_text,
            **self.ids_signatures(),
            EXPLAIN: traced(self.explain, *texts),
        }
        if self._target == "classes":
            return {**found, CLASSIFY: traced(self.classify, _strings(INPUTS))}
        found[RANK] = traced(self.rank, _strings(QUERY), _strings(CANDIDATES))
        if self._form != "bi":
            return found
        found |= self.embed_signatures()
        dim = found[EMBED].structured_outputs[VECTORS].shape[-1]
        vectors = tf.TensorSpec([None, dim], tf.float32, VECTORS)
        found[RANK_VECTORS] = traced(self.rank_vectors, _strings(QUERY), vectors)
        if EMBED_QUERY in self._parts.embeddings:
            specs = self._parts.specs[self._parts.embeddings[EMBED_QUERY]]
            found[EMBED_QUERY] = traced(self.embed_query, _strings(TEXT))
            found[EMBED_QUERY_IDS] = traced(self.embed_query_ids, **specs)
        return found


def _strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name)


def _ranked(scores):
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    return {ORDER: order, SCORES: tf.gather(scores, order)}


def _one(query):
    """The query, once it is known to be one: a server that joined two requests would mix up their candidates."""
    size = tf.size(query)
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.equal(size, 1), [f"{QUERY} must be one text, got", size])]
    ):
        return tf.identity(query)


def _same_rows(text_a, text_b):
    """Both columns, once they are known to be equally long."""
    sizes = [tf.size(text_a), tf.size(text_b)]
    message = [f"{TEXT_B} must have as many rows as {TEXT_A},", sizes[0], "given", sizes[1]]
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(*sizes), message)]):
        return tf.identity(text_a), tf.identity(text_b)
