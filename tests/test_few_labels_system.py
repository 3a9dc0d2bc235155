"""From a checkpoint and a few labels to a classifier, through the commands."""

import csv
import json
import shutil
import signal

import numpy as np
import pytest

from benchmarks.few_labels import main as few_labels
from export.onnx.__main__ import main as export_onnx
from export.verify import main as verify
from kmha.bundle.bundle import Bundle
from tests.bundles import make_bundle
from tests.command_runs import call, news_rows, saved_weights, write_csv
from tests.pair_rows import paraphrase_rows, ranking_rows
from training.evaluate import main as evaluate
from training.fewshot import train as few_label_training
from training.fewshot import trainings
from training.fewshot.contrastive import ContrastiveStage
from training.fit import main as fit
from training.heads import main as heads
from training.io.tables import TableFormat, read_rows
from training.job import train_and_evaluate
from training.predict import main as predict
from training.report import main as report
from training.runs.checkpoint_io import write_checkpoint
from training.suggest import main as suggest

SETTINGS = ["--text.max-length=12", "--train.buckets=1", "--no-report"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "before"
    make_bundle(num_layers=1, norm="post", ngram_buckets=0, num_segments=2).save(folder)
    return folder


@pytest.fixture(scope="module")
def few(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    train, test = (
        write_csv(folder / "train.csv", news_rows(18, 0)),
        write_csv(folder / "test.csv", news_rows(60, 1)),
    )
    flags = ("--encoder.pretrained", checkpoint, "--data.train", train, "--data.test", test)
    return flags, test, call(fit, *SETTINGS, *flags, "--out", folder / "run"), folder / "run"


def test_both_stages_are_compared_and_all_rows_are_trained_on(few):
    _, test, outcome, run = few
    assert outcome.status == 0, outcome.err
    assert "18 training rows, cross-validated, 60 test rows; 3 labels" in outcome.err
    assert "loss in 3-fold cross-validation: probe" in outcome.err
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    choice = metrics["fewshot"]
    assert set(choice["losses"]) == {"probe", "contrastive"} and choice["stage"] in choice["losses"]
    assert choice["folds"] == 3 and choice["cross_validated"]
    # Cross-validated: the model itself was trained on these rows.
    assert metrics["validation"]["rows"] == 18 and metrics["test"]["rows"] == 60
    assert outcome.json["accuracy"] > 0.5
    scores = call(evaluate, run, "--data", test).json
    assert scores["loss"] == pytest.approx(outcome.json["loss"], abs=1e-5)


def test_the_report_has_the_candidates(few, tmp_path):
    _, test, _, run = few
    page = tmp_path / "page.html"
    outcome = call(report, run, "--data", test, "--out", page)
    assert outcome.status == 0, outcome.err
    choice = json.loads((run / "metrics.json").read_text("utf-8"))["fewshot"]
    text = page.read_text("utf-8")
    assert f"Few labels: {choice['stage']}; loss in 3-fold cross-validation: probe " in text
    assert "Validation scores are cross-validated" in text


def test_a_run_that_was_trained_on_its_validation_rows_is_not_pruned(few, tmp_path):
    _, test, _, run = few
    outcome = call(heads, run, "--data", test, "--prune", "0.3", "--out", tmp_path / "run")
    assert outcome.status == 2 and "train it with --data.validation" in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.second
def test_the_same_settings_give_the_same_model(few, tmp_path):
    flags, _, _, run = few
    again = call(fit, *SETTINGS, *flags, "--out", tmp_path / "again")
    assert again.status == 0, again.err
    first, second = (Bundle.load(folder).model.get_weights() for folder in (run, tmp_path / "again"))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def stop_after(monkeypatch, count):
    """SIGTERM after so many steps of the encoder; returns the losses of the steps."""
    losses = []

    def train(stage, *arguments):
        for loss in trained(stage, *arguments):
            losses.append(loss)
            if len(losses) == count:
                signal.raise_signal(signal.SIGTERM)
            yield loss

    trained = ContrastiveStage.train
    monkeypatch.setattr(ContrastiveStage, "train", train)
    return losses


def interrupt(count, flags, resumed):
    """Runs a fit and stops it after so many steps."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, count)
        outcome = call(fit, *SETTINGS, *flags, *(["--resume"] if resumed else []))
    assert outcome.status == 130, outcome.err
    assert "stopped by SIGTERM; run the same command with --resume to continue" in outcome.err


def interrupt_evaluation(flags, resumed=False):
    """Runs a fit and stops it after its trainings."""

    def stop(*_):
        signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_and_evaluate, "calibrate_on_validation", stop)
        patch.setattr(trainings, "MIN_SECONDS", 0)
        outcome = call(fit, *SETTINGS, *flags, *(["--resume"] if resumed else []))
    assert outcome.status == 130 and "with --resume to continue" in outcome.err, outcome.err


def choice_of(run):
    return json.loads((run / "metrics.json").read_text("utf-8"))["fewshot"]


def test_an_interrupted_fit_continues_and_gives_the_same_model(few, tmp_path, monkeypatch):
    flags = (*few[0], "--out", tmp_path / "run")
    # Five steps in each of three folds, and 11 on all rows: in the first training and in the last one.
    for number, count in enumerate((4, 16)):
        interrupt(count, flags, resumed=number > 0)
    interrupt_evaluation(flags, resumed=True)
    losses = stop_after(monkeypatch, 1)
    done = call(fit, *SETTINGS, *flags, "--resume")
    assert done.status == 0, done.err
    # An interruption during evaluation repeats no training.
    assert not losses and sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert saved_weights(tmp_path / "run") == saved_weights(few[3])
    assert choice_of(tmp_path / "run") == choice_of(few[3])


@pytest.mark.second
def test_a_signal_while_the_last_checkpoint_is_written_ends_the_fit(few, tmp_path, monkeypatch):
    # The frozen encoder is chosen, so the weights of the last checkpoint are not those of the model.
    monkeypatch.setattr(few_label_training, "best_candidate", lambda candidates: candidates[0])
    flags = (*few[0], "--no-baseline", "--out", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:

        def write(*arguments):
            if not (tmp_path / "run.partial" / "checkpoint").exists():
                signal.raise_signal(signal.SIGTERM)
            write_checkpoint(*arguments)

        patch.setattr(trainings, "write_checkpoint", write)
        patch.setattr(trainings, "MIN_SECONDS", 0)
        outcome = call(fit, *SETTINGS, *flags)
        assert outcome.status == 130 and "stopped by SIGTERM" in outcome.err, outcome.err
    done = call(fit, *SETTINGS, *flags, "--resume")
    assert done.status == 0, done.err
    choice = choice_of(tmp_path / "run")
    assert choice["stage"] == "probe" and choice["losses"] == choice_of(few[3])["losses"]


def test_a_probe_leaves_the_encoder_as_it_was(few, checkpoint, tmp_path):
    flags, *_ = few
    outcome = call(fit, *SETTINGS, *flags, "--fewshot=probe", "--no-baseline", "--out", tmp_path / "run")
    assert outcome.status == 0 and "few labels: probe" in outcome.err
    before, after = (
        Bundle.load(folder).model.encoder.get_weights() for folder in (checkpoint, tmp_path / "run")
    )
    # The checkpoint has more positions than the run reads.
    assert all(np.array_equal(a[: len(b)], b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("bread", "food"), ("bank", "money")],
            "expected a label with two different training texts or more",
        ),
        (
            [("bread", "food"), ("bread", "food"), ("bread", "money")],
            "expected a label with two different training texts or more",
        ),
        ([("bread", "food"), ("soup", "food")], "expected training rows with two different labels or more"),
        (
            # The rows of a text are in one fold: both texts of "weather" are in the first one.
            [
                ("bread", "food"),
                ("bread", "weather"),
                ("bank", "money"),
                ("ferry", "travel"),
                ("rain", "weather"),
            ],
            "expected a label with texts in two folds of cross-validation, got none",
        ),
    ],
)
def test_rows_that_cannot_be_cross_validated_are_refused_in_one_line(few, tmp_path, rows, message):
    flags = few[0]
    data = write_csv(tmp_path / "rows.csv", rows)
    outcome = call(fit, *SETTINGS, *flags, "--data.train", data, "--out", tmp_path / "run")
    assert outcome.status == 2 and message in outcome.err and str(data) in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.second
def test_a_label_with_a_single_row_is_trained(few, tmp_path):
    rows = [*news_rows(9, 0), ("harbour ferry", "travel")]
    data = write_csv(tmp_path / "rows.csv", rows)
    outcome = call(fit, *SETTINGS, *few[0], "--data.train", data, "--no-baseline", "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert "travel" in Bundle.load(tmp_path / "run").labels


def test_many_labels_have_half_of_the_mean_of_the_folds(few, tmp_path, monkeypatch):
    weights = []

    def average(trainer, candidate, vectors, trainings):
        def values(variables):
            return np.concatenate([np.ravel(each) for each in variables])

        last = values(trainer.stage.variables)
        vectors = averaged(trainer, candidate, vectors, trainings)
        weights.extend([last, values(trainings.mean_weights()), values(trainer.stage.variables)])
        return vectors

    averaged = few_label_training.FewLabelTrainer.average_with_folds
    monkeypatch.setattr(few_label_training.FewLabelTrainer, "average_with_folds", average)
    rows = [(text, f"{label} {number // 3 % 4}") for number, (text, label) in enumerate(news_rows(36, 0))]
    data = write_csv(tmp_path / "rows.csv", rows)
    flags = ("--data.train", data, "--fewshot=contrastive", "--out", tmp_path / "run")
    outcome = call(fit, *SETTINGS, *few[0][:2], *flags)
    assert outcome.status == 0, outcome.err
    assert "36 training rows, cross-validated, 0 test rows; 12 labels" in outcome.err
    assert "the encoder has 0.50 times the mean of the folds' encoders" in outcome.err
    last, mean, final = weights
    assert np.abs(last - mean).max() > 1e-4
    np.testing.assert_allclose(final, (last + mean) / 2, atol=1e-6)


@pytest.mark.second
def test_rows_with_several_labels_are_trained_on(few, tmp_path):
    rows = [
        (text, "|".join({label, "news"} if number % 2 else {label}))
        for number, (text, label) in enumerate(news_rows(18, 0))
    ]
    rows.append(("nothing at all", ""))
    data = write_csv(tmp_path / "rows.csv", rows, ("text", "labels"))
    outcome = call(fit, *SETTINGS, *few[0][:2], "--data.train", data, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    bundle = Bundle.load(tmp_path / "run")
    assert bundle.multi_label and len(bundle.thresholds or []) == 4


def test_suggested_texts_are_ready_for_labels(few, tmp_path):
    run = few[3]
    pool = [text for text, _ in news_rows(40, 5)]
    (tmp_path / "pool.txt").write_text("\n".join([*pool, pool[0]]) + "\n", "utf-8")
    labeled = write_csv(tmp_path / "labeled.csv", [(text, "food") for text in pool[:30]])
    outcome = call(suggest, run, "--texts", tmp_path / "pool.txt", "--labeled", labeled, "--count", 5)
    assert outcome.status == 0, outcome.err
    header, *rows = csv.reader(outcome.out.splitlines())
    assert header == ["text", "label"] and len({text for text, _ in rows}) == 5
    assert all(text in pool[30:] and label == "" for text, label in rows)
    refused = call(suggest, run, "--texts", tmp_path / "pool.txt", "--labeled", tmp_path / "pool.txt")
    assert refused.status == 2 and "got none" in refused.err


def test_suggested_texts_can_be_read_again(few, tmp_path):
    texts = ["bread with a \r carriage return", "bank; interest", "goal"]
    (tmp_path / "pool.csv").write_text("text;label\n" + "".join(f'"{each}";\n' for each in texts), "utf-8")
    flags = ["--texts", tmp_path / "pool.csv", "--data.delimiter=;"]
    outcome = call(suggest, few[3], *flags)
    assert outcome.status == 0, outcome.err
    (tmp_path / "next.csv").write_text(outcome.out, "utf-8", newline="")
    rows = read_rows(tmp_path / "next.csv", ["text"], form=TableFormat(";"))
    assert sorted(row.values["text"] for row in rows) == sorted(texts)
    refused = call(suggest, few[3], *flags, "--seed=-1")
    assert refused.status == 2 and "--seed: expected at least 0" in refused.err


def test_a_run_without_names_of_columns_has_the_default_ones(few, tmp_path):
    shutil.copytree(few[3], tmp_path / "run")
    path = tmp_path / "run" / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"columns": None}), "utf-8")
    (tmp_path / "pool.txt").write_text("bread\n", "utf-8")
    outcome = call(suggest, tmp_path / "run", "--texts", tmp_path / "pool.txt")
    assert (outcome.status, outcome.out) == (0, "text,label\nbread,\n"), outcome.err


@pytest.mark.second
def test_explicit_validation_rows_are_used_for_calibration(few, tmp_path):
    validation = write_csv(tmp_path / "validation.csv", news_rows(30, 7))
    flags = (
        "--data.validation",
        validation,
        "--fewshot=contrastive",
        "--precision=bfloat16",
        "--no-baseline",
    )
    outcome = call(fit, *SETTINGS, *few[0], *flags, "--out", tmp_path / "run")
    assert outcome.status == 0 and "few labels: contrastive" in outcome.err, outcome.err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))
    assert metrics["validation"]["rows"] == 30 and not metrics["fewshot"]["cross_validated"]
    # 30 rows are too few: the temperature is that of the cross-validated training rows.
    assert "calibration skipped" not in outcome.err
    without = call(fit, *SETTINGS, *few[0], *flags[2:], "--out", tmp_path / "without")
    other = json.loads((tmp_path / "without" / "metrics.json").read_text("utf-8"))
    assert without.status == 0
    assert metrics["calibration"]["temperatures"] == pytest.approx(
        other["calibration"]["temperatures"], rel=0.1
    )
    more = write_csv(tmp_path / "more.csv", news_rows(120, 7))
    enough = call(fit, *SETTINGS, *few[0], *flags, "--data.validation", more, "--out", tmp_path / "enough")
    own = json.loads((tmp_path / "enough" / "metrics.json").read_text("utf-8"))
    assert enough.status == 0
    assert own["calibration"]["temperatures"] != metrics["calibration"]["temperatures"]
    assert Bundle.load(tmp_path / "run").model.compute_dtype == "float32"


@pytest.mark.second
def test_ngrams_are_added_where_cross_validation_is_certain(few, tmp_path):
    # A frozen encoder with random weights predicts worse than the linear path.
    data = write_csv(tmp_path / "rows.csv", news_rows(90, 3))
    flags = (*few[0], "--data.train", data, "--fewshot=probe", "--no-baseline")
    outcome = call(fit, *SETTINGS, *flags, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert "linear path: " in outcome.err and " 0.00 times the linear path" not in outcome.err
    run, test = tmp_path / "run", few[1]
    assert Bundle.load(run).model.linear is not None
    assert call(evaluate, run, "--data", test).json["loss"] == pytest.approx(outcome.json["loss"], abs=1e-5)
    without = call(fit, *SETTINGS, *flags, "--encoder.linear=False", "--out", tmp_path / "without")
    assert without.status == 0 and "linear path" not in without.err
    assert outcome.json["loss"] < without.json["loss"]
    assert call(export_onnx, run, tmp_path / "model.onnx").status == 0
    verified = call(verify, run, tmp_path / "model.onnx", "--data", test)
    assert verified.status == 0, verified.err


@pytest.mark.parametrize(
    "flags", [pytest.param(("--fewshot=off",), marks=pytest.mark.second), ("--train.epochs=1",)]
)
def test_fine_tuning_holds_rows_out(few, tmp_path, flags):
    outcome = call(fit, *SETTINGS, *few[0], *flags, "--no-baseline", "--out", tmp_path / "run")
    assert outcome.status == 0 and "few labels" not in outcome.err
    assert "16 training, 2 validation, 60 test rows" in outcome.err


def test_a_stage_without_a_pretrained_encoder_is_refused(few, tmp_path):
    outcome = call(fit, *SETTINGS, *few[0][2:], "--fewshot=probe", "--out", tmp_path / "run")
    assert outcome.status == 2 and "--fewshot: expected auto or off, except for" in outcome.err


@pytest.fixture(scope="module")
def texts(few, tmp_path_factory):
    """Texts without labels, including duplicates and texts of the training and test rows: 30 new ones."""
    flags, *_ = few
    path = tmp_path_factory.mktemp("texts") / "more.txt"
    rows = [text for text, _ in news_rows(30, 5)]
    for file in (flags[3], flags[5]):
        rows += [row["text"] for row in csv.DictReader(file.read_text("utf-8").splitlines())]
    path.write_text("\n".join([*rows, rows[0]]) + "\n", "utf-8")
    return path


def test_texts_without_labels_are_a_candidate(few, texts, tmp_path):
    more = ["--fewshot.texts", texts, "--no-baseline"]
    outcome = call(fit, *SETTINGS, *few[0], *more, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert "30 texts without labels" in outcome.err and "79 texts without labels dropped" in outcome.err
    choice = json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8"))["fewshot"]
    losses = choice["losses"]
    assert set(losses) == {"probe", "contrastive", "pseudo-labels"}
    # The texts do not change the other candidates.
    before = json.loads((few[3] / "metrics.json").read_text("utf-8"))["fewshot"]["losses"]
    assert losses["probe"] == pytest.approx(before["probe"], abs=1e-3)
    # They are compared with the candidate that is chosen without them.
    if choice["stage"] == "pseudo-labels":
        assert losses["pseudo-labels"] <= max(losses["probe"], losses["contrastive"])
        assert "of 30 texts have the same label in all models" in outcome.err
    else:
        assert losses["pseudo-labels"] > losses[choice["stage"]]
    assert f"few labels: {choice['stage']}; loss in 3-fold" in outcome.err
    assert Bundle.load(tmp_path / "run").details["data"]["texts"]["name"] == str(texts)


@pytest.mark.second
def test_texts_that_have_joined_are_the_same_after_an_interruption(few, texts, tmp_path):
    flags = (*few[0], "--fewshot.texts", texts, "--no-baseline", "--out")
    unbroken = call(fit, *SETTINGS, *flags, tmp_path / "unbroken")
    assert unbroken.status == 0, unbroken.err
    # While texts have joined, before the next ones join, and later.
    for number, count in enumerate((8, 7, 30)):
        interrupt(count, (*flags, tmp_path / "run"), resumed=number > 0)
    done = call(fit, *SETTINGS, *flags, tmp_path / "run", "--resume")
    assert done.status == 0, done.err
    assert saved_weights(tmp_path / "run") == saved_weights(tmp_path / "unbroken")


@pytest.mark.second
def test_texts_join_rows_of_several_labels(few, texts, tmp_path, monkeypatch):
    # The last one is that of the texts.
    monkeypatch.setattr(few_label_training, "best_candidate", lambda candidates: candidates[-1])
    rows = [(text, f"{label}|news" if label == "food" else label) for text, label in news_rows(18, 0)]
    data = write_csv(tmp_path / "rows.csv", rows, ("text", "labels"))
    more = ["--fewshot.texts", texts, "--fewshot=contrastive", "--data.train", data]
    outcome = call(fit, *SETTINGS, *few[0][:2], *more, "--out", tmp_path / "run")
    assert outcome.status == 0 and "few labels: pseudo-labels; loss in 3-fold" in outcome.err
    assert "of 90 texts have the same label in all models" in outcome.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fewshot=off"], "got --task classify, --fewshot off"),
        (["--fewshot=probe"], "got --task classify, --fewshot probe"),
        (["--train.epochs=1"], "--fewshot.texts: expected --task classify with --encoder.pretrained"),
        (["--task=tag"], "got --task tag"),
        (["--data.large-rows=10"], "under 100 a label, and one worker, got 18 rows of 3 labels"),
    ],
)
def test_texts_without_the_stage_are_refused_in_one_line(few, texts, tmp_path, flags, message):
    more = ["--fewshot.texts", texts, *flags]
    outcome = call(fit, *SETTINGS, *few[0], *more, "--out", tmp_path / "run")
    assert outcome.status == 2 and "--fewshot.texts: expected" in outcome.err and message in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "none.txt: expected a file"),
        ("empty.txt", "empty.txt: expected texts, got none"),
        ("", "got none"),
    ],
)
def test_a_file_without_new_texts_is_refused_in_one_line(few, tmp_path, name, message):
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    path = tmp_path / name if name else few[0][3]
    outcome = call(fit, *SETTINGS, *few[0], "--fewshot.texts", path, "--out", tmp_path / "run")
    assert outcome.status == 2 and message in outcome.err and path.name in outcome.err
    assert not (tmp_path / "run").exists()


def benchmark_flags(checkpoint, folder):
    train = write_csv(folder / "train.csv", news_rows(90, 0))
    test = write_csv(folder / "test.csv", news_rows(30, 1))
    return "--data", f"news={train},{test}", "--checkpoint", checkpoint, SETTINGS[0]


@pytest.mark.second
def test_the_benchmark_measures_fits(checkpoint, tmp_path):
    flags = (*benchmark_flags(checkpoint, tmp_path), "--seeds", "0", "1")
    cells = call(few_labels, "cells", *flags, "--rows", "4", "--out", tmp_path / "cells.jsonl")
    assert cells.status == 0, cells.err
    name, rows, frozen, fitted, difference = cells.out.strip().split(" | ")
    assert difference.startswith("training.fit - frozen ") and difference.endswith("(2)")
    assert (name, rows) == ("news", "4") and frozen.startswith("frozen ") and fitted.endswith("(2)")
    results = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text("utf-8").splitlines()]
    assert len(results) == 4 and all(0.4 < each["accuracy"] <= 1 for each in results)
    # Results of other settings are not taken: here a fit that holds rows out.
    fine_tuned = call(
        few_labels, "cells", *flags, "--rows", "4", "--fewshot=off", "--out", tmp_path / "cells.jsonl"
    )
    assert fine_tuned.status == 0, fine_tuned.err
    lines = (tmp_path / "cells.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 8 and json.loads(lines[-1])["stage"] is None


@pytest.mark.second
def test_the_benchmark_counts_the_labels_that_selections_need(checkpoint, tmp_path):
    flags = (
        *benchmark_flags(checkpoint, tmp_path),
        "--seeds",
        "0",
        "--pool",
        "40",
        "--per-round",
        "6",
        "--most",
        "20",
        "--target",
        "1.1",
    )
    curves = call(few_labels, "suggest", *flags, "--out", tmp_path / "curves.jsonl")
    assert curves.status == 0, curves.err
    assert "news | random | labels for 1.1: over 18" in curves.out
    assert "news | suggest | 18 labels | " in curves.out
    found = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text("utf-8").splitlines()]
    (suggested, random) = (each["curve"] for each in found)
    # Both begin with the same fit.
    assert suggested[0] == random[0] and [labels for labels, _ in random] == [12, 18]


def as_text(rows):
    return [tuple(map(str, row)) for row in rows]


def pair_flags(checkpoint, folder, rows):
    header = ("text_a", "text_b", "label", "query_id")[: len(rows[0])]
    flags = ("--task=match", "--encoder.pretrained", checkpoint, "--data.train")
    return (
        *flags,
        write_csv(folder / "pairs.csv", as_text(rows), header),
        "--out",
        folder / "run",
        "--no-baseline",
    )


@pytest.mark.second
def test_few_pairs_are_compared_without_cross_attention_and_exported(checkpoint, tmp_path):
    flags = pair_flags(checkpoint, tmp_path, paraphrase_rows(24, 0))[:-1]
    test = write_csv(tmp_path / "test.csv", as_text(paraphrase_rows(30, 1)), ("text_a", "text_b", "label"))
    outcome = call(fit, *SETTINGS, *flags, "--data.test", test)
    assert outcome.status == 0, outcome.err
    assert "24 training rows, cross-validated" in outcome.err
    run = tmp_path / "run"
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    assert set(metrics["fewshot"]["losses"]) == {"probe", "contrastive"}
    assert metrics["validation"]["rows"] == 24 and metrics["test"]["rows"] == 30
    assert metrics["baseline"]["accuracy"] > 0.6
    model = Bundle.load(run).model
    assert (model.form, model.rounds) == ("cross", 0)
    assert call(evaluate, run, "--data", test).json["loss"] == pytest.approx(outcome.json["loss"], abs=1e-5)
    predicted = call(predict, run, stdin=b"the ferry crosses the river\tthe ferry never sings\n")
    assert predicted.status == 0 and 0 < predicted.json["score"] < 1
    assert call(export_onnx, run, tmp_path / "model.onnx").status == 0
    verified = call(verify, run, tmp_path / "model.onnx", "--data", test)
    assert verified.status == 0, verified.err


@pytest.mark.second
def test_classes_and_queries_of_few_pairs(checkpoint, tmp_path):
    for name, rows in (
        (
            "classes",
            [(a, b, ("yes", "no", "maybe")[n % 3]) for n, (a, b, _) in enumerate(paraphrase_rows(18, 0))],
        ),
        ("queries", ranking_rows(5, 4, 0)),
    ):
        (folder := tmp_path / name).mkdir()
        outcome = call(fit, *SETTINGS, *pair_flags(checkpoint, folder, rows), "--fewshot=probe")
        assert outcome.status == 0 and "few labels: probe" in outcome.err, outcome.err
        metrics = json.loads((folder / "run" / "metrics.json").read_text("utf-8"))
        assert metrics["validation"]["rows"] == len(rows)
        assert name != "queries" or metrics["validation"]["map"] > 0


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([("a b", "c d", 1), ("e f", "g h", 0)], (), "a label with two different training texts or more"),
        (
            [("a b", "c d", 1), ("e f", "g h", 1)],
            (),
            "expected training rows with two different labels or more",
        ),
        (ranking_rows(1, 6, 0), (), "a label with two different training queries or more"),
        ([("a", "b", 1), ("c", "d", 2), ("e", "f", 0)], ("--fewshot=probe",), "off for graded pairs"),
        ([("a", "b", "x"), ("c", "d", "y")], ("--fewshot=contrastive",), "off for classes of pairs"),
        ([("a", "b", 1), ("c", "d", 0)], ("--fewshot=probe", "--match.form=cross"), "with its default model"),
    ],
)
def test_few_pairs_that_cannot_be_trained_on_are_refused_in_one_line(
    checkpoint, tmp_path, rows, flags, message
):
    outcome = call(fit, *SETTINGS, *pair_flags(checkpoint, tmp_path, rows), *flags)
    assert outcome.status == 2 and message in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.second
@pytest.mark.parametrize("flag", ["--match.form=bi", "--match.loss=listwise"])
def test_pairs_are_fine_tuned_with_settings_of_the_model_or_the_loss(checkpoint, tmp_path, flag):
    flags = pair_flags(checkpoint, tmp_path, ranking_rows(12, 3, 0))
    outcome = call(fit, *SETTINGS, *flags, flag, "--train.epochs=1")
    assert outcome.status == 0 and "few labels" not in outcome.err


@pytest.mark.second
def test_one_pair_of_a_label_is_trained(checkpoint, tmp_path):
    rows = [
        *((a, b, 0) for a, b, _ in paraphrase_rows(7, 0)),
        ("the ferry sings", "the ferry sings often", 1),
    ]
    outcome = call(fit, *SETTINGS, *pair_flags(checkpoint, tmp_path, rows), "--fewshot=probe")
    assert outcome.status == 0, outcome.err
