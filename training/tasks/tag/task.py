"""Tag the words of a sentence: names, parts of speech, words of an unspaced script.

Judging imports scikit-learn, which takes a second: inside the methods, so that --help need not wait for it.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmha.errors import InputError
from kmha.tags import Scheme, allowed_transitions, broken_words, detect_scheme, repair_tags, spans_of, tags_of
from training.data.types import Columns, Subset, TrainingSet
from training.io.example_store import Example, ExampleSet
from training.io.tables import Row
from training.tasks.protocol import Defaults
from training.tasks.tag.rows import read_sentences, sentence_example, tag_columns
from training.tasks.tag.settings import TagSettings

logger = logging.getLogger("kmha")

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig

CHUNK_ROWS = 4096
SHOWN_BROKEN = 3
# Of words, from which on a raw text is split into characters.
SINGLE_CHARACTERS = 0.99


@dataclasses.dataclass(frozen=True)
class TagTask(TagSettings):
    """What a tagger adds to the encoder."""

    # See `Task`.
    baseline_name = "baseline"
    num_texts = 1
    several_labels = True
    has_classes = True
    holds_out_queries = False
    labels_alone = False
    whole_batches = False
    masking = None
    windows = None
    makes_wrong_rows = False

    @property
    def metric(self) -> str:
        """Name of the score that picks the best weights."""
        return self.best_by

    @property
    def defaults(self) -> Defaults:
        """Little is dropped, since every word is asked for; but spelling is learnt from words that are dropped."""
        return Defaults(0.3, 0.2) if self.characters else Defaults(0.05, 0.05)

    @property
    def kept(self) -> dict[str, Any]:
        """The metric, and how the tags of the rows spell spans."""
        return {"metric": self.metric, "given_scheme": self.given_scheme}

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["TagTask", Columns]:
        """Finds the columns of words and tags."""
        return self, tag_columns(available, columns)

    def examples(self, row: Row, columns: Columns) -> tuple[Example]:
        """The sentence in a row."""
        return (sentence_example(row, columns, self._bounds),)

    def _bounds(self, text: str) -> Sequence[tuple[int, int]]:
        """Where the words of a text with spans are."""
        from kmha.quiet import import_tensorflow

        import_tensorflow()
        from kmha.text.words import word_bounds

        return word_bounds(text, "characters" if self.split == "characters" else "words")

    def settled(self, sets: Mapping[str, ExampleSet]) -> "TagTask":
        """The task with everything decided that was left to the rows; tells of tags that break their scheme."""
        train = sets["train"]
        given = self.given_scheme
        if given == "auto":
            given = detect_scheme(tag_sequences(train, np.arange(len(train))))
        scheme = given if self.scheme == "auto" else self.scheme
        if given != scheme and "none" in (given, scheme):
            raise InputError(
                f"--tag.scheme: expected none for tags that spell no spans, got {scheme}"
                if given == "none"
                else f"--tag.scheme: expected one that spells spans, as the tags do ({given}), got {scheme}"
            )
        for examples in sets.values():
            _tell_broken(examples, given)
        single = _single_characters(train)
        best_by = self.best_by
        if best_by == "auto":
            best_by = "token_accuracy" if scheme == "none" else "span_f1"
        if best_by == "span_f1" and scheme == "none":
            raise InputError(
                "--tag.best-by: expected token_accuracy for tags that spell no spans, got span_f1"
            )
        split = self.split
        if split == "auto":
            split = "characters" if single else "words"
        characters = not single if self.characters is None else self.characters
        return dataclasses.replace(
            self, scheme=scheme, given_scheme=given, best_by=best_by, split=split, characters=characters
        )

    def outputs(self, labels: Sequence[str], train: Subset) -> list[str]:
        """The tags of the training rows in the scheme that is learnt, sorted."""
        return sorted({tag for tags in self.given_tags(train) for tag in self.learnt(tags)})

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """One for sentences, around the only part."""
        from kmha.text.sentence_preprocessor import SentencePreprocessor

        (part,) = parts.values()
        return SentencePreprocessor(part, self.split, bool(self.characters))  # pyright: ignore  (settled by now)

    def build(self, encoders: "dict[str, EncoderConfig]", labels: Sequence[str]):
        """A built tagger."""
        from kmha.features import NUM_CHARACTERS
        from kmha.models.tagger import SequenceTagger

        (encoder,) = encoders.values()
        allowed = allowed_transitions(labels, self.scheme)  # pyright: ignore  (settled by now)
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
            name="tagger",
        )
        model.build()
        return model

    def prepare(self, model: "keras.Model", source: Any) -> None:
        """Starts from how often tags stand, and stand side by side, in the training rows."""
        from training.tasks.tag.initialization import start_from_counts

        start_from_counts(model, source.targets, source.word_counts)

    def forward(self, model: "keras.Model", features: Any) -> Any:
        """What the CRF makes of the scores."""
        from kmha.features import WORD_MASK

        return model.potentials(model(features, training=True), features[WORD_MASK])

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The sentences of the part."""
        return TrainingSet(part.rows, self.targets(part, labels), np.ones(len(part.rows), np.float32))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """int32 [N], a tag id of each word, one sentence after another, in the scheme that is learnt."""
        places = {label: place for place, label in enumerate(labels)}
        found = []
        for tags in self.given_tags(part):
            # A tag that the model does not know cannot be a target; the scores count such words as wrong.
            found += [places.get(tag, 0) for tag in self.learnt(tags)]
        return np.array(found, np.int32)

    def learnt(self, tags: Sequence[str]) -> list[str]:
        """The tags of a sentence, repaired and in the scheme that is learnt."""
        given, scheme = self.given_scheme, self.scheme
        if given == "auto" or scheme == "auto" or given == "none":
            return list(tags)
        if given == scheme:
            return repair_tags(tags, scheme)
        return tags_of(spans_of(tags, given), len(tags), scheme)

    def as_given(self, tags: Sequence[str]) -> list[str]:
        """The learnt tags of a sentence in the scheme of the rows."""
        given, scheme = self.given_scheme, self.scheme
        if given == scheme or given == "auto" or scheme == "auto":
            return list(tags)
        return tags_of(spans_of(tags, scheme), len(tags), given)

    def given_tags(self, part: Subset) -> list[list[str]]:
        """The tags of the sentences of a part as the rows have them."""
        return tag_sequences(part.examples, part.rows)

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Minus the log-probability of the right tags a word, float32 [B]."""
        from training.losses.classification import tag_sequence_loss

        return tag_sequence_loss(targets, outputs)

    def reader(self, model: "keras.Model") -> Callable[[Any, Any], Any]:
        """Gives the tags of each sentence, `kmha.inference.tagger.TaggedSentences`."""
        from kmha.inference.tagger import PathDecoder
        from training.tasks.tag.outputs import tagged_sentences

        return functools.partial(tagged_sentences, PathDecoder(model))

    def guesses(self, model: "keras.Model", part: Subset) -> Any:
        """The first tag everywhere."""
        from kmha.inference.tagger import TaggedSentences

        counts = part.examples.local_labels(part.rows)[1]
        words = int(counts.sum())
        shares = np.full((words, model.num_labels), 1 / model.num_labels, np.float32)
        return TaggedSentences(counts, np.zeros(words, np.int32), shares, np.ones(words, np.float32))

    def decision(self, part: Subset, labels: Sequence[str], answers: Any) -> dict[str, Any]:
        """Nothing is left to decide."""
        return {}

    def scores(
        self, part: Subset, labels: Sequence[str], answers: Any, decision: dict, intervals: bool = False
    ) -> dict[str, Any]:
        """Scores of the spans and of the tags; with intervals, also the most frequent errors."""
        from training.metrics.spans import most_frequent_errors
        from training.tasks.tag.scoring import sentence_scores, word_scores

        gold, scheme = self.given_tags(part), self.given_scheme
        assert scheme != "auto"
        predicted = [
            self.as_given([str(labels[index]) for index in sentence.tag_ids])
            for sentence in answers.sentences()
        ]
        scores = sentence_scores(gold, predicted, scheme, intervals)
        scores |= word_scores(self.targets(part, labels), answers)
        if intervals:
            words = read_sentences(part.examples, part.rows)
            scores["errors"] = most_frequent_errors(words, gold, predicted, scheme)
        return scores

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """The most frequent tag of each word, or a linear model on windows, affixes and shapes."""
        from training.baselines.tagging import fit_tag_baseline
        from training.tasks.tag.scoring import sentence_scores

        assert self.given_scheme != "auto"
        rows = (
            (read_sentences(part.examples, part.rows), self.given_tags(part)) for part in (train, validation)
        )
        (sentences, tags), held_out = rows
        fitted = fit_tag_baseline(sentences, tags, *held_out, seed)
        predicted = fitted.predict(read_sentences(evaluated.examples, evaluated.rows))
        return fitted.description, sentence_scores(
            self.given_tags(evaluated), predicted, self.given_scheme, True
        )


def tag_sequences(examples: ExampleSet, rows: np.ndarray) -> list[list[str]]:
    """The tags of some sentences as they were given."""
    names = np.array(examples.label_names, object)
    ids, counts = examples.local_labels(rows)
    return [part.tolist() for part in np.split(names[ids], np.cumsum(counts)[:-1])]


def _tell_broken(examples: ExampleSet, scheme: Scheme) -> None:
    """Says how many tags break the scheme, and where the first ones are."""
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
        logger.info(
            f"{count:,} tags break {scheme} and are repaired: {', '.join(shown)}{', …' * (count > len(shown))}"
        )


def _single_characters(examples: ExampleSet) -> bool:
    """Whether nearly all words are one character."""
    single = total = 0
    for first in range(0, len(examples), CHUNK_ROWS):
        for text in examples.read_texts(np.arange(first, min(first + CHUNK_ROWS, len(examples)))):
            words = text.split("\n")
            total += len(words)
            single += sum(len(word) == 1 for word in words)
    return single >= SINGLE_CHARACTERS * total
