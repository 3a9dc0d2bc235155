"""Rows and settings of the fits that the soak runs; every kind of training that can be resumed."""

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import TINY, news_rows, saved_weights, write_csv
from tests.pair_rows import ranking_rows
from tests.soak.fits import Fit, fitted
from tests.tagged_sentences import tagged_sentences, write_conll

OFTEN = ["--train.checkpoint-steps=7", "--train.checkpoint-minutes=9999", "--resume-or-begin"]
LONG = ["--train.epochs=8", "--train.patience=8", "--train.batch-rows=8", "--optimizer.learning-rate=0.003"]


@dataclasses.dataclass(frozen=True)
class Reference:
    """A kind of fit and its result without interruptions.

    Attributes:
        flags: Flags of the fit.
        weights: Exact weights of its model.
        metrics: Its scores and history, without values that depend on the clock.
        seconds: Time from its first checkpoint to its end.
    """

    flags: list[str]
    weights: dict[str, bytes]
    metrics: dict[str, Any]
    seconds: float


def metrics_of(run: Path) -> dict[str, Any]:
    """metrics.json without what depends on the clock or on the name of the run folder."""
    text = (run / "metrics.json").read_text("utf-8")
    text = re.sub(r'"(tokens_per_\w+|input_wait_share)": [-\d.e+]+', r'"\1": 0', text)
    return {
        name: value for name, value in json.loads(text).items() if name not in ("seconds", "cost", "next")
    }


class Kinds:
    """References, each computed on first use."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._made: dict[str, Reference] = {}
        write_csv(folder / "train.csv", news_rows(240, seed=1))
        write_csv(folder / "test.csv", news_rows(40, seed=2))
        write_csv(folder / "more.csv", news_rows(120, seed=3))
        (folder / "texts.txt").write_text("\n".join(text for text, _ in news_rows(300, seed=4)))
        pairs = [tuple(map(str, row)) for row in ranking_rows(40, 4, seed=5)]
        write_csv(folder / "pairs.csv", pairs, ("text_a", "text_b", "label", "query_id"))
        write_conll(folder / "names.conll", tagged_sentences(200, seed=6))
        write_conll(folder / "test.conll", tagged_sentences(40, seed=7))

    def flags(self, kind: str) -> list[str]:
        """Returns the flags of a kind of fit."""
        folder = self.folder
        news = [f"--data.train={folder / 'train.csv'}", f"--data.test={folder / 'test.csv'}"]
        small = [flag for flag in TINY if not flag.startswith(("--train.epochs", "--train.batch-rows"))]
        if kind == "started":
            small = [flag for flag in small if not flag.startswith("--encoder.")]
        kinds = {
            "classify": news,
            "accumulated": [*news, "--optimizer.accumulation-steps=3", "--optimizer.ema-decay=0"],
            "float16": [*news, "--precision=float16", "--classify.class-weights=balanced"],
            "tag": [
                *("--task=tag", f"--data.train={folder / 'names.conll'}"),
                f"--data.test={folder / 'test.conll'}",
            ],
            "match": [
                *("--task=match", "--match.form=bi", "--match.loss=contrastive"),
                f"--data.train={folder / 'pairs.csv'}",
            ],
            "masked-lm": ["--task=masked-lm", f"--data.train={folder / 'texts.txt'}"],
            "distilled": [
                *news,
                f"--distill.texts={folder / 'more.csv'}",
                "--distill.hidden-states=0.5",
            ],
            "started": [*news, "--finetune.head-fraction=0.2", "--finetune.unfreeze-fraction=0.3"],
            "few-labels": [*news, f"--fewshot.texts={folder / 'texts.txt'}"],
        }
        more = ["--text.max-length=16", "--train.buckets=1"] if kind == "few-labels" else [*small, *LONG]
        flags = [*kinds[kind], *more, *OFTEN]
        if kind == "distilled":
            self.of("classify")
            flags += [
                f"--distill.teacher={folder / 'classify'}",
                f"--text.vocabulary={folder / 'classify/vocab.txt'}",
            ]
        if kind in ("started", "few-labels"):
            self.of("masked-lm")
            flags += [f"--encoder.pretrained={folder / 'masked-lm'}"]
        return flags

    def of(self, kind: str) -> Reference:
        """Returns the result of a kind of fit without interruptions."""
        if kind not in self._made:
            flags = self.flags(kind)
            with Fit(self.folder, flags, kind) as fit:
                assert fit.wait_for(lambda: fit.checkpoints), fit.log()[-3000:]
                began = time.monotonic()
                ended = fit.end()
            assert ended.status == 0, ended.err[-3000:]
            run = self.folder / kind
            self._made[kind] = Reference(flags, saved_weights(run), metrics_of(run), time.monotonic() - began)
        return self._made[kind]

    def check_equal(self, kind: str, folder: Path, run: str = "run") -> None:
        """Checks that the run equals its reference, and that no other files are left."""
        reference, made, expected = self.of(kind), folder / run, self.folder / kind
        assert saved_weights(made) == reference.weights
        assert metrics_of(made) == reference.metrics
        assert sorted(path.name for path in made.iterdir()) == sorted(
            path.name for path in expected.iterdir()
        )
        if kind != "few-labels":
            epochs = [len((each / "epochs.csv").read_text().splitlines()) for each in (made, expected)]
            assert epochs[0] == epochs[1]
        assert not (folder / f"{run}.partial").exists()
        # TensorFlow leaves files of its own.
        assert not list((folder / "temporary").glob("kmha-*"))

    def finish(self, kind: str, folder: Path, run: str = "run") -> str:
        """Resumes a run to its end and compares it with its reference; returns its output."""
        ended = fitted(folder, self.of(kind).flags, run)
        assert ended.status == 0, ended.err[-3000:]
        self.check_equal(kind, folder, run)
        return ended.err


@pytest.fixture(scope="session")
def kinds(tmp_path_factory) -> Kinds:
    """Every kind of fit."""
    return Kinds(tmp_path_factory.mktemp("kinds"))
