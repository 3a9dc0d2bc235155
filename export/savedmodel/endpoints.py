"""Graph functions that a SavedModel serves: what all kinds of models share, and those of classifiers."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from export import names
from export.graph.embedding import embedded_texts, embedding_names, text_inputs, vectors_function
from export.graph.model_function import GraphTokenizer, ids_function, ids_specs, input_names, output_name
from export.savedmodel.input_checks import check_inputs, pad_to_compiled_length
from kmha.bundle.bundle import Bundle
from kmha.document_windows import window_shape_of
from kmha.features import TOKEN_IDS


class Endpoints(tf.Module):
    """A bundle's variables, and the graph functions of its model. Abstract.

    A plain tf.Module holds the weights once and no optimizer; Keras' own exporters write the weights twice.

    Args:
        bundle: A trained bundle.
        xla: Whether the signatures include the compiled `predict_ids_xla`.
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
            explain=ids_function(bundle, with_attention=True),
            compiled=tf.function(predict.python_function, autograph=False, jit_compile=True),
        )

    def _specs_by_name(self) -> dict[str, tf.TensorSpec]:
        return dict(zip(self._names, self._specs, strict=True))


class TextEndpoints(Endpoints):
    """The endpoints that classifiers and matchers share. Abstract."""

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

        Args:
            **inputs: By the names of `export.graph.model_function.input_names`. Token ids int32 [B, T] in [0, V), T at
                most max_length; a [CLS] after the first position is padding. Masks int32 [B, T]; above 0 = a real
                token.

        Returns:
            "probabilities" float32 [B, C]; of pairs with one score "scores" float32 [B, 1].
        """
        return self._parts.predict(*self._checked(inputs))

    def predict_ids_xla(self, **inputs):
        """As `predict_ids`, with a model that XLA compiles for each batch size and compiled length."""
        return self._parts.compiled(
            *pad_to_compiled_length(self._parts.tokenizer.inputs, self._checked(inputs))
        )

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

    def _labelled(self, probabilities):
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

    def _classified(self, inputs, columns: Sequence[str]):
        """All labels and probabilities [B, C] of serialized examples, string [B], with these bytes features."""
        feature = tf.io.FixedLenFeature([], tf.string)
        examples = tf.io.parse_example(inputs, dict.fromkeys(columns, feature))
        scores = self._predict(*(examples[name] for name in columns))
        return {names.CLASSES: self._label_rows(scores), names.SCORES: scores}

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

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._reads_windows = window_shape_of(bundle.model) is not None

    def predict_text(self, text):
        """Classifies texts.

        Args:
            text: string [B]; any bytes.

        Returns:
            "labels" string [B, C] (all labels, in the order of the probabilities), "probabilities" float32
            [B, C], and "label" string [B], the best one; with several labels instead "given" int32 [B, C]. With a
            threshold for abstention also "abstained" int32 [B], 1 where the label's probability is lower.
        """
        probabilities = self._predict(text)
        if self._thresholds is None:
            return self._labelled(probabilities)
        return {
            names.GIVEN: tf.cast(probabilities >= tf.constant(self._thresholds), tf.int32),
            names.LABELS: self._label_rows(probabilities),
            names.PROBABILITIES: probabilities,
        }

    def classify(self, inputs):
        """Classifies serialized examples, as TensorFlow Serving's Classify call sends them.

        Args:
            inputs: string [B]; each a tf.Example with a bytes feature "text".

        Returns:
            "classes" string [B, C] (all labels, in the order of the scores) and "scores" float32 [B, C].
        """
        return self._classified(inputs, [names.TEXT])

    def explain(self, text):
        """Classifies texts and returns the attention weights.

        Args:
            text: string [B]; any bytes.

        Returns:
            "tokens" string [B, T], "attention" float32 [B, L, N, T, T] (from a position, the last axis but one, to
            every other) and "probabilities" float32 [B, C].
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
