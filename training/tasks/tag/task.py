"""Sequence tagging; scikit-learn and TensorFlow are imported in the methods, so that --help is fast."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.tags import Scheme, allowed_transitions, broken_words, detect_scheme, repair_tags, spans_of, tags_of
from training.io.examples import ColumnOverrides, Columns, Example, ExampleSet, Subset
from training.io.tables import Row
from training.tasks.protocol import Baseline, Defaults, Task, TaskTraits, intervals_of, metric_of_bundle
from training.tasks.settings import TagSettings
from training.tasks.tag.rows import read_sentences, sentence_example, tag_columns

logger = logging.getLogger("kmha")

CHUNK_ROWS = 4096
SHOWN_BROKEN = 3
# From this fraction of one-character words on, raw texts are split into characters.
SINGLE_CHARACTERS = 0.99
# Added to every count, so that unseen tags and transitions stay possible.
ADDED_COUNT = 0.5


@dataclasses.dataclass(frozen=True)
class TagTask(TagSettings, Task):
    """Sequence tagging; for the methods see `Task`."""

    @classmethod
    def from_bundle(cls, bundle: Any) -> "TagTask":
        """The task of a trained bundle."""
        known = ("token_accuracy",) if bundle.model.scheme == "none" else ("span_f1", "token_accuracy")
        return cls(
            scheme=bundle.model.scheme,
            given_scheme=bundle.details.get("given_scheme", bundle.model.scheme),
            split=bundle.preprocessor.split,
            best_by=metric_of_bundle(bundle, known),
        )

    @property
    def metric(self) -> str:
        """The metric of the settings."""
        return self.best_by

    @property
    def traits(self) -> TaskTraits:
        """A row has a tag for each word, so any number of labels."""
        return TaskTraits(is_multi_label=True)

    @property
    def defaults(self) -> Defaults:
        """Little dropout, since every word is a target; more for words read by characters, to learn from them."""
        return Defaults(0.3, 0.2) if self.characters else Defaults(0.05, 0.05)

    @property
    def details_for_bundle(self) -> dict[str, Any]:
        """The metric and the scheme of the rows."""
        return {"metric": self.metric, "given_scheme": self.given_scheme}

    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """Finds the columns of words and tags."""
        return self, tag_columns(available, columns)

    def columns_of_file(self, trained: Columns, flags: ColumnOverrides, available: Sequence[str]) -> Columns:
        """The columns of words and tags."""
        text, label = (name if name in available else "" for name in (trained.text, trained.label))
        return tag_columns(available, Columns(flags.text or text, flags.label or label))

    def parse_row(self, row: Row, columns: Columns) -> tuple[Example]:
        """The sentence of a row."""
        return (sentence_example(row, columns, self._word_bounds),)

    def _word_bounds(self, text: str) -> Sequence[tuple[int, int]]:
        """The first and the last character plus 1 of each word of a text with spans."""
        from kmha.quiet import import_tensorflow

        import_tensorflow()
        from kmha.text.words import word_bounds

        return word_bounds(text, "characters" if self.split == "characters" else "words")

    def resolve_from_data(self, sets: Mapping[str, ExampleSet]) -> "TagTask":
        """Chooses schemes, metric and word splitting; logs tags that break their scheme."""
        train = sets["train"]
        given = self.given_scheme
        if given == "auto":
            given = detect_scheme(tag_sequences(train, np.arange(len(train))))
        scheme = given if self.scheme == "auto" else self.scheme
        if given != scheme and "none" in (given, scheme):
            raise InputError(
                f"--tag.scheme: expected none for tags without spans, got {scheme}"
                if given == "none"
                else f"--tag.scheme: expected a scheme with spans, as the tags have ({given}), got {scheme}"
            )
        for examples in sets.values():
            _log_broken(examples, given)
        single = _single_characters(train)
        best_by = self.best_by
        if best_by == "auto":
            best_by = "token_accuracy" if scheme == "none" else "span_f1"
        if best_by == "span_f1" and scheme == "none":
            raise InputError("--tag.best-by: expected token_accuracy for tags without spans, got span_f1")
        split = self.split
        if split == "auto":
            split = "characters" if single else "words"
        characters = not single if self.characters is None else self.characters
        return dataclasses.replace(
            self, scheme=scheme, given_scheme=given, best_by=best_by, split=split, characters=characters
        )

    def output_names(self, labels: Sequence[str], train: Subset) -> list[str]:
        """The tags of the training rows in the model's scheme, sorted."""
        return sorted({tag for tags in self.row_tags(train) for tag in self.to_model_scheme(tags)})

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """A `SentencePreprocessor` around the preprocessor of texts."""
        from kmha.text.sentence_preprocessor import SentencePreprocessor

        (part,) = parts.values()
        return SentencePreprocessor(part, self.split, bool(self.characters))  # pyright: ignore  (resolved by now)

    def fit_linear_path(
        self, train: Any, validation: Any, labels: Sequence[str], preprocessor: Any, seed: int, alone: bool
    ) -> Any:
        """A linear chain on features of words; None with too many tags, or without features of several words."""
        from training.linear.chain import fit_linear_chain
        from training.linear.fit import MAX_LABELS

        if len(labels) > MAX_LABELS:
            logger.info(f"no linear path: {len(labels):,} tags are more than {MAX_LABELS:,}")
            return None
        return fit_linear_chain(train, validation, len(labels), self.head == "crf", seed)

    def join_paths(
        self, model: Any, linear: Any, outputs: np.ndarray | None, validation: Any
    ) -> tuple[Sequence[float], np.ndarray]:
        """Adds scores of words and of transitions, each with factors of both paths."""
        return linear.join(model, outputs, validation)

    def predict_with_path(self, evaluator: Any, linear: Any, source: Any) -> Any:
        """See `Task`; the decoder needs the transitions too, so the model has the weights of the path meanwhile."""
        weights = evaluator.model.get_weights()
        linear.replace(evaluator.model)
        try:
            return evaluator.predict(source)
        finally:
            evaluator.model.set_weights(weights)

    def build_model(
        self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None
    ) -> Any:
        """A built `SequenceTagger`."""
        from kmha.features import NUM_CHARACTERS
        from kmha.models.tagger import SequenceTagger

        (encoder,) = encoders.values()
        allowed = allowed_transitions(labels, self.scheme)  # pyright: ignore  (resolved by now)
        model = SequenceTagger(
            encoder,
            len(labels),
            scheme=self.scheme,  # pyright: ignore
            allowed=allowed.pairs.astype(int).tolist(),
            allowed_start=allowed.start.astype(int).tolist(),
            allowed_end=allowed.end.astype(int).tolist(),
            head=self.head,
            word_pooling=self.word_pooling,
            characters=NUM_CHARACTERS if self.characters else 0,
            character_dim=self.character_dim,
            context_width=self.context_width,
            dropout=self.dropout,
            linear_rows=len(linear.keys) if linear else 0,
            linear_slots=linear.slots if linear else 0,
            name="tagger",
        )
        model.build()
        return model

    def initialize(self, model: Any, source: Any) -> None:
        """Sets the weights of head and CRF from the counts of tags and of neighboring tags."""
        _initialize_from_counts(model, source.targets, source.word_counts)

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Tag ids of all words in the model's scheme, int32 [N], one sentence after another."""
        places = {label: place for place, label in enumerate(labels)}
        found = []
        for tags in self.row_tags(part):
            # A tag that the model lacks cannot be a target; the scores count such words as wrong.
            found += [places.get(tag, 0) for tag in self.to_model_scheme(tags)]
        return np.array(found, np.int32)

    def row_tags(self, part: Subset) -> list[list[str]]:
        """The tags of the sentences of a part, in the scheme of the rows."""
        return tag_sequences(part.examples, part.rows)

    def to_model_scheme(self, tags: Sequence[str]) -> list[str]:
        """The tags of a sentence, repaired and converted from the scheme of the rows to that of the model."""
        given, scheme = self.given_scheme, self.scheme
        if given == "auto" or scheme == "auto" or given == "none":
            return list(tags)
        if given == scheme:
            return repair_tags(tags, scheme)
        return tags_of(spans_of(tags, given), len(tags), scheme)

    def to_row_scheme(self, tags: Sequence[str]) -> list[str]:
        """Predicted tags of a sentence, converted from the scheme of the model to that of the rows."""
        given, scheme = self.given_scheme, self.scheme
        if given == scheme or given == "auto" or scheme == "auto":
            return list(tags)
        return tags_of(spans_of(tags, scheme), len(tags), given)

    def forward(self, model: Any, features: Any) -> Any:
        """The CRF potentials of the scores."""
        from kmha.features import WORD_MASK

        return model.potentials(model(features, training=True), features[WORD_MASK])

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Negative log-likelihood of the tags per word, float32 [B]."""
        from training.losses.classification import tag_sequence_loss

        return tag_sequence_loss(targets, outputs)

    def gather_outputs(self, num_outputs: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        """The scores of all words, one sentence after another."""
        from kmha.inference.tagger import scatter_scores

        scores = np.zeros((int(source.counts.sum()), num_outputs), np.float32)
        for plan, found in outputs:
            scatter_scores(scores, np.asarray(found), source.begins[plan.rows], source.counts[plan.rows])
        return scores

    def postprocessor(self, model: Any) -> Callable[[Any, Any], Any]:
        """Gives the tags of each sentence, `kmha.inference.tagger.TaggedSentences`."""
        from kmha.inference.tagger import PathDecoder

        decode = PathDecoder(model)
        return lambda source, outputs: decode(
            self.gather_outputs(decode.num_tags, source, outputs), source.word_counts
        )

    def dummy_predictions(self, model: Any, part: Subset) -> Any:
        """The first tag for every word."""
        from kmha.inference.tagger import TaggedSentences

        counts = part.examples.local_labels(part.rows)[1]
        words = int(counts.sum())
        uniform = np.full((words, model.num_labels), 1 / model.num_labels, np.float32)
        return TaggedSentences(counts, np.zeros(words, np.int32), uniform, np.ones(words, np.float32))

    def scores(
        self, part: Subset, labels: Sequence[str], tagged: Any, decision: dict, /, intervals: bool = False
    ) -> dict[str, Any]:
        """Scores of the spans and of the tags; with intervals, also the most frequent errors."""
        from training.metrics.classification import calibration_error, log_loss
        from training.metrics.spans import most_frequent_errors, tag_scores

        gold, predicted, scheme = self._gold_and_predicted(part, labels, tagged)
        scores = tag_scores(gold, predicted, scheme)
        targets, places = self.targets(part, labels), np.arange(len(tagged.tag_ids))
        confidences = tagged.probabilities[places, tagged.tag_ids]
        scores["loss"] = log_loss(tagged.probabilities[places, targets])
        scores["ece"] = calibration_error(confidences, tagged.tag_ids == targets)
        if intervals:
            words = read_sentences(part.examples, part.rows)
            scores["errors"] = most_frequent_errors(words, gold, predicted, scheme)
            scores["intervals"] = intervals_of(self.resampled(part, labels, tagged, decision))
        return scores

    def resampled(self, part: Subset, labels: Sequence[str], tagged: Any, decision: dict, /) -> tuple:
        """The scores of sentences."""
        from training.metrics.spans import tag_resampled

        return (tag_resampled(*self._gold_and_predicted(part, labels, tagged)),)

    def _gold_and_predicted(
        self, part: Subset, labels: Sequence[str], tagged: Any
    ) -> tuple[list[list[str]], list[list[str]], Scheme]:
        """The tags of the rows, those that were predicted, and the scheme of both."""
        assert self.given_scheme != "auto"
        predicted = [
            self.to_row_scheme([str(labels[index]) for index in sentence.tag_ids])
            for sentence in tagged.sentences()
        ]
        return self.row_tags(part), predicted, self.given_scheme

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> Baseline:
        """The most frequent tag of each word, or a linear model on context, affixes and shapes."""
        from training.baselines.tagging import fit_tag_baseline
        from training.metrics.spans import tag_resampled, tag_scores

        assert self.given_scheme != "auto"
        sentences, held_out = (read_sentences(part.examples, part.rows) for part in (train, validation))
        fitted = fit_tag_baseline(sentences, self.row_tags(train), held_out, self.row_tags(validation), seed)
        predicted = fitted.predict(read_sentences(evaluated.examples, evaluated.rows))
        gold, scheme = self.row_tags(evaluated), self.given_scheme
        resampled = (tag_resampled(gold, predicted, scheme),)
        scores = {**tag_scores(gold, predicted, scheme), "intervals": intervals_of(resampled)}
        return Baseline(fitted.description, scores, resampled)


def tag_sequences(examples: ExampleSet, rows: np.ndarray) -> list[list[str]]:
    """The tags of some sentences, in the scheme of the rows."""
    names = np.array(examples.label_names, object)
    ids, counts = examples.local_labels(rows)
    return [part.tolist() for part in np.split(names[ids], np.cumsum(counts)[:-1])]


def _log_broken(examples: ExampleSet, scheme: Scheme) -> None:
    """Logs how many tags break the scheme, and where the first ones are."""
    if scheme == "none":
        return
    count, shown = 0, []
    for row, tags in enumerate(tag_sequences(examples, np.arange(len(examples)))):
        words = broken_words(tags, scheme)
        count += len(words)
        for word in words[: SHOWN_BROKEN - len(shown)]:
            before = tags[word - 1] if word else "the start"
            shown.append(f"{examples.place(row)} word {word + 1} ({tags[word]} after {before})")
    if count:
        more = ", …" * (count > len(shown))
        logger.info(f"{count:,} tags break {scheme} and are repaired: {', '.join(shown)}{more}")


def _single_characters(examples: ExampleSet) -> bool:
    """Whether nearly all words are one character."""
    single = total = 0
    for first in range(0, len(examples), CHUNK_ROWS):
        for text in examples.read_texts(np.arange(first, min(first + CHUNK_ROWS, len(examples)))):
            words = text.split("\n")
            total += len(words)
            single += sum(len(word) == 1 for word in words)
    return single >= SINGLE_CHARACTERS * total


def _initialize_from_counts(model: Any, tag_ids: np.ndarray, lengths: np.ndarray) -> None:
    """Sets the bias of the head to the log frequencies of tags, and the CRF weights to relative transition frequencies.

    Adam moves a weight by about the learning rate per step. From zero, the weights of unseen transitions would need
    more steps than a training has. `tag_ids` are int32 [N] of all words, `lengths` the words of each sentence, above 0.
    """
    count = model.num_labels
    words = np.bincount(tag_ids, minlength=count) + ADDED_COUNT
    shares = words / words.sum()
    model.head.bias.assign(np.log(shares).astype(np.float32))
    if not model.crf.trainable:
        return
    ends = np.cumsum(lengths)
    inside = np.ones(len(tag_ids), bool)
    inside[ends - 1] = False
    pairs = np.bincount(tag_ids[:-1][inside[:-1]] * count + tag_ids[1:][inside[:-1]], minlength=count**2)
    pairs = pairs.reshape(count, count) + ADDED_COUNT
    firsts = np.bincount(tag_ids[ends - lengths], minlength=count) + ADDED_COUNT
    lasts = np.bincount(tag_ids[ends - 1], minlength=count) + ADDED_COUNT
    # Relative to the frequencies, which the head already has.
    model.crf.transitions.assign(np.log(pairs / pairs.sum(axis=1, keepdims=True) / shares).astype(np.float32))
    model.crf.start.assign(np.log(firsts / firsts.sum() / shares).astype(np.float32))
    model.crf.end.assign(np.log(lasts / lasts.sum() / shares).astype(np.float32))
