"""From a file of examples to a served model, through the commands."""

import json
import random

import numpy as np
import pytest

from export.savedmodel.__main__ import main as savedmodel
from export.savedmodel.predictor import load_savedmodel
from kmha.bundle.bundle import Bundle
from tests.command_runs import EVERYWHERE, NO_DROPOUT, TINY, WORDS, call, write_csv
from tests.stages import with_stages
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.predict import main as predict

TEXTS = ["soup bread", "", "ball 中文 goal"]


@pytest.mark.parametrize("name", with_stages(["news_run", "topics_run"], ["news_run"]))
def test_the_predictions_of_a_run_and_of_its_saved_model_are_equal(name, request, tmp_path):
    run = request.getfixturevalue(name)
    assert run.outcome.status == 0
    assert call(evaluate, run.folder, "--data", run.test).status == 0
    served = call(savedmodel, run.folder, tmp_path / "served")
    assert (served.status, served.out) == (0, f"{tmp_path / 'served' / '1'}\n")
    predicted = call(predict, run.folder, stdin="\n".join(TEXTS).encode())
    predictions = [json.loads(line)["probabilities"] for line in predicted.out.splitlines()]
    outputs = load_savedmodel(tmp_path / "served" / "1")(TEXTS)
    labels = [label.decode() for label in outputs["labels"].numpy()[0]]
    assert labels == Bundle.load(run.folder).labels
    expected = np.array([[prediction[label] for label in labels] for prediction in predictions])
    np.testing.assert_allclose(outputs["probabilities"].numpy(), expected, atol=1e-5)


@pytest.mark.second
def test_a_classifier_memorizes_sixteen_rows(tmp_path):
    rng = random.Random(0)
    words = [*EVERYWHERE, *sum(WORDS.values(), [])]
    texts = [" ".join(rng.sample(words, 5)) for _ in range(16)]
    rows = [(text, ["a", "b", "c", "d"][number % 4]) for number, text in enumerate(texts)]
    train = write_csv(tmp_path / "train.csv", rows)
    # The model lower-cases: its validation rows are the memorized training rows.
    validation = write_csv(tmp_path / "validation.csv", [(text.upper(), label) for text, label in rows])
    flags = ["--data.train", train, "--data.validation", validation, *TINY, *NO_DROPOUT, "--no-baseline"]
    more = [
        "--train.epochs=12",
        "--train.patience=12",
        "--train.batch-rows=4",
        "--optimizer.learning-rate=0.03",
        "--optimizer.ema-decay=0",
        "--classify.label-smoothing=0",
    ]
    run = tmp_path / "run"
    fitted = call(fit, *flags, *more, "--text.min-frequency=1", "--out", run)
    assert fitted.status == 0, fitted.err
    assert "baseline" not in fitted.json
    assert call(evaluate, run, "--data", train).json["accuracy"] == 1
    predictions = call(predict, run, stdin="\n".join(texts).encode()).out.splitlines()
    assert [json.loads(line)["label"] for line in predictions] == [label for _, label in rows]
