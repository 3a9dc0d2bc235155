"""From a file of long texts to a classifier with windows, through the commands."""

import dataclasses
import random
import tomllib

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.document_windows import WindowShape
from tests.command_runs import EVERYWHERE, NO_DROPOUT, TINY, call, news_rows, write_csv
from training.embed import main as embed
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.heads import main as heads
from training.predict import main as predict

FLAGS = [
    *TINY,
    *NO_DROPOUT,
    "--train.epochs=8",
    "--train.patience=8",
    "--optimizer.ema-decay=0.9",
    "--no-baseline",
]
WINDOWS = ["--text.max-length=48", "--classify.window=16", "--classify.window-overlap=4"]


def late_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose label appears only after the first window, except for a few short ones."""
    rng = random.Random(seed)
    rows = []
    for number, (text, label) in enumerate(news_rows(count, seed)):
        before = [rng.choice(EVERYWHERE) for _ in range(rng.randint(16, 32) if number % 6 else 0)]
        rows.append((" ".join([*before, text]), label))
    return rows


@dataclasses.dataclass(frozen=True)
class Documents:
    folder: object
    test: object
    metrics: dict
    err: str


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Documents:
    folder = tmp_path_factory.mktemp("documents")
    train = write_csv(folder / "train.csv", late_rows(120, 0))
    test = write_csv(folder / "test.csv", late_rows(40, 1))
    flags = [f"--data.train={train}", f"--data.test={test}", *FLAGS, *WINDOWS, "--train.buckets=3"]
    outcome = call(fit, *flags, "--out", folder / "run")
    assert outcome.status == 0, outcome.err
    return Documents(folder / "run", test, outcome.json, outcome.err)


def test_text_after_the_first_window_is_used(run):
    assert run.metrics["accuracy"] > 0.8, run.err
    bundle = Bundle.load(run.folder)
    assert bundle.model.windows == WindowShape(16, 4)
    assert bundle.model.encoder_config.max_length == 16 and bundle.preprocessor.max_length == 48
    settings = tomllib.loads((run.folder / "config.toml").read_text())["classify"]
    assert (settings["window"], settings["window_overlap"], settings["window_pooling"]) == (16, 4, "mean")
    # The reported number of computed tokens includes the overlap of the windows.
    share = float(run.err.split("times the real tokens")[0].split()[-1])
    assert share > 1.2


def test_predictions_do_not_depend_on_the_batch(run):
    bundle = Bundle.load(run.folder)
    texts = [text for text, _ in late_rows(12, 2)]
    together = bundle.probabilities(texts)
    alone = np.concatenate([bundle.probabilities([text]) for text in texts[:4]])
    np.testing.assert_allclose(together[:4], alone, atol=1e-5)
    (line,) = call(predict, run.folder, stdin=f"{texts[1]}\n".encode()).out.splitlines()
    assert f'"label": "{bundle.labels[together[1].argmax()]}"' in line
    scores = call(evaluate, run.folder, "--data", run.test).json
    assert scores["accuracy"] == pytest.approx(run.metrics["accuracy"], abs=1e-6)


def test_vectors_include_the_end_of_the_text(run):
    near, far = ("new bread " * 20 + "stock bank loan", "new bread " * 20 + "ball goal team")
    outcome = call(embed, run.folder, "--format", "jsonl", stdin=f"{near}\n{far}\n".encode())
    assert outcome.status == 0 and len(outcome.out.splitlines()) == 2
    from kmha.inference.retrieval import TextVectors

    vectors = TextVectors(Bundle.load(run.folder))([near, far])
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


@pytest.mark.second
def test_heads_can_be_pruned(run, tmp_path):
    flags = ["--prune", "0.3", "--out", tmp_path / "pruned", "--learning-rate", "0.01"]
    outcome = call(heads, run.folder, "--data", run.test, *flags)
    assert outcome.status == 0, outcome.err
    assert outcome.json["pruned"]["heads"] == {"before": 2, "after": 1}
    assert Bundle.load(tmp_path / "pruned").model.windows == WindowShape(16, 4)
