"""Trains a small model on one device and on two replicas: of every task except classification, and a distilled tagger.

Prints how far they are apart.

A process of its own, as for `replica_worker`. From the root of the repository:

    python -m tests.training.task_replica_worker '{"task": "tag", "xla": true}'
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from kmha.bundle.bundle import parts_of  # noqa: E402
from kmha.config import EncoderConfig  # noqa: E402
from tests.bundles import make_tagger_bundle  # noqa: E402
from tests.pair_rows import ranking_rows  # noqa: E402
from tests.tagged_sentences import tagged_sentences  # noqa: E402
from tests.training.tiny_runs import distance, trainable  # noqa: E402
from training.config.config import DistillSection, FitConfig, TextSection  # noqa: E402
from training.data.inputs import Inputs, make_inputs  # noqa: E402
from training.data.load import Data  # noqa: E402
from training.distillation.task import add_teacher_predictions, trainable_part  # noqa: E402
from training.engine.optimizer import AdamW  # noqa: E402
from training.engine.train_step import TrainingStep, make_strategy  # noqa: E402
from training.io.examples import Columns, Example, Subset, write_examples  # noqa: E402
from training.tasks.masked_lm import MaskedLmTask  # noqa: E402
from training.tasks.match.task import MatchTask  # noqa: E402
from training.tasks.tag.task import TagTask  # noqa: E402

EPOCHS, LENGTH = 3, 16
MATCH = MatchTask(target="binary", loss="listwise", best_by="map", overlap=True, dropout=0.0)
TAG = TagTask(
    scheme="bio",
    given_scheme="bio",
    best_by="span_f1",
    split="words",
    characters=True,
    character_dim=8,
    dropout=0.0,
)

MASKED_LM = MaskedLmTask(share=0.3)


def read_texts(folder: Path) -> Inputs:
    """Texts of which several make a row; the rows have different numbers of masked tokens."""
    examples = write_examples(
        (
            Example((" ".join(words[: 1 + number % 9]),), (), "a")
            for number, (words, _) in enumerate(tagged_sentences(118, seed=0))
        ),
        folder,
    )
    parts = {"train": Subset(examples, np.arange(len(examples)))}
    return make_inputs(TextSection(max_length=LENGTH, vocabulary_size=200), parts, folder, MASKED_LM)


def read_sentences(folder: Path) -> Inputs:
    """Sentences of one window and of several."""
    examples = write_examples(
        (
            Example(("\n".join(words),), tuple(tags), "a", ordered=True)
            for words, tags in tagged_sentences(33, seed=0)
        ),
        folder,
    )
    parts = {"train": Subset(examples, np.arange(len(examples)))}
    return make_inputs(TextSection(max_length=LENGTH, vocabulary_size=200), parts, folder, TAG)


def read_lists(folder: Path) -> Inputs:
    """Lists of five candidates, and of two."""
    rows = [
        *ranking_rows(8, 5, seed=0),
        *((*row[:3], f"short {row[3]}") for row in ranking_rows(5, 2, seed=1)),
    ]
    examples = write_examples(
        (Example((a, b), (str(label),), "a", query) for a, b, label, query in rows), folder, num_texts=2
    )
    parts = {"train": Subset(examples, np.arange(len(examples)))}
    return make_inputs(TextSection(max_length=LENGTH, vocabulary_size=200), parts, folder, MATCH)


def read_distilled(folder: Path) -> tuple[Any, Inputs]:
    """Sentences with tags and without, for the student of a larger tagger."""
    teacher = make_tagger_bundle(("B-LOC", "O", "B-PER", "I-PER"), hidden_dim=24)
    teacher.save(folder / "run")
    text = TextSection(max_length=LENGTH, vocabulary=folder / "run" / "vocab.txt", lower_case=True)
    sets = [
        write_examples(
            (
                Example(("\n".join(words),), tuple(tags) if tagged else (), "a", ordered=True)
                for words, tags in tagged_sentences(count, seed)
            ),
            folder / str(seed),
        )
        for count, seed, tagged in ((20, 0, True), (13, 1, False))
    ]
    train, texts = (Subset(examples, np.arange(len(examples))) for examples in sets)
    distill = DistillSection(teacher=folder / "run", hidden_states=0.5, attention=0.5)
    labels = TAG.output_names([], train)
    data: Any = Data(TAG, Columns(""), labels, train, train, None, None, {}, train.examples.digests, texts)  # pyright: ignore
    data, inputs = add_teacher_predictions(
        FitConfig(task="tag", text=text, distill=distill),
        data,
        make_inputs(text, data.parts, folder, TAG),
        folder,
    )
    return data.task, inputs


def train(task: Any, inputs: Inputs, strategy: tf.distribute.Strategy, xla: bool) -> dict:
    """Trains for some epochs, whose batches are the same rows whatever the strategy is."""
    keras.utils.set_random_seed(1)
    replicas = strategy.num_replicas_in_sync
    labels = task.output_names([], inputs.parts["train"])
    source = inputs.source(
        "train", task.training_set(inputs.parts["train"], labels, 0), divisor=replicas, full_shapes=xla
    )
    with strategy.scope():
        (part,) = parts_of(inputs.preprocessor).values()
        encoder = EncoderConfig(
            len(part.vocabulary),
            max_length=LENGTH,
            hidden_dim=16,
            num_layers=1,
            num_heads=2,
            intermediate_dim=24,
            num_segments=0,
            dropout=0.0,
            attention_dropout=0.0,
            ngram_buckets=31,
            ngram_dim=8,
        )
        model = task.build_model({"": encoder}, labels)
        task.initialize(model, source)
        trained = trainable_part(task, model)
        step = TrainingStep(
            trained,
            task.row_losses,
            # The loss does not depend on the head bias. Its gradient is rounding errors, not to be scaled up.
            AdamW(trainable(trained), lambda step: tf.constant(3e-2), epsilon=1e-2),
            strategy,
            jit_compile=xla,
            forward=lambda features: task.forward(trained, features),
        )
    before = [variable.numpy() for variable in trainable(trained)]
    fillers, sums = 0, {}
    for epoch in range(EPOCHS):
        for plan in source.plans(source.buckets([], 2), 400, 16, np.random.default_rng(epoch)):
            batch = source.batch(plan)
            fillers += len(batch["weights"]) - len(plan.rows)
            sums = step(batch)
    after = [variable.numpy() for variable in trainable(trained)]
    return {
        "after": after,
        "moved": distance(after, before),
        "fillers": fillers,
        "steps": step.optimizer.steps_done,
        "sums": [float(sums["loss"]), float(sums["weight"])],
    }


def main() -> None:
    """Prints one JSON object."""
    case = json.loads(sys.argv[1])
    # A warning of Keras when it reads variables with NumPy 2, as in pyproject.toml.
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning, "keras")
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    with tempfile.TemporaryDirectory() as folder:
        readers = {
            "match": (MATCH, read_lists),
            "tag": (TAG, read_sentences),
            "masked-lm": (MASKED_LM, read_texts),
        }
        xla = case.get("xla", False)
        if case["task"] == "distilled":
            task, inputs = read_distilled(Path(folder))
        else:
            task, read = readers[case["task"]]
            inputs = read(Path(folder))
        one, two = (train(task, inputs, make_strategy(name), xla) for name in ("one", "mirrored"))
    apart = distance(one.pop("after"), two.pop("after"))
    print(json.dumps({"apart": apart, "one": one, "two": two}))


if __name__ == "__main__":
    main()
