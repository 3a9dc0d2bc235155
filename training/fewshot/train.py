"""Trains a model from few labels: frozen or contrastively trained encoder, with a linear head.

The candidates are cross-validated, and the chosen one is trained on all rows.
"""

import dataclasses
import functools
import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmha.errors import InputError
from training.cli.exceptions import TrainingDiverged
from training.config.config import ResolvedConfig
from training.config.defaults import has_new_ngrams, resolve_data_defaults
from training.data.inputs import Inputs, Source
from training.data.load import Data
from training.engine.optimizer import encoder_blocks, freeze
from training.engine.trainer import build_initial_model
from training.evaluation.evaluator import BATCH_TOKENS, MAX_ROWS, Evaluator, OutOfFold
from training.fewshot.contrastive import FEW_ROWS, ContrastiveStage, label_memberships
from training.fewshot.folds import averaged_folds, make_folds, strata_of
from training.fewshot.linear_head import STRENGTHS, apply_head, fit_head, row_losses
from training.fewshot.trainings import Trainings
from training.io.examples import TrainingSet
from training.linear.fit import fit_linear_path
from training.linear.weighing import log_prior, weigh
from training.losses.contrastive import has_many_exclusive_labels
from training.runs.run_folder import RunContext
from training.runtime.cpu_sharding import run_sharded
from training.runtime.traced import blocks_traced_once, trace_once, without_graph_optimizer
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

# Each fold costs a training; two are enough for many rows.
FOLDS, FEWER_FOLDS, MANY_ROWS = 3, 2, 500
# Over all rows, from the mean of the encoders that were trained without a fold.
LAST_PASSES = 10
# Of the folds' encoders in the final one, from FEW_ROWS on or with many labels.
SHARE = 0.5
# With fewer rows of few labels they have a share if the cross-validated loss is below so many times that of a constant
# prediction.
EASY_LOSS = 0.5
PROBE, CONTRASTIVE, PSEUDO_LABELS = "probe", "contrastive", "pseudo-labels"
# Of centered vectors. With the higher ones, a head on 16 pairs was overconfident: loss 2.2 on test rows.
CENTERED_STRENGTHS = STRENGTHS[:5]
# Of vectors that are not centered, and the standard deviation of its logarithm: a dozen rows often have their lowest
# loss at the lowest strength or at the highest one.
LIKELY_STRENGTH, STRENGTH_SPREAD = 10.0, 2.0
# Of the logarithm of the strength that has a certain training loss; losses below the smallest one are equal.
STRENGTH_TOLERANCE, SMALLEST_LOSS = 0.05, 1e-9


@dataclasses.dataclass
class Candidate:
    """A way to train, with its cross-validated predictions.

    Attributes:
        name: "probe" (frozen encoder), "contrastive" or "pseudo-labels" (contrastive, with texts).
        strength: Of the head's penalty, the one with the lowest loss.
        logits: Of each row by a model that was not trained on it, float32 [R, C].
        losses: Cross-entropy of the rows whose label the other folds have.
        training_loss: Mean cross-entropy of the rows that the heads of the averaged folds were fitted to.
        basis: What the head reads: one of the trainer's bases.
    """

    name: str
    strength: float
    logits: np.ndarray
    losses: np.ndarray
    training_loss: float = 0.0
    basis: int = 0

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return float(self.losses.mean())


class FewLabelTrainer:
    """Trains and cross-validates one model.

    Args:
        task: The task of the model.
        model: A built model with pretrained weights.
        source: The training rows, with targets and weights.
        lengths: Padded lengths of batches.
        groups: Equal for rows that stay in one fold, [R].
        config: All settings.
        joined: The training rows followed by texts without labels, if there are any.
    """

    def __init__(
        self,
        task: Task,
        model: Any,
        source: Source,
        lengths: list[Any],
        groups: np.ndarray,
        config: ResolvedConfig,
        joined: Source | None = None,
    ):
        self.task, self.model, self.source, self.lengths, self.joined = task, model, source, lengths, joined
        self.targets, self.weights = task.few_label_targets(source.targets), source.weights
        self.bases = task.head_bases(model)
        strengths = STRENGTHS if self.bases[0] is None else CENTERED_STRENGTHS
        self._heads = list(itertools.product(range(len(self.bases)), strengths))
        several = self.targets.ndim == 2
        count = FOLDS if len(self.targets) < MANY_ROWS else FEWER_FOLDS
        memberships = label_memberships(self.targets, model.num_labels)
        self.folds = make_folds(strata_of(memberships), groups, count, config.train.seed)
        self.num_folds = int(self.folds.max()) + 1
        self.averaged_folds = averaged_folds(self.targets, self.folds)
        # No model can predict a label that its training rows lack; with several labels, absence is a prediction too.
        self.predictable = np.ones(len(self.targets), bool)
        for fold in range(self.num_folds) if not several else ():
            known = np.isin(self.targets, self.targets[self.folds != fold])
            self.predictable &= known | (self.folds != fold)
        self.stage = ContrastiveStage(
            task, model, source if joined is None else joined, len(self.targets), config
        )
        pooled = trace_once(lambda features: model.pooled_vectors(features, training=False))
        self._pooled = trace_once(lambda features: run_sharded(pooled, features))

    def vectors(self, source: Source, trainings: Trainings | None = None) -> np.ndarray:
        """The head's input for all rows of a source, float32 [R, D]."""
        result = np.zeros((len(source.rows), self.model.head.kernel.shape[0]), np.float32)
        plans = source.plans(self.lengths, BATCH_TOKENS, MAX_ROWS, rng=None)
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            result[plan.rows] = self._pooled(batch["features"]).numpy()[: len(plan.rows)]
            if trainings is not None:
                trainings.stop_if_signaled()
        if not np.isfinite(result).all():
            raise TrainingDiverged(
                "the vectors of the texts are not finite", "try another --encoder.pretrained"
            )
        return result

    def cross_validate(
        self, names: Sequence[str], frozen: np.ndarray | None, trainings: Trainings
    ) -> list[Candidate]:
        """Predicts each fold by models that are trained on the others; "pseudo-labels" must follow "contrastive".

        The vectors of the frozen encoder, float32 [R, D], are those of "probe".
        """
        shape = len(self._heads), len(self.targets), self.model.num_labels
        logits = {name: np.zeros(shape, np.float32) for name in names}
        training_losses = {name: np.zeros(len(self._heads)) for name in names}
        for fold in range(self.num_folds):
            trained, held_out = np.flatnonzero(self.folds != fold), np.flatnonzero(self.folds == fold)
            is_averaged = fold in self.averaged_folds
            for name in names:
                vectors = frozen
                if name != PROBE:
                    vectors = self.train_encoder(name, trained, trainings, True, is_averaged)
                assert vectors is not None
                for place, options in enumerate(self._heads):
                    head = self._head(vectors, trained, *options)
                    logits[name][place, held_out] = apply_head(vectors[held_out], head)
                    if is_averaged:
                        loss = self._training_loss(head, vectors, trained)
                        training_losses[name][place] += loss / len(self.averaged_folds)
                    trainings.stop_if_signaled()
        return [self._candidate(name, logits[name], training_losses[name]) for name in names]

    def _candidate(self, name: str, logits: np.ndarray, training_losses: np.ndarray) -> Candidate:
        losses = [row_losses(found, self.targets)[self.predictable] for found in logits]
        best = int(np.argmin([self._objective(*each) for each in zip(losses, self._heads, strict=True)]))
        basis, strength = self._heads[best]
        return Candidate(
            name, strength, logits[best].copy(), losses[best], float(training_losses[best]), basis
        )

    def _objective(self, losses: np.ndarray, head: tuple[int, float]) -> float:
        """The mean loss of the rows plus the prior of the head's strength, if its vectors are not centered."""
        basis, strength = head
        count = max(1, len(losses))
        away = math.log(strength / LIKELY_STRENGTH) / STRENGTH_SPREAD if self.bases[basis] is None else 0.0
        return float(losses.sum()) / count + log_prior(away, count)

    def _head(
        self, vectors: np.ndarray, rows: np.ndarray, basis: int, strength: float
    ) -> tuple[np.ndarray, np.ndarray]:
        arguments = self.targets[rows], self.model.num_labels, strength, self.weights[rows]
        matrix = self.bases[basis]
        if matrix is None:
            return fit_head(vectors[rows], *arguments)
        # Centered, so that the strength does not depend on the mean, such as that of cosines.
        mean = vectors[rows].mean(axis=0)
        kernel, bias = fit_head((vectors[rows] - mean) @ matrix, *arguments)
        kernel = matrix @ kernel
        return kernel, bias - mean @ kernel

    def _training_loss(
        self, head: tuple[np.ndarray, np.ndarray], vectors: np.ndarray, rows: np.ndarray
    ) -> float:
        """Mean loss of the rows that a head was fitted to, by their weights."""
        losses = row_losses(apply_head(vectors[rows], head), self.targets[rows])
        return float(np.average(losses, weights=self.weights[rows]))

    def train_encoder(
        self,
        name: str,
        rows: np.ndarray,
        trainings: Trainings,
        without_fold: bool = False,
        is_averaged: bool = True,
    ) -> np.ndarray:
        """Trains the encoder by the contrastive stage on some rows, int64 [R].

        Without a fold it is trained from its initial weights, and on all rows from the mean of the averaged encoders
        that "contrastive" trained without one. For "pseudo-labels", the encoder must be trained on these rows alone
        before: with a head it labels the texts, and some of them join the rows.

        Returns:
            The vectors of all labeled rows, float32.
        """
        if without_fold:
            steps, rate_factor = self.stage.fold_steps(len(rows)), self.stage.fold_rate_factor(len(rows))
        else:
            steps, rate_factor = self.stage.num_steps(len(rows), LAST_PASSES), 1.0

        def train(done: int) -> Iterator[float]:
            joined = rows
            if name == PSEUDO_LABELS:
                if not done:
                    self._select_texts(rows, trainings, without_fold, is_averaged)
                texts = trainings.selected_texts()
                if not without_fold and not len(texts):
                    # The encoder stays that of "contrastive".
                    return iter(())
                joined = np.concatenate([rows, texts])
            start = None if without_fold else trainings.mean_weights()
            return self.stage.train(joined, steps, rate_factor, done, start)

        joins_mean = name == CONTRASTIVE and without_fold and is_averaged
        return trainings.run(steps, train, lambda: self.vectors(self.source, trainings), joins_mean)

    def _select_texts(
        self, rows: np.ndarray, trainings: Trainings, without_fold: bool, is_averaged: bool
    ) -> None:
        """Selects texts and sets their targets by a head that is fitted to some rows, int64 [R].

        Without a fold they are the texts with the most confident predictions, and with all rows those whose prediction
        is that of the averaged folds too. A fold has no such choice: the other models were trained on its labels.
        """
        assert self.joined is not None
        vectors = self.vectors(self.joined, trainings)
        # A fixed strength, so that it does not depend on the labels of the fold.
        logits = apply_head(vectors, self._head(vectors, rows, 0, LIKELY_STRENGTH))[len(self.targets) :]
        targets = predicted_targets(logits, self.targets.ndim == 2)
        if without_fold:
            texts = confident_texts(logits, targets)
            if is_averaged:
                trainings.record_predictions(targets)
        else:
            agreed = trainings.record_predictions(targets)
            texts = np.flatnonzero(agreed & label_memberships(targets, logits.shape[1]).any(axis=1))
            logger.info(
                f"few labels: {len(texts):,} of {len(targets):,} texts have the same label in all models"
            )
        self.joined.targets[texts + len(self.targets)] = targets[texts]
        trainings.record_selected_texts(texts + len(self.targets))

    def train_on_all_rows(self, name: str, trainings: Trainings) -> np.ndarray:
        """Trains the encoder as for "contrastive" or "pseudo-labels" on all rows; returns their vectors, float32."""
        rows = np.arange(len(self.targets))
        vectors = self.train_encoder(CONTRASTIVE, rows, trainings)
        return self.train_encoder(PSEUDO_LABELS, rows, trainings) if name == PSEUDO_LABELS else vectors

    def share_of_folds(self, candidate: Candidate) -> float:
        """The share of the folds' encoders in the final one, from 0 to 1.

        It is one half from 100 rows on, and where a text has one label of more than eight. With fewer rows it grows
        from 0 to 1 as the cross-validated loss falls, and is 0 unless they are easy to predict. On easy topics the mean
        of the folds is better than the encoder that is trained on all rows after it; on questions and sentiment it is
        worse.
        """
        if len(self.targets) >= FEW_ROWS or has_many_exclusive_labels(self.targets, self.model.num_labels):
            return SHARE
        from scipy.special import entr

        targets = self.targets[self.predictable]
        frequencies = label_memberships(targets, self.model.num_labels).mean(axis=0)
        # The loss of predicting the frequencies is their entropy.
        if targets.ndim == 2:
            expected = float((entr(frequencies) + entr(1 - frequencies)).mean())
        else:
            expected = float(entr(frequencies).sum())
        return max(0.0, 1 - candidate.loss / max(EASY_LOSS * expected, SMALLEST_LOSS))

    def average_with_folds(
        self, candidate: Candidate, vectors: np.ndarray, trainings: Trainings
    ) -> np.ndarray:
        """Averages the encoder with those of the folds; from and to the vectors of all rows, float32 [R, D]."""
        share = self.share_of_folds(candidate)
        if not share:
            return vectors
        pairs = zip(self.stage.variables, trainings.mean_weights(), strict=True)
        self.stage.reset([(1 - share) * last + share * mean for last, mean in pairs])
        logger.info(f"few labels: the encoder has {share:.2f} times the mean of the folds' encoders")
        return self.vectors(self.source)

    def assign_head(self, candidate: Candidate, vectors: np.ndarray) -> None:
        """Fits the head to the vectors of all rows, float32 [R, D], and assigns it to the model.

        If the encoder was trained, the strength changes: with the new one, the head has the loss on its rows that the
        heads of the folds had on theirs. The last encoder separates its rows better than those of the folds, and the
        head has more rows, so with their strength it would be overconfident.
        """
        rows = np.arange(len(self.targets))
        if candidate.name != PROBE:
            candidate.strength = self._strength_of_loss(vectors, candidate)
        kernel, bias = self._head(vectors, rows, candidate.basis, candidate.strength)
        self.model.head.kernel.assign(kernel)
        self.model.head.bias.assign(bias)

    def _strength_of_loss(self, vectors: np.ndarray, candidate: Candidate) -> float:
        """The strength with which the head of all rows has the training loss of a candidate, or the nearest one."""
        from scipy.optimize import brentq

        rows = np.arange(len(self.targets))
        expected = max(candidate.training_loss, SMALLEST_LOSS)

        # Both ends are needed twice, and each call fits a head.
        @functools.cache
        def excess(log_strength: float) -> float:
            head = self._head(vectors, rows, candidate.basis, math.exp(log_strength))
            return math.log(max(self._training_loss(head, vectors, rows), SMALLEST_LOSS) / expected)

        strengths = [strength for basis, strength in self._heads if basis == candidate.basis]
        lowest, highest = math.log(min(strengths)), math.log(max(strengths))
        if excess(lowest) <= 0:
            return min(strengths)
        if excess(highest) >= 0:
            return max(strengths)
        return math.exp(brentq(excess, lowest, highest, xtol=STRENGTH_TOLERANCE))


def predicted_targets(logits: np.ndarray, several: bool) -> np.ndarray:
    """The most probable label, int32 [R]; with several labels, those with a probability of one half or more, [R, C]."""
    return (logits > 0).astype(np.int32) if several else logits.argmax(axis=1).astype(np.int32)


def confident_texts(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The half of the texts of each predicted label that have the most confident predictions, int64 [S].

    Args:
        logits: Of the texts, float32 [R, C].
        targets: Their predicted targets. Texts without a label are left out.
    """
    losses = row_losses(logits, targets)
    strata = strata_of(label_memberships(targets, logits.shape[1]))
    selected = [np.zeros(0, np.int64)]
    for label in range(logits.shape[1]):
        texts = np.flatnonzero(strata == label)
        selected.append(texts[np.argsort(losses[texts], kind="stable")][: -(-len(texts) // 2)])
    return np.sort(np.concatenate(selected))


def best_candidate(candidates: list[Candidate]) -> Candidate:
    """The contrastive stage, unless the probe has a lower loss by more than the standard error of the difference.

    With a dozen rows the losses are noisy, and the contrastive stage is better on most data. Pseudo-labels are chosen
    unless the loss of this choice is lower.
    """
    *others, best = (each for each in candidates if each.name != PSEUDO_LABELS)
    for other in others:
        differences = best.losses - other.losses
        error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
        if differences.mean() > error:
            best = other
    return next((each for each in candidates if each.name == PSEUDO_LABELS and each.loss <= best.loss), best)


def train_best_candidate(
    trainer: FewLabelTrainer, mode: str, context: RunContext
) -> tuple[Candidate, dict[str, float]]:
    """Cross-validates the candidates of a mode ("auto", "probe" or "contrastive") and trains the best on all rows.

    Returns:
        The candidate, and the loss of each.
    """
    names = [PROBE, CONTRASTIVE] if mode == "auto" else [mode]
    if mode == "auto" and not trainer.task.has_contrastive_stage:
        names = [PROBE]
    if trainer.joined is not None:
        names.append(PSEUDO_LABELS)
    trained = [int((trainer.folds != fold).sum()) for fold in range(trainer.num_folds)]
    steps = [trainer.stage.fold_steps(rows) for rows in trained]
    steps.append(trainer.stage.num_steps(len(trainer.folds), LAST_PASSES))
    trained_names = [name for name in names if name != PROBE]
    if trained_names:
        trainer.stage.check_memory()
    shape = len(trainer.folds), trainer.model.head.kernel.shape[0]
    trainings = Trainings(
        trainer.stage,
        trainer.model,
        len(trained_names) * steps,
        len(trainer.averaged_folds),
        shape,
        trainer.joined,
        context,
    )
    frozen = trainer.vectors(trainer.source) if PROBE in names else None
    with trainings.resumable():
        candidates = trainer.cross_validate(names, frozen, trainings)
        best = best_candidate(candidates)
        vectors = frozen if best.name == PROBE else trainer.train_on_all_rows(best.name, trainings)
    shown = ", ".join(f"{each.name} {each.loss:.3f}" for each in candidates)
    logger.info(f"few labels: {best.name}; loss in {trainer.num_folds}-fold cross-validation: {shown}")
    assert vectors is not None
    # After the last checkpoint, which has the weights of the last training.
    if best.name == PROBE:
        trainer.stage.reset()
    else:
        vectors = trainer.average_with_folds(best, vectors, trainings)
    trainer.assign_head(best, vectors)
    return best, {each.name: round(each.loss, 4) for each in candidates}


def add_linear_path(
    trainer: FewLabelTrainer, logits: np.ndarray, preprocessor: Any, labels: Sequence[str], seed: int
) -> tuple[Any, np.ndarray]:
    """Adds a linear classifier on n-grams to a trained classifier as far as its cross-validated gain is certain.

    Args:
        trainer: Has the model and its rows.
        logits: Cross-validated logits of the rows, float32 [R, C].
        preprocessor: The preprocessor of the texts.
        labels: The labels.
        seed: Random seed.

    Returns:
        The model, and cross-validated logits of both paths.
    """
    started, model, source, rows = time.monotonic(), trainer.model, trainer.source, trainer.predictable
    path = fit_linear_path(source, trainer.folds, len(labels), preprocessor.vocabulary.tokens, seed)
    if path is None:
        return model, logits
    encoder, linear = weigh(logits[rows], path.validation_logits[rows], trainer.targets[rows], few_rows=True)
    logger.info(
        f"linear path: {path.description}, {time.monotonic() - started:.1f} s; "
        f"{linear:.2f} times the linear path, {encoder:.2f} times the encoder"
    )
    if not linear:
        return model, logits
    model = path.copy_into(model)
    model.scale_paths(linear, encoder)
    return model, linear * path.validation_logits + encoder * logits


def train_few_labels(
    context: RunContext, data: Data, inputs: Inputs, validation: Source
) -> tuple[Evaluator, dict[str, Any]]:
    """Trains a model from few labels.

    Returns:
        The evaluator of the model, and the choice as JSON values: "stage", "strength", "folds", "losses",
        "cross_validated" (whether the scores of validation rows are those of cross-validation).
    """
    config, task, labels = context.config, data.task, data.labels
    targets = validation.targets if data.is_cross_validated else task.targets(data.train, labels)
    source = inputs.evaluated("train", targets)
    source.weights = task.training_set(data.train, labels, config.train.seed).weights
    joined = None
    if data.texts is not None:
        inputs, rows = inputs.with_texts(source.rows)
        # The targets of the texts are set later.
        more = len(rows) - len(source.rows)
        fill = np.zeros((more, *targets.shape[1:]), targets.dtype)
        weights = np.concatenate([source.weights, np.ones(more, np.float32)])
        joined = inputs.source("train", TrainingSet(rows, np.concatenate([targets, fill]), weights))
    lengths = source.buckets([validation] if joined is None else [validation, joined], config.train.buckets)
    config = resolve_data_defaults(config, task, source.text_lengths, 1)
    model = build_initial_model(config, task, source, inputs.preprocessor, labels)
    freeze(model, config.finetune.frozen_layers, has_new_ngrams(config))
    trainer = FewLabelTrainer(task, model, source, lengths, data.groups, config, joined)
    left_out = int((~trainer.predictable).sum())
    if left_out == len(source.rows):
        raise InputError(
            f"{data.origins['train']['name']}: expected a label with texts in two folds of cross-validation, got none;"
            " add a row of a label"
        )
    if left_out:
        logger.info(f"cross-validation ignores {left_out:,} rows, whose labels the other folds lack")
    with without_graph_optimizer(), blocks_traced_once(encoder_blocks(model)):
        best, losses = train_best_candidate(trainer, config.fewshot.mode, context)
    logits = best.logits
    if config.encoder.linear and config.task == "classify":
        model, logits = add_linear_path(trainer, best.logits, inputs.preprocessor, labels, config.train.seed)
    rows = validation if data.is_cross_validated else source
    held_out = OutOfFold(rows, logits, trainer.predictable, is_cross_validated=True)
    choice = {
        "stage": best.name,
        "strength": best.strength,
        "folds": trainer.num_folds,
        "losses": losses,
        "cross_validated": data.is_cross_validated,
    }
    return Evaluator(model, task, labels, lengths, held_out), choice
