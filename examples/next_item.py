"""python examples/next_item.py [--data ratings.csv.gz] [--epochs 6] [--seed 0]

Trains kmha's encoder layers to predict the next item of a user from the items before it, with a causal mask, as in
SASRec (Kang and McAuley 2018, arXiv:1808.09781). The vectors of the items are initialized from counts of neighboring
items. Compares the model with popular items, with the items that most often follow the last one (Markov), and with
those that most often follow any of the last ten (co-occurrence); `mixed` is the weighted mean of the probabilities of
attention and co-occurrence. The last item of each user is the test: hit rate (HR@10) and NDCG@10 of its rank among all
items that the user has not had. One JSON object on stdout.

The data are a CSV file with the columns user_id, movie_id and timestamp, such as the ratings of MovieLens. Without it,
users are generated who watch the episodes of two series in turn.
"""  # noqa: D415

import argparse
import csv
import gzip
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import ops
from scipy.sparse.linalg import svds
from scipy.special import softmax

from kmha.layers import EncoderBlock, PositionEmbedding

DATA = Path(__file__).resolve().parents[2] / "shared/data/ml_latest_small/ratings.csv.gz"
LENGTH, CONTEXT, VECTOR_CONTEXT, TOP = 50, 10, 20, 10
HIDDEN_DIM, BATCH_ROWS, LEARNING_RATE, EPOCHS = 128, 32, 1e-3, 6
# Of the probabilities of attention in `mixed`; chosen on the items before the last.
ATTENTION_SHARE = 0.3


def read_sequences(path: Path) -> list[list[int]]:
    """Reads the items of each user, numbered from 1, in the order of time; ties are in the order of the file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["timestamp"]))
    numbers: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    for row in rows:
        users.setdefault(row["user_id"], []).append(numbers.setdefault(row["movie_id"], len(numbers) + 1))
    return list(users.values())


def generate_sequences(users: int = 400, series: int = 20, episodes: int = 10) -> list[list[int]]:
    """Generates users who watch three to seven episodes of each of two series, in turn."""
    rng = np.random.default_rng(0)
    sequences = []
    for _ in range(users):
        length = rng.integers(3, 8)
        starts = rng.choice(series, 2, replace=False) * episodes + rng.integers(0, episodes - length + 1, 2)
        sequences.append((starts + np.arange(1, length + 1)[:, None]).ravel().tolist())
    return sequences


def training_windows(sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Splits sequences into windows and their next items, both int32 [B, LENGTH], padded on the left with 0."""
    windows = [
        sequence[max(0, end - LENGTH - 1) : end]
        for sequence in sequences
        for end in range(len(sequence), 1, -LENGTH)
    ]
    return pad([window[:-1] for window in windows]), pad([window[1:] for window in windows])


def pad(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """The last LENGTH items of each sequence, int32 [B, LENGTH], padded on the left with 0."""
    return keras.utils.pad_sequences(sequences, LENGTH)


class NextItem(keras.Model):
    """A causal encoder block over item vectors; the vectors of the items are also the weights of the prediction.

    Args:
        vectors: Initial vectors of the items, float32 [num_items + 1, hidden_dim].
        popularity: How often each item occurs, [num_items + 1]; the logarithm is added to the logits.

    Call:
        items: int32 [B, LENGTH], 0 = padding.
        Returns float [B, LENGTH, num_items + 1], the logits of the next item at each position.
    """

    def __init__(self, vectors: np.ndarray, popularity: np.ndarray, num_heads: int = 2, dropout: float = 0.3):
        super().__init__()
        self.embedding = keras.layers.Embedding(
            *vectors.shape, embeddings_initializer=keras.initializers.Constant(vectors)
        )
        self.positions = PositionEmbedding(LENGTH)
        self.block = EncoderBlock(
            num_heads, 2 * vectors.shape[1], norm="pre", norm_epsilon=1e-6, dropout=dropout
        )
        self.norm = keras.layers.LayerNormalization()
        self.dropout = keras.layers.Dropout(dropout)
        self.bias = np.log(popularity + 1).astype("float32")

    def call(self, items, training=None):
        """See the class."""
        x = self.dropout(self.positions(self.embedding(items)), training=training)
        x = self.block(x, attention_mask=items > 0, use_causal_mask=True, training=training)
        return ops.matmul(self.norm(x), ops.transpose(self.embedding.embeddings)) + self.bias

    def scores(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        """Logits of all items as the next one, float32 [users, num_items + 1]."""
        batches = np.array_split(pad(histories), -(-len(histories) // BATCH_ROWS))
        return np.concatenate([ops.convert_to_numpy(self(batch)[:, -1]) for batch in batches])


def followers(histories: Sequence[Sequence[int]], num_items: int, distance: int) -> np.ndarray:
    """How often each item is at most `distance` behind each other one, weighted by 1 / distance: [items, items]."""
    counts = np.zeros((num_items + 1, num_items + 1), "float32")
    for history in map(np.asarray, histories):
        for step in range(1, distance + 1):
            np.add.at(counts, (history[:-step], history[step:]), 1 / step)
    return counts


def item_vectors(histories: Sequence[Sequence[int]], num_items: int) -> np.ndarray:
    """Vectors of items from a singular value decomposition of their positive pointwise mutual information.

    Items that occur in the same places have similar vectors, float32 [num_items + 1, HIDDEN_DIM].
    """
    counts = followers(histories, num_items, VECTOR_CONTEXT)
    counts += counts.T
    totals = np.maximum(counts.sum(axis=0), 1)
    information = np.log(np.maximum(counts / totals * (counts.sum() / totals[:, None]), 1))
    left, sizes, _ = svds(information, HIDDEN_DIM, random_state=0)
    vectors = left * np.sqrt(sizes)
    return (0.1 / vectors.std() * vectors).astype("float32")


def baseline_scores(histories: Sequence[Sequence[int]], num_items: int) -> dict[str, np.ndarray]:
    """Scores [users, num_items + 1] of each baseline; ties are broken by popularity."""
    popularity = np.bincount(np.concatenate(histories), minlength=num_items + 1)
    found = {"popular": np.tile(popularity.astype("float32"), (len(histories), 1))}
    for name, distance in (("markov", 1), ("co_occurrence", CONTEXT)):
        counts, weights = followers(histories, num_items, distance), 1 / np.arange(1, distance + 1)
        rows = [weights[: len(history)] @ counts[history[: -distance - 1 : -1]] for history in histories]
        found[name] = np.stack(rows) + 1e-6 * popularity
    return found


def evaluate(
    scores: np.ndarray, histories: Sequence[Sequence[int]], items: Sequence[int]
) -> dict[str, float]:
    """HR@10 and NDCG@10 of the next items among those that are not in the history."""
    scores = scores.copy()
    scores[:, 0] = -np.inf
    for row, history in zip(scores, histories, strict=True):
        row[history] = -np.inf
    ranks = np.sum(scores > scores[np.arange(len(items)), items][:, None], axis=1)
    gains = np.where(ranks < TOP, 1 / np.log2(ranks + 2), 0)
    return {"hr": float(np.mean(ranks < TOP)), "ndcg": float(np.mean(gains))}


def main(argv: Sequence[str] | None = None) -> int:
    """Trains the model and prints its scores and those of the baselines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA if DATA.exists() else None)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.data and not arguments.data.is_file():
        parser.error(f"--data: expected a file, got {arguments.data}")
    keras.utils.set_random_seed(arguments.seed)
    sequences = read_sequences(arguments.data) if arguments.data else generate_sequences()
    num_items = max(map(max, sequences))
    histories, items = [each[:-1] for each in sequences], [each[-1] for each in sequences]

    start, processor_start = time.perf_counter(), time.process_time()
    popularity = np.bincount(np.concatenate(histories), minlength=num_items + 1)
    model = NextItem(item_vectors(histories, num_items), popularity)
    inputs, targets = training_windows(histories)
    steps = arguments.epochs * -(-len(inputs) // BATCH_ROWS)
    model.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    )
    model.fit(inputs, targets, batch_size=BATCH_ROWS, epochs=arguments.epochs, verbose=0)
    found = {"attention": model.scores(histories), **baseline_scores(histories, num_items)}
    counts = found["co_occurrence"]
    found["mixed"] = ATTENTION_SHARE * softmax(found["attention"], axis=1) + (
        1 - ATTENTION_SHARE
    ) * counts / counts.sum(axis=1, keepdims=True)
    result = {
        "data": arguments.data.name if arguments.data else "generated",
        "users": len(sequences),
        "items": num_items,
        **{name: evaluate(scores, histories, items) for name, scores in found.items()},
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - processor_start, 1),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
