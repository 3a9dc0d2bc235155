"""Tags and scores of sentences from a tagger's batch outputs."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kmha.inference.tagger import PathDecoder, TaggedSentences, scatter_scores


def tagged_sentences(
    decoder: PathDecoder, source: Any, outputs: Iterable[tuple[Any, Any]]
) -> TaggedSentences:
    """The tags of every sentence of a source.

    Args:
        decoder: Of the model.
        source: The sentences.
        outputs: Of each batch its plan and its scores, float32 [B, W, K].
    """
    return decoder(word_scores(decoder.num_tags, source, outputs), source.word_counts)


def word_scores(num_tags: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """The scores of every word of a source, float32 [N, K], one sentence after another.

    Args:
        num_tags: K.
        source: The sentences.
        outputs: Of each batch its plan and its scores, float32 [B, W, K].
    """
    scores = np.zeros((int(source.counts.sum()), num_tags), np.float32)
    for plan, found in outputs:
        scatter_scores(scores, np.asarray(found), source.begins[plan.rows], source.counts[plan.rows])
    return scores
