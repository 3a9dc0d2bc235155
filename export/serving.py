"""The endpoints that exported models share: a bundle as a tf.Module of variables and graph functions."""

from typing import Any

import tensorflow as tf

from export.ids import PROBABILITIES
from kmha.bundle import Bundle

TEXT = "text"
LABEL, LABELS, GIVEN = "label", "labels", "given"


class Endpoints(tf.Module):
    """Answers strings in one graph: tokenizer, model and labels inside.

    A plain tf.Module holds the weights once and no optimizer; Keras' own exporters write them twice.

    Args:
        bundle: A trained bundle.
    """

    def __init__(self, bundle: Bundle):
        super().__init__(name="endpoints")
        self.preprocessor = bundle.preprocessor
        self.weights = [variable.value for variable in bundle.model.variables]
        # Untracked, or Keras' own bookkeeping would be saved too.
        self._model = self._untracked(bundle.model)
        self._labels = bundle.labels
        self._thresholds = bundle.thresholds

    @staticmethod
    def _untracked(model):
        return lambda features: (model(features, training=False), model)

    @tf.function
    def predict_text(self, text):
        """Answers texts.

        Args:
            text: string [B]; any bytes.

        Returns:
            "labels" string [B, C] (all names, in the order of the probabilities), "probabilities" float32
            [B, C], and "label" string [B], the best one; with several labels instead "given" int32 [B, C].
        """
        features = self.preprocessor(text)
        logits, model = self._model(features)
        probabilities = model.probabilities(logits)
        names = tf.constant(self._labels)
        answer = {
            LABELS: tf.broadcast_to(names, tf.shape(probabilities)),
            PROBABILITIES: probabilities,
        }
        if self._thresholds is None:
            return {LABEL: tf.gather(names, model.decode(logits)), **answer}
        return {GIVEN: model.decode(logits, self._thresholds), **answer}

    def text_signature(self):
        """The concrete function of `predict_text` for a batch of any size."""
        function: Any = self.predict_text
        return function.get_concrete_function(tf.TensorSpec([None], tf.string, name=TEXT))
