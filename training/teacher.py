"""A trained model as a teacher: asked in the order of its student's labels, judged beside it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from kmha.bundle import Bundle
from kmha.document_windows import windows_of
from kmha.errors import InputError
from kmha.layers.crf import Potentials
from kmha.manifest import MANIFEST, sha256
from kmha.tagging import Tagged
from training.inputs import cut_parts
from training.judge import Judge
from training.tasks.task import Part

JUDGED_LENGTHS = 8


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model, asked in the order of its student's labels.

    Args:
        bundle: The model.
        order: Of each label of the student its place among the teacher's, integers [C].
        sha256: Of its bundle.json, which holds the hashes of its files.
    """

    bundle: Bundle
    order: np.ndarray
    sha256: str

    @classmethod
    def load(cls, run: Path, labels: list[str]) -> "Teacher":
        """Reads a run folder; raises InputError where it cannot be used."""
        try:
            bundle = Bundle.load(run)
        except InputError as error:
            raise InputError(f"--distill.teacher {run}: {error}") from error
        order = np.array([bundle.labels.index(label) for label in labels], np.int64)
        return cls(bundle, order, sha256(run / MANIFEST))

    def potentials(self, emissions, word_mask) -> Potentials:
        """Of a tagger, the potentials of emissions float32 [B, W, K] in the student's order."""
        found = self.bundle.model.potentials(emissions, word_mask)
        start, end = (ops.take(each, self.order, axis=-1) for each in (found.start, found.end))
        pairs = ops.take(ops.take(found.transitions, self.order, axis=0), self.order, axis=1)
        return found._replace(transitions=pairs, start=start, end=end)

    def scores(self, task: Any, part: Part, labels: list[str], folder: Path) -> dict[str, Any]:
        """What `task.scores` says of the teacher's own answers to the rows of a part.

        Args:
            task: The student's.
            part: The rows.
            labels: The student's.
            folder: Where token ids are kept meanwhile.
        """
        windows = windows_of(self.bundle.model)
        inputs = cut_parts(self.bundle.preprocessor, {"judged": part}, folder, windows=windows)
        source = inputs.judged("judged", task.targets(part, labels))
        judge = Judge(self.bundle.model, task, labels, source.buckets([], JUDGED_LENGTHS))
        answers, thresholds = judge.answers(source), self.bundle.thresholds
        if isinstance(answers, Tagged):
            places = np.argsort(self.order).astype(np.int32)
            answers = answers._replace(
                tag_ids=places[answers.tag_ids], probabilities=answers.probabilities[:, self.order]
            )
        else:
            answers = answers[:, self.order]
        decision = {} if thresholds is None else {"thresholds": [thresholds[place] for place in self.order]}
        return task.scores(part, labels, answers, decision, intervals=True)
