"""Trains a classifier from few labels: frozen or contrastively trained encoder, with a linear head.

With too few rows to hold some out, both candidates are cross-validated. The one with the lower loss is trained on all
rows.
"""

import dataclasses
import logging
from typing import Any

import numpy as np
from tqdm import tqdm

from training.config.defaults import resolve_data_defaults
from training.data.inputs import Inputs, Source
from training.data.load import Data
from training.engine.optimizer import freeze
from training.engine.trainer import build_initial_model
from training.evaluation.evaluator import BATCH_TOKENS, MAX_ROWS, Evaluator, OutOfFold
from training.fewshot.contrastive import BATCH_ROWS, ContrastiveStage
from training.fewshot.folds import make_folds
from training.fewshot.linear_head import STRENGTHS, apply_head, fit_head, mean_loss
from training.runs.run_folder import RunContext
from training.runtime.cpu_sharding import trace_once

logger = logging.getLogger("kmha")

# Each fold costs a training; two are enough for many rows.
FOLDS, FEWER_FOLDS, MANY_ROWS = 3, 2, 200
# Steps of the contrastive stage: this number, or so many passes over the rows if these are more steps.
MIN_STEPS, MAX_STEPS, PASSES = 40, 300, 30
PROBE, CONTRASTIVE = "probe", "contrastive"


@dataclasses.dataclass
class Candidate:
    """A way to train, with its cross-validated predictions.

    Attributes:
        name: "probe" (frozen encoder) or "contrastive".
        strength: Of the head's penalty, the one with the lowest loss.
        logits: Of each row by a model that was not trained on it, float32 [R, C].
        loss: Mean cross-entropy of these logits.
    """

    name: str
    strength: float
    logits: np.ndarray
    loss: float


class FewLabelTrainer:
    """Trains and cross-validates one model on rows that all have labels.

    Args:
        model: A built `TextClassifier` with pretrained weights.
        source: The rows, with their targets.
        lengths: Padded lengths of batches.
        folds: Fold of each row, int64 [R].
        memberships: 0 or 1 for each row and label, [R, C].
        seed: Random seed.
    """

    def __init__(
        self,
        model: Any,
        source: Source,
        lengths: list[int],
        folds: np.ndarray,
        memberships: np.ndarray,
        seed: int,
    ):
        self.model, self.source, self.lengths, self.folds = model, source, lengths, folds
        self.num_folds = int(folds.max()) + 1
        self.targets = source.targets
        self.stage = ContrastiveStage(model, source, memberships, seed)
        self._pooled = trace_once(lambda features: model.pooled_vectors(features, training=False))

    def vectors(self) -> np.ndarray:
        """The head's input for all rows, float32 [R, D]."""
        result = np.zeros((len(self.source.rows), self.model.vector_dim), np.float32)
        plans = self.source.plans(self.lengths, BATCH_TOKENS, MAX_ROWS, rng=None)
        for plan, batch in zip(plans, self.source.dataset(plans), strict=True):
            result[plan.rows] = self._pooled(batch["features"]).numpy()[: len(plan.rows)]
        return result

    def cross_validate(self, name: str, bar: Any) -> Candidate:
        """Predicts each fold by models that are trained on the others."""
        self.stage.reset()
        vectors = self.vectors() if name == PROBE else None
        logits = {
            strength: np.zeros((len(self.targets), self.model.num_labels), np.float32)
            for strength in STRENGTHS
        }
        for fold in range(self.num_folds):
            trained, held_out = np.flatnonzero(self.folds != fold), np.flatnonzero(self.folds == fold)
            if name == CONTRASTIVE:
                self.train_encoder(trained, bar)
                vectors = self.vectors()
            assert vectors is not None
            for strength, found in logits.items():
                head = fit_head(vectors[trained], self.targets[trained], self.model.num_labels, strength)
                found[held_out] = apply_head(vectors[held_out], head)
        losses = {strength: mean_loss(found, self.targets) for strength, found in logits.items()}
        best = min(losses, key=losses.__getitem__)
        return Candidate(name, best, logits[best], losses[best])

    def train_encoder(self, rows: np.ndarray, bar: Any) -> None:
        """The contrastive stage on some rows, int64 [R]."""
        for loss in self.stage.train(rows, num_steps(len(rows))):
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

    def finish(self, candidate: Candidate, bar: Any) -> None:
        """Trains the model on all rows as the candidate was trained."""
        self.stage.reset()
        if candidate.name == CONTRASTIVE:
            self.train_encoder(np.arange(len(self.targets)), bar)
        kernel, bias = fit_head(self.vectors(), self.targets, self.model.num_labels, candidate.strength)
        self.model.head.kernel.assign(kernel)
        self.model.head.bias.assign(bias)


def num_steps(rows: int) -> int:
    """Steps of the contrastive stage for a number of rows."""
    return int(np.clip(PASSES * rows // BATCH_ROWS, MIN_STEPS, MAX_STEPS))


def choose(trainer: FewLabelTrainer, mode: str, rows: int) -> tuple[Candidate, dict[str, float]]:
    """Cross-validates the candidates of a mode, trains the best on all rows and logs why.

    Args:
        trainer: The model and its rows.
        mode: "auto", "probe" or "contrastive".
        rows: Number of rows.

    Returns:
        The chosen candidate, and the loss of each.
    """
    names = (PROBE, CONTRASTIVE) if mode == "auto" else (mode,)
    steps = num_steps(rows) + sum(
        num_steps(int((trainer.folds != fold).sum())) for fold in range(trainer.num_folds)
    )
    with tqdm(
        total=steps if CONTRASTIVE in names else 0, desc="contrastive", unit="step", disable=None
    ) as bar:
        candidates = [trainer.cross_validate(name, bar) for name in names]
        best = min(candidates, key=lambda candidate: candidate.loss)
        trainer.finish(best, bar)
    shown = ", ".join(f"{each.name} {each.loss:.3f}" for each in candidates)
    logger.info(f"few labels: {best.name}; loss in {trainer.num_folds}-fold cross-validation: {shown}")
    return best, {each.name: round(each.loss, 4) for each in candidates}


def train_few_labels(
    context: RunContext, data: Data, inputs: Inputs, validation: Source
) -> tuple[Evaluator, dict[str, Any]]:
    """Trains a classifier from few labels.

    Returns:
        The evaluator of the model, and the choice as JSON values: "stage", "strength", "folds", "losses". If the
        validation rows are the training rows, the evaluator has out-of-fold predictions of them.
    """
    config, task, labels = context.config, data.task, data.labels
    cross_validated = data.is_cross_validated
    source = validation if cross_validated else inputs.evaluated("train", task.targets(data.train, labels))
    lengths = source.buckets([validation], config.train.buckets)
    config = resolve_data_defaults(config, task, source.text_lengths, 1)
    model = build_initial_model(config, task, source, inputs.preprocessor, labels)
    freeze(model, config.finetune.frozen_layers)
    targets = source.targets
    memberships = targets if targets.ndim == 2 else np.eye(len(labels), dtype=np.int32)[targets]
    # The rarest label of a row decides on its fold.
    rarity = np.where(memberships > 0, 1.0 / np.maximum(memberships.sum(axis=0), 1), 0.0)
    digests = data.train.examples.digests[data.train.rows]
    count = FOLDS if len(targets) < MANY_ROWS else FEWER_FOLDS
    folds = make_folds(rarity.argmax(axis=1), digests, count, config.train.seed)
    trainer = FewLabelTrainer(model, source, lengths, folds, memberships, config.train.seed)
    best, losses = choose(trainer, config.fewshot.mode, len(targets))
    held_out = OutOfFold(source, best.logits) if cross_validated else None
    choice = {"stage": best.name, "strength": best.strength, "folds": trainer.num_folds, "losses": losses}
    return Evaluator(model, task, labels, lengths, held_out), choice
