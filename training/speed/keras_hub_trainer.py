"""Trains with KerasHub: BertTextClassifier.fit on texts, padded to one length."""

from collections.abc import Callable, Iterator

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from training.runtime.mixed_precision import POLICIES
from training.speed.workload import Workload, serve

_CHUNK_ROWS = 1024


def make_trainer(work: Workload, precision: str) -> Callable[[int], Iterator[tuple[int, int, int]]]:
    """See `training.speed.workload.serve`."""
    keras.config.set_dtype_policy(POLICIES[precision])
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(vocabulary=work.vocabulary, lowercase=work.lower_case),
        sequence_length=work.max_length,
    )
    num_labels = work.sizes["num_labels"]
    model = keras_hub.models.BertTextClassifier(_backbone(work), num_labels, preprocessor=preprocessor)
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-5, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    tokens = _tokens(preprocessor, work.texts)
    starts = range(0, len(work.texts) - work.batch_rows + 1, work.batch_rows)
    done = 0

    def train(steps: int) -> Iterator[tuple[int, int, int]]:
        nonlocal done
        chosen = [starts[(done + number) % len(starts)] for number in range(steps)]
        done += steps
        rows = [row for first in chosen for row in range(first, first + work.batch_rows)]
        texts, labels = [work.texts[row] for row in rows], [work.labels[row] for row in rows]
        data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(work.batch_rows).prefetch(2)
        model.fit(data, verbose=0)
        for first in chosen:
            yield work.batch_rows, work.max_length, int(tokens[first : first + work.batch_rows].sum())

    return train


def _tokens(preprocessor, texts: list[str]) -> np.ndarray:
    """Number of real tokens of each text, int64 [R]."""
    chunks = [texts[first : first + _CHUNK_ROWS] for first in range(0, len(texts), _CHUNK_ROWS)]
    return np.concatenate([preprocessor(chunk)["padding_mask"].numpy().sum(axis=1) for chunk in chunks])


def _backbone(work: Workload):
    if work.pretrained:
        return keras_hub.models.BertBackbone.from_preset(work.pretrained)
    sizes = {name: size for name, size in work.sizes.items() if name != "num_labels"}
    return keras_hub.models.BertBackbone(**sizes, max_sequence_length=work.max_length)


if __name__ == "__main__":
    serve(make_trainer)
