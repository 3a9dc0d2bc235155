"""The commands that make sense after a fit."""

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from kmha.bundle.manifest import CLASSIFY, MASKED_LM
from training.config.config import EncoderSection, FitConfig, TextSection
from training.metrics.paired import BASELINE_WINS, NO_DIFFERENCE, verdict_of
from training.reporting.data_summary import rerun_command

SHOWN = 2
# Frequent words that few other languages have, and their least share of the words of English texts.
_ENGLISH = frozenset("the of and to that for with what are on it this you how who by from".split())
_ENGLISH_SHARE = 0.05
# The validation loss still falls if that of the last epoch is lower than all others by at least this share.
_FALL = 0.01


def next_steps(
    config: FitConfig, metrics: dict[str, Any], texts: Iterable[Any], in_memory: bool = False
) -> list[dict[str, str]]:
    """The two most useful commands after a fit, each {"reason", "command"}.

    Args:
        config: The settings of the fit.
        metrics: The values of metrics.json.
        texts: Training texts, or pairs of texts.
        in_memory: Whether the rows are not in files: the commands are then calls of `train`, if there are any.
    """
    found = [*_improvements(config, metrics, texts, in_memory), *(() if in_memory else _uses(config))]
    return [{"reason": reason, "command": command} for reason, command in found[:SHOWN]]


def _improvements(
    config: FitConfig, metrics: dict[str, Any], texts: Iterable[Any], in_memory: bool
) -> Iterator[tuple[str, str]]:
    """Fits that may be better: reason and command. There are none if the model predicted every row."""
    if metrics.get(metrics.get("judged_on", ""), {}).get(metrics["metric"]) == 1:
        return
    run, verdict = config.out_folder(), verdict_of(metrics.get("baseline", {}), metrics["metric"])
    is_pretrained = bool(config.encoder.pretrained)
    if verdict in (BASELINE_WINS, NO_DIFFERENCE) and not is_pretrained and is_english(texts):
        scratch = dataclasses.replace(
            config, encoder=EncoderSection(), text=TextSection(max_length=config.text.max_length)
        )
        command = rerun_command(scratch, in_memory, {"encoder": {"pretrained": "minilm"}}, f"{run}-minilm")
        yield "fine-tune a pretrained English encoder", command
    if _loss_falls(metrics):
        epochs = {"train": {"epochs": 2 * len(metrics["history"])}}
        yield (
            "train longer: the validation loss still fell in the last epoch",
            rerun_command(config, in_memory, epochs, f"{run}-longer"),
        )
    if verdict == BASELINE_WINS and config.task == CLASSIFY and not is_pretrained and config.encoder.linear:
        linear = rerun_command(
            dataclasses.replace(config, encoder=EncoderSection()),
            in_memory,
            {"encoder": {"size": "none"}},
            f"{run}-linear",
        )
        yield "train the linear classifier alone", linear


def _uses(config: FitConfig) -> Iterator[tuple[str, str]]:
    """Commands that use the run: reason and command."""
    run = shlex.quote(str(config.out_folder()))
    if config.task == MASKED_LM:
        fit = f"python -m training.fit --encoder.pretrained {run} --data.train labeled.csv"
        yield "fine-tune it on labeled rows", fit
    else:
        served = shlex.quote(f"served/{config.out_folder().name}")
        yield "export it for serving", f"python -m export.savedmodel {run} {served}"
    yield "predict the lines of a file", f"python -m training.predict {run} < texts.txt"


def _loss_falls(metrics: dict[str, Any]) -> bool:
    """Whether the last epoch was the best one, with clearly the lowest validation loss."""
    losses = [each["val_loss"] for each in metrics.get("history", [])]
    if len(losses) < 2 or "parts_of_epoch" in metrics:
        return False
    return metrics["best_epoch"] == len(losses) - 1 and losses[-1] < (1 - _FALL) * min(losses[:-1])


def is_english(texts: Iterable[Any]) -> bool:
    """Whether texts, or pairs of texts, are English by the share of some frequent words."""
    parts = (each if isinstance(each, str) else " ".join(each) for each in texts)
    words = re.findall(r"\w+", " ".join(parts).lower())
    return sum(word in _ENGLISH for word in words) > _ENGLISH_SHARE * len(words)
