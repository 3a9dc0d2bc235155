"""python examples/speech.py [--data recordings.tar.gz] [--epochs 20]

Trains kmha's encoder layers on speech: recordings of spoken digits, of which each token is 40 milliseconds of a
log-mel spectrogram. Compares them with logistic regression on the mean spectrum. One JSON object on stdout.

The data are a tar archive of the Free Spoken Digit Dataset: 8 kHz WAV files `{digit}_{speaker}_{index}.wav`. Recordings
with the indexes 0 to 4 are the test set. Without the archive, "digits" are generated as sequences of two tones.
"""  # noqa: D415

import argparse
import io
import itertools
import json
import os
import re
import sys
import tarfile
import time
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.linear_model import LogisticRegression

from kmha.layers import EncoderBlock, Pooling, PositionEmbedding

DATA = Path(__file__).resolve().parents[2] / "shared/data/fsdd/recordings.tar.gz"
DIGITS, TEST_INDEXES = 10, 5
RATE = 8000  # samples a second
WINDOW, HOP, BANDS = 200, 80, 40  # frames of 25 ms, every 10 ms
FRAMES, TOKENS = 4, 32  # a token has four frames, a recording at most 1.28 seconds
BATCH_ROWS, LEARNING_RATE, EPOCHS = 32, 1e-3, 20


def read_recordings(path: Path) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields digit, index and samples float32 [n] in [-1, 1) of each WAV file of a tar archive."""
    with tarfile.open(path) as archive:
        for member in archive:
            match = re.search(r"(\d)_\w+_(\d+)\.wav$", member.name)
            file = archive.extractfile(member) if match else None
            if match is None or file is None:
                continue
            with wave.open(io.BytesIO(file.read())) as recording:
                form = (recording.getframerate(), recording.getnchannels(), recording.getsampwidth())
                if form != (RATE, 1, 2):
                    raise ValueError(f"{path}:{member.name}: expected 8 kHz, mono, 16 bits, got {form}")
                samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
            yield int(match[1]), int(match[2]), samples.astype("float32") / 2**15


def generate_recordings(rows: int = 1000) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields the same as `read_recordings`: digits that are two tones in noise; some differ in their order only."""
    rng = np.random.default_rng(0)
    tones = list(itertools.permutations((400, 700, 1200, 2000), 2))
    for row in range(rows):
        digit = row % DIGITS
        parts = [
            np.sin(2 * np.pi * hertz * rng.uniform(0.95, 1.05) * np.arange(rng.integers(1200, 2400)) / RATE)
            for hertz in tones[digit]
        ]
        samples = np.concatenate(parts)
        yield digit, row // DIGITS, (0.3 * samples + rng.normal(0, 0.1, len(samples))).astype("float32")


def mel_filters() -> np.ndarray:
    """Triangular filters with equal distances on the mel scale, float32 [WINDOW / 2 + 1, BANDS]."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hertz = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype("float32")


def log_mel(samples: np.ndarray) -> np.ndarray:
    """The log-mel spectrogram of samples float32 [n]: float32 [frames, BANDS], at least one frame."""
    samples = np.pad(samples, (0, max(0, WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW))) ** 2
    return np.log(power @ mel_filters() + 1e-4).astype("float32")


def tokens_of(spectrograms: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Joins frames [n, BANDS], four to a token: float32 [B, TOKENS, 4 * BANDS], and a mask int32 [B, TOKENS]."""
    tokens = np.zeros((len(spectrograms), TOKENS * FRAMES, BANDS), "float32")
    mask = np.zeros((len(spectrograms), TOKENS), "int32")
    for row, frames in enumerate(spectrograms):
        frames = frames[: TOKENS * FRAMES]
        tokens[row, : len(frames)] = frames
        mask[row, : -(-len(frames) // FRAMES)] = 1
    return tokens.reshape(len(spectrograms), TOKENS, FRAMES * BANDS), mask


def build_model(
    hidden_dim: int = 64, num_heads: int = 4, num_layers: int = 2, dropout: float = 0.2
) -> keras.Model:
    """Builds a model from tokens float32 [B, TOKENS, 4 * BANDS] and their mask int32 [B, TOKENS] to logits [B, 10]."""
    tokens = keras.Input((TOKENS, FRAMES * BANDS))
    mask = keras.Input((TOKENS,), dtype="int32")
    x = PositionEmbedding(TOKENS)(keras.layers.Dense(hidden_dim)(tokens))
    for _ in range(num_layers):
        block = EncoderBlock(num_heads, 2 * hidden_dim, norm="pre", norm_epsilon=1e-6, dropout=dropout)
        x = block(x, attention_mask=mask)
    pooled = Pooling("mean")(keras.layers.LayerNormalization()(x), mask)
    logits = keras.layers.Dense(DIGITS)(keras.layers.Dropout(dropout)(pooled))
    return keras.Model([tokens, mask], logits)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains both models and prints their test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA if DATA.exists() else None)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args(argv)
    if arguments.data and not arguments.data.is_file():
        parser.error(f"--data: expected a file, got {arguments.data}")
    start, processor_start = time.perf_counter(), time.process_time()
    keras.utils.set_random_seed(0)
    recordings = list(read_recordings(arguments.data) if arguments.data else generate_recordings())
    labels = np.array([digit for digit, *_ in recordings])
    is_test = np.array([index < TEST_INDEXES for _, index, _ in recordings])
    spectrograms = [log_mel(samples) for *_, samples in recordings]
    frames = np.concatenate([each for each, test in zip(spectrograms, is_test, strict=True) if not test])
    mean, std = frames.mean(axis=0), frames.std(axis=0)
    spectrograms = [(each - mean) / std for each in spectrograms]
    tokens, mask = tokens_of(spectrograms)

    model = build_model()
    steps = arguments.epochs * -(-int((~is_test).sum()) // BATCH_ROWS)
    model.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    train = [tokens[~is_test], mask[~is_test]]
    model.fit(train, labels[~is_test], batch_size=BATCH_ROWS, epochs=arguments.epochs, verbose=0)
    logits = model.predict([tokens[is_test], mask[is_test]], verbose=0)

    means = np.stack([each.mean(axis=0) for each in spectrograms])
    linear = LogisticRegression(max_iter=1000).fit(means[~is_test], labels[~is_test])
    result = {
        "data": arguments.data.name if arguments.data else "generated",
        "training_rows": int((~is_test).sum()),
        "test_rows": int(is_test.sum()),
        "accuracy": float(np.mean(logits.argmax(axis=1) == labels[is_test])),
        "baseline_accuracy": float(linear.score(means[is_test], labels[is_test])),
        "weights": model.count_params(),
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - processor_start, 1),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
