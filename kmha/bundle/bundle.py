"""The run folder as one object: model, preprocessor, labels. Loads without the training code."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.files import parts_of, read_model, read_preprocessor, read_sample, task_of, write_files
from kmha.bundle.manifest import (
    CLASSIFY,
    FORMAT,
    KINDS,
    MANIFEST,
    MASKED_LM,
    MATCH,
    MODEL,
    MODEL_NAMES,
    SAMPLE,
    TAG,
    VOCABULARY,
    check_files,
    read_manifest,
)
from kmha.document_windows import computed_tokens
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS, validate_token_ids
from kmha.inference import predictions as answers
from kmha.inference.batching import (
    BATCH_TOKENS,
    CHUNK_ROWS,
    TextRow,
    chunks,
    encode_texts,
    length_batches,
    text_columns,
)
from kmha.inference.mask_filler import MaskFiller
from kmha.inference.tagger import Tagger

__all__ = ["FORMAT", "MANIFEST", "MODEL", "SAMPLE", "VOCABULARY", "Bundle"]


@dataclasses.dataclass
class Bundle:
    """A trained model with everything it needs to answer strings.

    Args:
        model: A built `TextClassifier`, `TextMatcher`, `SequenceTagger` or `MaskedLanguageModel`.
        preprocessor: The one it was trained with: a `Preprocessor`, for a matcher a `PairPreprocessor`, for a tagger a
            `SentencePreprocessor`.
        labels: Names in the order of the model's outputs; none of a masked language model.
        thresholds: With several labels, the probability from which each is given (None: 0.5); of a binary matcher, the
            one from which a pair matches; else None.
        details: More JSON values for bundle.json: columns, data hashes, lengths of the training rows in tokens.
        sample: Some training texts, or pairs of them, on which an export calibrates itself and warms up.
        abstain_below: Of a model with one answer a row, the probability of that answer below which it is not to be
            relied on; None: it always is.

    Raises:
        InputError: The parts do not fit one another.
    """

    model: Any
    preprocessor: Any
    labels: list[str]
    thresholds: list[float] | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    sample: list[Any] = dataclasses.field(default_factory=list)
    abstain_below: float | None = None

    def __post_init__(self):
        if self.uses_thresholds and self.thresholds is None:
            self.thresholds = [0.5] * len(self.labels)
        self._check()
        # It tags sentences; all other models give probabilities to rows.
        self.tagger: Any = Tagger(self.model, self.preprocessor) if self.task == TAG else None
        # It fills in texts.
        self.filler: Any = MaskFiller(self.model, self.preprocessor) if self.task == MASKED_LM else None
        if not self._gives_probabilities:
            return
        self._logits = tf.function(self._forward, reduce_retracing=True, autograph=False)
        # In a graph: for a single text, eager ragged ops would cost several times what the model does.
        self._sequences = tf.function(
            lambda *texts: self.preprocessor.encode(*texts),
            input_signature=[tf.TensorSpec([None], tf.string)] * self.preprocessor.num_texts,
            autograph=False,
        )

    def _check(self) -> None:
        outputs = self.model.num_labels
        if len(self.labels) != outputs:
            raise InputError(
                f"expected as many labels as the model with {outputs} outputs, got {len(self.labels)} labels"
            )
        if self.thresholds is not None and not self.uses_thresholds:
            kind = MODEL_NAMES[self.task]
            if self.task in (CLASSIFY, MATCH):
                kind = "one label" if self.task == CLASSIFY else f"a {self.model.target} target"
            raise InputError(f"thresholds belong to a model of several labels, got one of {kind}")
        if self.thresholds is not None and len(self.thresholds) != outputs:
            raise InputError(f"expected {outputs} thresholds, one a label, got {len(self.thresholds)}")
        if self.abstain_below is not None and not self.has_single_prediction:
            raise InputError(
                "abstain_below belongs to a model that gives a row one answer and its probability"
            )
        parts, encoders = parts_of(self.preprocessor), self.model.encoder_configs
        if list(parts) != list(encoders):
            raise InputError(
                f"expected texts cut into {', '.join(encoders)} as by the model, got {', '.join(parts)}"
            )
        for part, encoder in zip(parts.values(), encoders.values(), strict=True):
            tokens, length = len(part.vocabulary), self.model.max_sequence_length(part.max_length)
            if tokens > encoder.vocabulary_size:
                raise InputError(
                    f"expected a vocabulary of at most the model's {encoder.vocabulary_size} tokens, got {tokens}"
                )
            if length > encoder.max_length:
                raise InputError(f"max_length must be at most the model's {encoder.max_length}, got {length}")

    @property
    def task(self) -> str:
        """What the model does: "classify", "match", "tag" or "masked-lm"."""
        return task_of(self.model)

    @property
    def _gives_probabilities(self) -> bool:
        return self.task in (CLASSIFY, MATCH)

    @property
    def multi_label(self) -> bool:
        """Whether a text may carry several labels."""
        return self.task == CLASSIFY and self.model.multi_label

    @property
    def uses_thresholds(self) -> bool:
        """Whether each output is a probability with a threshold of its own."""
        return self.multi_label or (self.task == MATCH and self.model.target == "binary")

    @property
    def has_single_prediction(self) -> bool:
        """Whether a row gets one answer with a probability: a label, a class, or whether a pair matches."""
        return (self.task == CLASSIFY and not self.multi_label) or (
            self.task == MATCH and self.model.target != "graded"
        )

    def save(self, folder: Path) -> None:
        """Writes model.keras, the vocabularies, sample.jsonl and bundle.json with their hashes into a folder."""
        kind = KINDS[self.task]
        values = {
            **self.details,
            kind: getattr(self.model, kind),
            "labels": self.labels,
            "thresholds": self.thresholds,
            **({} if self.abstain_below is None else {"abstain_below": self.abstain_below}),
        }
        write_files(Path(folder), self.model, self.preprocessor, self.sample, values)

    @classmethod
    def load(cls, folder: Path | str) -> "Bundle":
        """Reads what `save` wrote.

        Raises:
            InputError: No bundle stands there, its format is newer, a file is missing or not the one recorded, the
                model file holds code or is another model, or the parts do not fit one another.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        model = read_model(folder / MODEL, manifest["task"])
        kind = KINDS[manifest["task"]]
        if getattr(model, kind) != manifest[kind]:
            raise InputError(f"{folder / MANIFEST}: {kind} must be {getattr(model, kind)} as in {MODEL}")
        known = {"format", "task", kind, "labels", "thresholds", "abstain_below", "text", "versions", "files"}
        details = {key: value for key, value in manifest.items() if key not in known}
        try:
            preprocessor = read_preprocessor(folder, manifest)
            sample = []
            if SAMPLE in manifest["files"]:
                sample = read_sample(folder / SAMPLE, preprocessor.num_texts)
            decision = manifest["thresholds"], details, sample, manifest.get("abstain_below")
            return cls(model, preprocessor, manifest["labels"], *decision)
        except (InputError, TypeError) as error:
            raise InputError(f"{folder / MANIFEST}: text or labels cannot be used: {error}") from error

    def _forward(self, features):
        return self.model(features, training=False)

    def probabilities(self, texts: Sequence[TextRow]) -> np.ndarray:
        """float32 [R, C] of texts, or of pairs of texts; empty ones are answered too. Of graded pairs the scores.

        Raises:
            InputError: They are no sequence of texts, or of pairs where the model compares.
        """
        if not self._gives_probabilities:
            raise InputError(f"expected a classifier or a matcher, got {MODEL_NAMES[self.task]}")
        if isinstance(texts, str | bytes):
            raise InputError("texts must be a list of strings, got one string")
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.labels)), np.float32)

    def _chunk(self, rows: Sequence[TextRow]) -> np.ndarray:
        given = text_columns(rows, self.preprocessor.num_texts)
        encoded = [encode_texts(texts, self.preprocessor.max_bytes) for texts in given]
        sequences = self._sequences(*(tf.constant(texts, tf.string) for texts in encoded))
        lengths = np.sum([each.row_lengths().numpy() for each in sequences], axis=0)
        result = np.zeros((len(rows), len(self.labels)), np.float32)
        for chosen in length_batches(computed_tokens(self.model, lengths), BATCH_TOKENS):
            features = self.preprocessor.pad([tf.gather(each, chosen) for each in sequences])
            result[chosen] = self.model.probabilities(self._logits(features)).numpy()
        return result

    def probabilities_of_ids(self, token_ids, padding_mask=None) -> np.ndarray:
        """float32 [B, C] of the token ids [B, T] of single texts, special tokens included.

        Args:
            token_ids: Integers [B, T].
            padding_mask: Integers [B, T], 1 = a real token; None: wherever the id is not padding's.

        Raises:
            InputError: An id is negative or past the vocabulary, or the sequence too long.
        """
        given = {TOKEN_IDS: token_ids}
        return self.probabilities_of_features(
            given if padding_mask is None else {**given, PADDING_MASK: padding_mask}
        )

    def probabilities_of_features(self, features: dict[str, Any]) -> np.ndarray:
        """float32 [B, C] of the model's inputs by name.

        Args:
            features: Token ids, integers [B, T], special tokens included, by the names of `preprocessor.inputs`; and
                masks, of which a missing one is 1 wherever the id is not padding's.

        Raises:
            InputError: Ids are missing, one is negative or past the vocabulary, or a sequence is too long.
        """
        checked = {}
        for ids_name, mask_name, _, part in self.preprocessor.inputs:
            if ids_name not in features:
                raise InputError(f"expected {ids_name}, got {', '.join(features) or 'none'}")
            ids = validate_token_ids(features[ids_name], len(part.vocabulary), part.max_length)
            mask = np.asarray(features.get(mask_name, ids != part.padding_id)) > 0
            if mask.shape != ids.shape:
                raise InputError(
                    f"{mask_name} must have the shape of {ids_name} {ids.shape}, got {mask.shape}"
                )
            checked |= {ids_name: tf.constant(ids), mask_name: tf.constant(mask.astype("int32"))}
        return self.model.probabilities(self._logits(checked)).numpy()

    def predict(self, texts: Sequence[TextRow], number: int = 1) -> list[dict[str, Any]]:
        """Answers to texts, or to pairs of texts.

        Args:
            texts: Texts, pairs of texts, or sentences: raw texts or lists of words.
            number: Of the first of them, for messages.

        Returns:
            For each text {"label": its best label, "probability": of that label, "probabilities": {label: p}};
            with several labels {"labels": those given, best first, "probabilities": {label: p}}; for each pair
            {"score": …, "match": whether it reaches the threshold}, of graded ones the score alone, of classes as for a
            text; with `abstain_below` also {"abstained": whether the answer is not to be relied on}; for each sentence
            what `kmha.inference.tagger.sentence_answer` tells; for each text with a [MASK] what `kmha.inference.mask_filler.MaskFiller` does.
        """
        if self.tagger is not None:
            return self.tagger.predict(texts, self.labels, number)
        if self.filler is not None:
            return self.filler.predict(texts)
        return [self.prediction_from(row) for row in self.probabilities(texts)]

    def predict_stream(self, texts: Iterator[TextRow]) -> Iterator[dict[str, Any]]:
        """The answers to a stream of texts, in order, without holding them all.

        Raises:
            InputError: As `probabilities` and the stream do; what comes before a text that the stream refuses is
                answered first.
        """
        done = 0
        for chunk in chunks(texts, CHUNK_ROWS):
            yield from self.predict(chunk, done + 1)
            done += len(chunk)

    def prediction_from(self, probabilities: np.ndarray) -> dict[str, Any]:
        """The answer that probabilities [C] amount to."""
        if self.task == MATCH and self.model.target != "classes":
            threshold = self.thresholds[0] if self.thresholds else None
            return answers.pair(probabilities[0], threshold, self.abstain_below)
        if self.thresholds is None:
            return answers.one_label(probabilities, self.labels, self.abstain_below)
        return answers.several_labels(probabilities, self.labels, self.thresholds)
