"""python examples/digits.py [EPOCHS]

Trains kmha's encoder layers on images: scikit-learn's handwritten digits, 8 by 8 pixels, split into 16
patches that attend to one another. Compares them with logistic regression on the same rows. One JSON object
on stdout.
"""  # noqa: D415

import json
import os
import sys
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from kmha.layers.encoder_block import EncoderBlock
from kmha.layers.positions import PositionEmbedding

PATCH, PATCHES, DIGITS = 2, 16, 10
EPOCHS, BATCH_ROWS, LEARNING_RATE = 40, 32, 1e-3


def split_into_patches(images: np.ndarray) -> np.ndarray:
    """Splits images float32 [B, 8, 8] into patches of 2 by 2 pixels, row by row: float32 [B, 16, 4]."""
    side = images.shape[1] // PATCH
    squares = images.reshape(-1, side, PATCH, side, PATCH).transpose(0, 1, 3, 2, 4)
    return squares.reshape(-1, side * side, PATCH * PATCH)


class DigitClassifier(keras.Model):
    """Embeds patches, runs encoder blocks over them and concatenates the outputs for the classification head.

    Call:
        patches: float32 [B, 16, 4].
        Returns logits float32 [B, 10].
    """

    def __init__(self, hidden_dim: int = 64, num_heads: int = 4, num_layers: int = 2, dropout: float = 0.3):
        super().__init__()
        self.embedding = keras.layers.Dense(hidden_dim)
        self.positions = PositionEmbedding(PATCHES)
        self.blocks = [
            EncoderBlock(num_heads, 2 * hidden_dim, norm="pre", norm_epsilon=1e-6, dropout=dropout)
            for _ in range(num_layers)
        ]
        self.norm = keras.layers.LayerNormalization()
        # Unlike words, patches have fixed positions: concatenate them instead of pooling.
        self.flatten = keras.layers.Flatten()
        self.dropout = keras.layers.Dropout(dropout)
        self.head = keras.layers.Dense(DIGITS)

    def call(self, patches, training=None):
        """See the class."""
        x = self.positions(self.embedding(patches))
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(self.dropout(self.flatten(self.norm(x)), training=training))


def main(argv: Sequence[str] | None = None) -> int:
    """Trains both models and prints their test accuracy."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    epochs = int(arguments[0]) if arguments else EPOCHS
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = (digits.images / 16).astype("float32")
    train, test, train_labels, labels = train_test_split(
        images, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )

    model = DigitClassifier()
    steps = epochs * -(-len(train) // BATCH_ROWS)
    model.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(split_into_patches(train), train_labels, batch_size=BATCH_ROWS, epochs=epochs, verbose=0)
    predictions = np.argmax(model.predict(split_into_patches(test), verbose=0), axis=1)

    linear = LogisticRegression(max_iter=1000).fit(train.reshape(len(train), -1), train_labels)
    result = {
        "training_rows": len(train),
        "test_rows": len(test),
        "attention": {"accuracy": float(np.mean(predictions == labels)), "weights": model.count_params()},
        "linear": {
            "accuracy": float(linear.score(test.reshape(len(test), -1), labels)),
            "weights": linear.coef_.size + linear.intercept_.size,
        },
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
