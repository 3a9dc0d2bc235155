import dataclasses
from pathlib import Path

import pytest

from training.cli.parser import parse
from training.config.config import FitConfig
from training.config.defaults import resolve_config
from training.reporting.next_steps import is_english, next_steps

ENGLISH = ["Who is the author of the book ?", "What are the names of the two ships"]
CHINESE = ["体育新闻"]


def metrics(verdict: str = "model wins", losses=(1.0, 0.5, 0.499), accuracy=0.9) -> dict:
    history = [{"epoch": epoch, "val_loss": loss} for epoch, loss in enumerate(losses)]
    comparison = {"accuracy": {"verdict": verdict}}
    baseline = {"baseline": {"comparison": comparison}} if verdict else {}
    scores = {"metric": "accuracy", "judged_on": "test", "test": {"accuracy": accuracy}}
    return {**scores, "history": history, "best_epoch": len(losses) - 1, **baseline}


def steps(*flags: str, texts=ENGLISH, **values) -> list[str]:
    config = resolve_config(parse(FitConfig, ["--out", "runs/x", "--data.train=a.csv", *flags], "fit"))
    found = next_steps(config, metrics(**values), texts)
    assert len(found) == 2 and all(each["reason"] for each in found)
    return [each["command"] for each in found]


def test_a_better_model_is_exported_and_predicts():
    assert steps() == [
        "python -m export.savedmodel runs/x served/x",
        "python -m training.predict runs/x < texts.txt",
    ]


@pytest.mark.parametrize("verdict", ["baseline wins", "no difference shown"])
def test_a_pretrained_encoder_for_english_texts_without_an_advantage(verdict):
    command = steps("--encoder.size=mini", "--train.seed=7", verdict=verdict)[0]
    assert "--train.seed=7 --encoder.pretrained=minilm --out runs/x-minilm" in command
    # The settings of the other encoder are dropped.
    assert "mini " not in command
    assert not any("minilm" in each for each in steps(verdict=verdict, texts=CHINESE))
    assert not any("minilm" in each for each in steps(verdict=""))


def test_more_epochs_while_the_validation_loss_falls():
    command = steps("--train.seed=7", losses=(1.0, 0.5, 0.4))[0]
    assert command == (
        "python -m training.fit --data.train=a.csv --train.seed=7 --train.epochs=6 --out runs/x-longer"
    )
    for losses in ((1.0,), (0.5, 1.0, 0.9)):
        assert "savedmodel" in steps(losses=losses)[0]


def test_a_perfect_score_needs_no_better_fit():
    for verdict in ("baseline wins", "no difference shown"):
        assert "savedmodel" in steps(verdict=verdict, losses=(1.0, 0.5, 0.4), accuracy=1.0)[0]


def test_the_linear_classifier_alone_if_the_baseline_wins():
    assert "--encoder.size=none" in steps(verdict="baseline wins", texts=CHINESE)[0]
    assert "savedmodel" in steps("--task=tag", verdict="baseline wins", texts=CHINESE)[0]


def test_a_masked_language_model_is_fine_tuned():
    assert steps("--task=masked-lm")[0].startswith("python -m training.fit --encoder.pretrained runs/x ")


def test_suggested_fits_are_valid_settings():
    for flags in (["--encoder.size=tiny", "--text.max-length=64"], ["--task=match"], ["--task=tag"]):
        for command in steps(*flags, verdict="baseline wins", losses=(1.0, 0.5)):
            words = command.split()
            if words[2] == "training.fit":
                config = parse(FitConfig, words[3:], "fit")
                assert config.out != Path("runs/x")
                assert resolve_config(dataclasses.replace(config, encoder=FitConfig().encoder))


def test_english_is_recognized():
    assert is_english(ENGLISH) and is_english([("the baker sells bread", "who sells it")])
    german = ["Der Zug nach Hamburg ist heute wieder ausgefallen", "Das Spiel war in der Halle"]
    for texts in (german, CHINESE, [], [""]):
        assert not is_english(texts)
