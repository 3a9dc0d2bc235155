"""Graph functions that a SavedModel of texts or pairs serves: predictions, ranking of candidates, text vectors."""

import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from export import names
from export.graph import (
    GraphTokenizer,
    embedded_texts,
    embedding_names,
    ids_function,
    ids_specs,
    input_names,
    output_name,
    pad_tokens,
    text_inputs,
    vectors_function,
)
from export.savedmodel.input_checks import check_inputs, pad_to_compiled_length
from kmha.bundle.bundle import Bundle
from kmha.document_windows import window_shape_of
from kmha.features import TOKEN_IDS
from kmha.inference.retrieval import compare_query, repeat_query

CHUNK_ROWS = 128
# The most attention weights of one head for a chunk: those of 128 pairs of 128 tokens each.
CHUNK_WEIGHTS = CHUNK_ROWS * 128 * 128


class Endpoints(tf.Module):
    """A bundle's variables, and the graph functions of its model. Abstract.

    A plain tf.Module holds the weights once and no optimizer; Keras' own exporters write the weights twice.
    """

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(name="endpoints")
        self.preprocessor = bundle.preprocessor
        self.weights = [variable.value for variable in bundle.model.variables]
        self._labels = bundle.labels
        self._xla = xla
        self._names, self._specs = input_names(bundle), ids_specs(bundle)
        predict = ids_function(bundle)
        # As tf.functions, the tokenizer and the model are in the graph once for all signatures. A plain object holds
        # them, because a tf.Module saves its own tf.functions a second time.
        self._parts = types.SimpleNamespace(
            predict=predict,
            explain=ids_function(bundle, with_attention=True, with_parts=True),
            compiled=tf.function(predict.python_function, autograph=False, jit_compile=True),
        )

    def _specs_by_name(self) -> dict[str, tf.TensorSpec]:
        return dict(zip(self._names, self._specs, strict=True))


class TextEndpoints(Endpoints):
    """The endpoints that classifiers and matchers share. Abstract."""

    # The texts of a row.
    columns: tuple[str, ...]

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._thresholds = bundle.thresholds
        self._abstain_below = bundle.abstain_below
        self._output = output_name(bundle)
        tokenizer, embedded = GraphTokenizer(bundle), embedded_texts(bundle)
        numbers = range(bundle.preprocessor.num_texts) if embedded else ()
        specs = self._specs_by_name()
        self._parts.tokenizer = tokenizer
        self._parts.features = tf.function(
            lambda *texts: tokenizer.features(dict(enumerate(texts))), autograph=False
        )
        self._parts.vectors = {number: vectors_function(bundle, number) for number in numbers}
        self._parts.inputs = {number: text_inputs(bundle, number) for number in numbers}
        self._parts.embedded = embedded
        self._parts.specs = {
            number: {name: specs[name] for name in embedding_names(bundle, number)} for number in numbers
        }

    def predict_ids(self, **inputs):
        """Predicts from token ids between [CLS] and [SEP], as the preprocessor makes them.

        Token ids int32 [B, T] in [0, V), T at most max_length; a [CLS] after the first position is padding. Masks
        int32 [B, T]; above 0 = a real token. Returns "probabilities" float32 [B, C]; of pairs with one score "scores"
        [B, 1].
        """
        return self._parts.predict(*self._checked(inputs))

    def predict_ids_xla(self, **inputs):
        """As `predict_ids`, with a model that XLA compiles for each batch size and compiled length."""
        return self._parts.compiled(
            *pad_to_compiled_length(self._parts.tokenizer.inputs, self._checked(inputs))
        )

    def classify(self, inputs):
        """Classifies serialized tf.Examples, string [B], as TensorFlow Serving's Classify call sends them.

        They have bytes features with the names of the texts. Returns "classes" string [B, C] (all labels, in the order
        of the scores) and "scores" float32 [B, C].
        """
        feature = tf.io.FixedLenFeature([], tf.string)
        examples = tf.io.parse_example(inputs, dict.fromkeys(self.columns, feature))
        scores = self._predict(*(examples[name] for name in self.columns))
        return {names.CLASSES: self._label_rows(scores), names.SCORES: scores}

    def embed(self, text):
        """Unit vectors float32 [B, D] of texts, string [B]; of a matcher's texts B. Returns {"vectors": …}."""
        return self._embed(names.EMBED, text)

    def embed_ids(self, **inputs):
        """As `embed`, from the token ids and masks of one text; see `predict_ids`."""
        return self._embed_ids(names.EMBED, inputs)

    def embed_signatures(self) -> dict[str, Any]:
        """The concrete functions of vectors by signature name; none where the model has no text vectors."""
        if names.EMBED not in self._parts.embedded:
            return {}
        return {
            names.EMBED: concrete_function(self.embed, tf.TensorSpec([None], tf.string, names.TEXT)),
            names.EMBED_IDS: concrete_function(
                self.embed_ids, **self._parts.specs[self._parts.embedded[names.EMBED]]
            ),
        }

    def ids_signatures(self) -> dict[str, Any]:
        """The concrete functions of token ids by signature name, each for batches of any size."""
        specs = self._specs_by_name()
        compiled = (
            {names.PREDICT_IDS_XLA: concrete_function(self.predict_ids_xla, **specs)} if self._xla else {}
        )
        return {names.PREDICT_IDS: concrete_function(self.predict_ids, **specs), **compiled}

    def _embed(self, name: str, text):
        return {names.VECTORS: self._vectors(self._parts.embedded[name], text)}

    def _vectors(self, number: int, text):
        """Unit vectors float32 [B, D] of texts, string [B], in that column of a row."""
        return self._parts.vectors[number](*self._parts.tokenizer.features({number: text}).values())

    def _embed_ids(self, name: str, inputs):
        number = self._parts.embedded[name]
        values = [inputs[each] for each in self._parts.specs[number]]
        return {names.VECTORS: self._parts.vectors[number](*check_inputs(self._parts.inputs[number], values))}

    def _checked(self, inputs):
        return check_inputs(self._parts.tokenizer.inputs, [inputs[name] for name in self._names])

    def _predict(self, *texts):
        """Probabilities or scores float32 [B, C] of columns of texts, string [B] each."""
        features = self._parts.features(*texts)
        return self._parts.predict(*(features[name] for name in self._names))[self._output]

    def _labeled(self, probabilities):
        """The best label string [B] of probabilities [B, C], and all labels and probabilities [B, C]."""
        return {
            names.LABEL: tf.gather(tf.constant(self._labels), tf.argmax(probabilities, axis=-1)),
            names.LABELS: self._label_rows(probabilities),
            names.PROBABILITIES: probabilities,
            **self._abstained(tf.reduce_max(probabilities, axis=-1)),
        }

    def _abstained(self, probabilities):
        """Of a run with a threshold for abstention int32 [B], 1 where the probability is below it."""
        if self._abstain_below is None:
            return {}
        return {names.ABSTAINED: tf.cast(probabilities < tf.constant(self._abstain_below), tf.int32)}

    def _explained(self, *texts):
        """Tokens string [B, T] of every text, attention weights by name, and probabilities or scores [B, C]."""
        features = self._parts.features(*texts)
        tokens = {
            each.ids.replace(TOKEN_IDS, names.TOKENS): tf.gather(
                tf.constant(each.part.vocabulary.tokens), features[each.ids]
            )
            for each in self._parts.tokenizer.inputs
        }
        return {**tokens, **self._parts.explain(*(features[name] for name in self._names))}

    def _label_rows(self, probabilities):
        return tf.broadcast_to(tf.constant(self._labels), tf.shape(probabilities))


class ClassifierEndpoints(TextEndpoints):
    """A classifier's endpoints: tokenizer, model, labels and input checks in one graph."""

    columns = (names.TEXT,)

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._reads_windows = window_shape_of(bundle.model) is not None

    def predict_text(self, text):
        """Classifies texts, string [B].

        Returns "labels" string [B, C] (all labels, in the order of the probabilities), "probabilities" float32 [B,
        C], and "label" string [B], the best one; with several labels instead "given" int32 [B, C]. With a threshold
        for abstention also "abstained" int32 [B], 1 where the label's probability is lower.
        """
        probabilities = self._predict(text)
        if self._thresholds is None:
            return self._labeled(probabilities)
        return {
            names.GIVEN: tf.cast(probabilities >= tf.constant(self._thresholds), tf.int32),
            names.LABELS: self._label_rows(probabilities),
            names.PROBABILITIES: probabilities,
        }

    def explain(self, text):
        """Classifies texts, string [B], and returns the attention weights.

        Returns "tokens" string [B, T], "attention" float32 [B, L, N, T, T] (from a position, the last axis but one,
        to every other; none without encoder blocks) and "probabilities" float32 [B, C]. With a linear path also
        "ngrams" float32 [B, T, orders, C], what the n-grams that end at each token add to the logits, those of n tokens
        at n - 1, and the two parts of the logits, "linear_logits" and "encoder_logits" float32 [B, C].
        """
        return self._explained(text)

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name, each for batches of any size."""
        text, serialized = (tf.TensorSpec([None], tf.string, name) for name in (names.TEXT, names.INPUTS))
        # Attention weights of windows do not belong to one text.
        explain = {} if self._reads_windows else {names.EXPLAIN: concrete_function(self.explain, text)}
        predict_text = concrete_function(self.predict_text, text)
        return {
            names.SERVING_DEFAULT: predict_text,
            names.PREDICT_TEXT: predict_text,
            **self.ids_signatures(),
            names.CLASSIFY: concrete_function(self.classify, serialized),
            **explain,
            **self.embed_signatures(),
        }


def concrete_function(endpoint: Callable, *specs, **named_specs) -> Any:
    """Traces an endpoint for inputs of these specs."""
    function: Any = tf.function(endpoint, autograph=False)
    return function.get_concrete_function(*specs, **named_specs)


class MatcherEndpoints(TextEndpoints):
    """A matcher's endpoints: tokenizers, model, threshold and input checks in one graph."""

    columns = (names.TEXT_A, names.TEXT_B)

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._target, self._form = bundle.model.target, bundle.model.form
        self._parts.scores = scores_function(bundle, self._parts.tokenizer)
        if self._form == "bi":
            model = bundle.model
            self._parts.vector_scores = tf.function(
                lambda query, vectors: model.probabilities(model.score_vectors(query, vectors))[0],
                autograph=False,
            )

    def predict_text(self, text_a, text_b):
        """Scores pairs of texts, string [B] each.

        Returns "score" float32 [B], and with a decision threshold "match" int32 [B], 1 where the score reaches it. Of
        classes "label" string [B], the best one, "labels" string [B, C] and "probabilities" float32 [B, C]. With a
        threshold for abstention also "abstained" int32 [B].
        """
        outputs = self._predict(*_same_rows(text_a, text_b))
        if self._target == "classes":
            return self._labeled(outputs)
        score = outputs[:, 0]
        if self._thresholds is None:
            return {names.SCORE: score}
        match = score >= tf.constant(self._thresholds[0])
        abstained = self._abstained(tf.where(match, score, 1.0 - score))
        return {names.SCORE: score, names.MATCH: tf.cast(match, tf.int32), **abstained}

    def explain(self, text_a, text_b):
        """Scores pairs of texts, string [B] each, and returns the attention weights.

        Returns "tokens_a" string [B, T] and "tokens_b" [B, S], of several granularities "char_tokens_a" and so on;
        weights float32 [B, L, N, T, S] by direction, such as "attention_a_to_b"; and "scores" float32 [B, 1] or
        "probabilities" [B, C].
        """
        return self._explained(*_same_rows(text_a, text_b))

    def rank(self, query, candidates):
        """Sorts candidates, string [N], by their score with a query, string [1].

        Returns "order" int32 [N], the numbers of the candidates from best to worst (equal scores in input order), and
        "scores" float32 [N] in that order.
        """
        return _ranked(self._parts.scores(_single(query), candidates))

    def rank_vectors(self, query, vectors):
        """As `rank`, from vectors float32 [N, D] that `embed` returned."""
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


def chunk_rows(max_length: int) -> int:
    """Candidates in a chunk. It limits memory for any number and length of candidates."""
    return max(1, min(CHUNK_ROWS, CHUNK_WEIGHTS // max_length**2))


def scores_function(bundle: Bundle, tokenizer: GraphTokenizer) -> Any:
    """A graph function of a query, string [1], and candidates, string [N], that returns float32 [N].

    The query is text A of every pair. It is encoded once; only the joint form, which reads both texts as one, encodes
    it with every candidate. Equal candidates are scored once and so get exactly equal scores.
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
