"""What served classifiers and matchers have in common: token ids in, and how texts become them."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from export.graph.embedding import (
    EMBED,
    EMBED_IDS,
    VECTORS,
    embedding_names,
    embeddings,
    text_inputs,
    vectors_function,
)
from export.graph.model_function import (
    PROBABILITIES,
    TextCutter,
    ids_function,
    ids_specs,
    input_names,
    output_name,
)
from export.savedmodel.input_checks import at_compiled_length, checked_inputs
from kmha.bundle.bundle import Bundle
from kmha.document_windows import window_shape_of
from kmha.features import TOKEN_IDS

SERVING_DEFAULT, PREDICT_TEXT, CLASSIFY, EXPLAIN = "serving_default", "predict_text", "classify", "explain"
PREDICT_IDS, PREDICT_IDS_XLA = "predict_ids", "predict_ids_xla"

TEXT, TOKENS, LABEL, LABELS = "text", "tokens", "label", "labels"
ABSTAINED = "abstained"
# The names that TensorFlow Serving's classify method looks for.
INPUTS, CLASSES, SCORES = "inputs", "classes", "scores"


class IdsEndpoints(tf.Module):
    """Answers token ids in a graph. Abstract; `Endpoints` answers texts too, `PairEndpoints` pairs of them.

    A plain tf.Module holds the weights once and no optimizer; Keras' own exporters write them twice.

    Args:
        bundle: A trained bundle.
        xla: Whether `ids_signatures` has the compiled `predict_ids_xla` too.
    """

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(name="endpoints")
        self.preprocessor = bundle.preprocessor
        self.weights = [variable.value for variable in bundle.model.variables]
        self._labels = bundle.labels
        self._thresholds = bundle.thresholds
        self._abstain_below = bundle.abstain_below
        self._xla = xla
        self._reads_windows = window_shape_of(bundle.model) is not None
        self._names = input_names(bundle)
        self._output = output_name(bundle)
        self._specs = ids_specs(bundle)
        answer, cutter = ids_function(bundle), TextCutter(bundle)
        texts = range(bundle.preprocessor.num_texts) if embeddings(bundle) else ()
        named = dict(zip(self._names, self._specs, strict=True))
        # Functions, so that tokenizer and model stand in the graph once for all signatures; in a plain object, since
        # those that a tf.Module holds itself are written once more.
        self._parts = types.SimpleNamespace(
            cutter=cutter,
            features=tf.function(lambda *texts: cutter.features(dict(enumerate(texts))), autograph=False),
            answer=answer,
            explain=ids_function(bundle, with_attention=True),
            compiled=tf.function(answer.python_function, autograph=False, jit_compile=True),
            vectors={text: vectors_function(bundle, text) for text in texts},
            inputs={text: text_inputs(bundle, text) for text in texts},
            embeddings=embeddings(bundle),
            specs={text: {name: named[name] for name in embedding_names(bundle, text)} for text in texts},
        )

    def predict_ids(self, **inputs):
        """Answers token ids between [CLS] and [SEP], such as the preprocessor makes.

        Args:
            **inputs: By the names of `export.graph.model_function.input_names`. Token ids int32 [B, T] in [0, V), T at most max_length;
                a [CLS] after the first position is padding. Masks int32 [B, T]; above 0 = a real token.

        Returns:
            "probabilities" float32 [B, C]; of pairs with one score "scores" float32 [B, 1].
        """
        return self._parts.answer(*self._checked(inputs))

    def predict_ids_xla(self, **inputs):
        """What `predict_ids` answers, from a model compiled by XLA for each batch size and length it meets."""
        return self._parts.compiled(*at_compiled_length(self._parts.cutter.inputs, self._checked(inputs)))

    def embed(self, text):
        """Unit vectors float32 [B, D] of texts, string [B], of pairs of texts B: {"vectors": …}."""
        return self._embedded(EMBED, text)

    def embed_ids(self, **inputs):
        """As `embed`, of token ids and masks; as `predict_ids` takes them, but of one text."""
        return self._embedded_ids(EMBED, inputs)

    def embed_signatures(self) -> dict[str, Any]:
        """The concrete functions of vectors by signature name; none where the model gives a text none."""
        if EMBED not in self._parts.embeddings:
            return {}
        return {
            EMBED: traced(self.embed, tf.TensorSpec([None], tf.string, TEXT)),
            EMBED_IDS: traced(self.embed_ids, **self._parts.specs[self._parts.embeddings[EMBED]]),
        }

    def ids_signatures(self) -> dict[str, Any]:
        """The concrete functions of token ids by signature name, each for batches of any size."""
        specs = dict(zip(self._names, self._specs, strict=True))
        compiled = {PREDICT_IDS_XLA: traced(self.predict_ids_xla, **specs)} if self._xla else {}
        return {PREDICT_IDS: traced(self.predict_ids, **specs), **compiled}

    def _embedded(self, name: str, text):
        return {VECTORS: self._vectors(self._parts.embeddings[name], text)}

    def _vectors(self, number: int, text):
        """Unit vectors float32 [B, D] of texts, string [B], as the one of that number in a row."""
        return self._parts.vectors[number](*self._parts.cutter.features({number: text}).values())

    def _embedded_ids(self, name: str, inputs):
        number = self._parts.embeddings[name]
        given = checked_inputs(
            self._parts.inputs[number], [inputs[each] for each in self._parts.specs[number]]
        )
        return {VECTORS: self._parts.vectors[number](*given)}

    def _checked(self, inputs):
        return checked_inputs(self._parts.cutter.inputs, [inputs[name] for name in self._names])

    def _answers(self, *texts):
        """Probabilities or scores float32 [B, C] of columns of texts, string [B] each."""
        features = self._parts.features(*texts)
        return self._parts.answer(*(features[name] for name in self._names))[self._output]

    def _labelled(self, probabilities):
        """The best label string [B] of probabilities [B, C], and all names and probabilities [B, C]."""
        return {
            LABEL: tf.gather(tf.constant(self._labels), tf.argmax(probabilities, axis=-1)),
            LABELS: self._names_beside(probabilities),
            PROBABILITIES: probabilities,
            **self._abstained(tf.reduce_max(probabilities, axis=-1)),
        }

    def _abstained(self, probabilities):
        """Where the run says so, int32 [B], 1 where an answer of that probability is not to be relied on."""
        if self._abstain_below is None:
            return {}
        return {ABSTAINED: tf.cast(probabilities < tf.constant(self._abstain_below), tf.int32)}

    def _classified(self, inputs, columns: Sequence[str]):
        """All names and probabilities [B, C] of serialized examples, string [B], that hold columns of bytes."""
        feature = tf.io.FixedLenFeature([], tf.string)
        examples = tf.io.parse_example(inputs, dict.fromkeys(columns, feature))
        scores = self._answers(*(examples[name] for name in columns))
        return {CLASSES: self._names_beside(scores), SCORES: scores}

    def _explained(self, *texts):
        """Tokens string [B, T] of every text, attention weights by name, and probabilities or scores [B, C]."""
        features = self._parts.features(*texts)
        tokens = {
            given.ids.replace(TOKEN_IDS, TOKENS): tf.gather(
                tf.constant(given.part.vocabulary.tokens), features[given.ids]
            )
            for given in self._parts.cutter.inputs
        }
        return {**tokens, **self._parts.explain(*(features[name] for name in self._names))}

    def _names_beside(self, probabilities):
        return tf.broadcast_to(tf.constant(self._labels), tf.shape(probabilities))


def traced(answer: Callable, *specs, **named_specs) -> Any:
    """The concrete function of an endpoint."""
    function: Any = tf.function(answer, autograph=False)
    return function.get_concrete_function(*specs, **named_specs)
