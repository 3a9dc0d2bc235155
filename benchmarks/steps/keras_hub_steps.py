"""Fine-tunes MiniLM as keras_hub's users do: BertTextClassifier.fit on texts, padded to one length."""

import sys
from pathlib import Path

import keras
import keras_hub
import tensorflow as tf

from benchmarks.steps.rows import answer, read_rows


def main(path: str, batch: int, length: int, precision: str, model_folder: str) -> None:
    """Answers requests."""
    texts, labels, classes = read_rows(path)
    if precision == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(vocabulary=str(Path(model_folder) / "vocab.txt"), lowercase=True),
        sequence_length=length,
    )
    backbone = keras_hub.models.BertBackbone.from_preset(model_folder)
    model = keras_hub.models.BertTextClassifier(backbone, classes, preprocessor=preprocessor)
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-5, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    starts = [i for i in range(0, len(texts) - batch + 1, batch)]
    state = {"next": 0}

    def train(steps) -> int:
        count = sum(1 for _ in steps)
        chosen = [starts[(state["next"] + i) % len(starts)] for i in range(count)]
        state["next"] += count
        rows = [row for first in chosen for row in range(first, first + batch)]
        x, y = [texts[row] for row in rows], [labels[row] for row in rows]
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).prefetch(2)
        model.fit(data, verbose=0)
        mask = preprocessor(x)["padding_mask"]
        return int(tf.reduce_sum(tf.cast(mask, tf.int32)))

    answer(train)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
