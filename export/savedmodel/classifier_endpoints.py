"""The endpoints of a served model: a bundle as a tf.Module of variables and graph functions."""

from typing import Any

import tensorflow as tf

from export.graph.model_function import PROBABILITIES
from export.savedmodel.endpoints import (
    CLASSIFY,
    EXPLAIN,
    INPUTS,
    LABELS,
    PREDICT_TEXT,
    SERVING_DEFAULT,
    TEXT,
    IdsEndpoints,
    traced,
)
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY as CLASSIFY_TASK
from kmha.bundle.manifest import MATCH, TAG

GIVEN = "given"


class Endpoints(IdsEndpoints):
    """Answers strings or token ids in one graph: tokenizer, model, labels and checks inside.

    Args:
        bundle: A trained classifier's.
        xla: Whether `signatures` has the compiled `predict_ids_xla` too.
    """

    def predict_text(self, text):
        """Answers texts.

        Args:
            text: string [B]; any bytes.

        Returns:
            "labels" string [B, C] (all names, in the order of the probabilities), "probabilities" float32
            [B, C], and "label" string [B], the best one; with several labels instead "given" int32 [B, C]. With a
            probability to abstain below also "abstained" int32 [B], 1 where that of the label is lower.
        """
        probabilities = self._answers(text)
        if self._thresholds is None:
            return self._labelled(probabilities)
        return {
            GIVEN: tf.cast(probabilities >= tf.constant(self._thresholds), tf.int32),
            LABELS: self._names_beside(probabilities),
            PROBABILITIES: probabilities,
        }

    def classify(self, inputs):
        """Answers serialized examples, as TensorFlow Serving's Classify call sends them.

        Args:
            inputs: string [B]; each a tf.Example with a bytes feature "text".

        Returns:
            "classes" string [B, C] (all names, in the order of the scores) and "scores" float32 [B, C].
        """
        return self._classified(inputs, [TEXT])

    def explain(self, text):
        """Answers texts and shows what the model looked at.

        Args:
            text: string [B]; any bytes.

        Returns:
            "tokens" string [B, T], "attention" float32 [B, L, N, T, T] (from a position, the last axis but one, to
            every other) and "probabilities" float32 [B, C].
        """
        return self._explained(text)

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name, each for batches of any size; `explain` is none of windows."""
        text, serialized = (tf.TensorSpec([None], tf.string, name) for name in (TEXT, INPUTS))
        # Who looks at whom is told of texts that are read whole.
        explain = {} if self._reads_windows else {EXPLAIN: traced(self.explain, text)}
        predict_text = traced(self.predict_text, text)
        return {
            SERVING_DEFAULT: predict_text,
            PREDICT_TEXT: predict_text,
            **self.ids_signatures(),
            CLASSIFY: traced(self.classify, serialized),
            **explain,
            **self.embed_signatures(),
        }


def endpoints(bundle: Bundle, xla: bool = False) -> Any:
    """The endpoints of a classifier, a matcher or a tagger; all have `signatures`.

    Args:
        bundle: A trained bundle.
        xla: Whether there is a signature that XLA compiles.
    """
    from export.savedmodel.matcher_endpoints import PairEndpoints
    from export.savedmodel.tagger_endpoints import TaggerEndpoints

    return {CLASSIFY_TASK: Endpoints, MATCH: PairEndpoints, TAG: TaggerEndpoints}[bundle.task](bundle, xla)
