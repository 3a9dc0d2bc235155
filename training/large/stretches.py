"""Training rows a stretch at a time: while a model trains on one, the texts of the next are cut into tokens."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kmha.text.preprocessor import Preprocessor
from training.large.limits import Large
from training.pipeline import TokenCounts, tokenize_examples
from training.spool import Spool
from training.tasks.task import Part

Cut = tuple[np.ndarray, Spool, TokenCounts]


class Stretches:
    """The training rows in a random order of their own each epoch, cut into stretches of equal size.

    Which rows a stretch has is a function of the seed and its number alone.

    Args:
        part: The training rows.
        preprocessor: Cuts their texts.
        large: How many rows a stretch has at most, and the seed.
        folder: Where the tokens go; their files are removed at once, and the space is free when nobody reads them.

    Attributes:
        per_epoch: Stretches that make up all rows.
    """

    def __init__(self, part: Part, preprocessor: Preprocessor, large: Large, folder: Path):
        self._part, self._preprocessor, self._large, self._folder = part, preprocessor, large, folder
        self.per_epoch = -(-len(part.rows) // large.stretch_rows)
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix="stretches")
        self._cut: dict[int, Future[Cut]] = {}

    def rows(self, number: int) -> np.ndarray:
        """The rows of a stretch, counted from 0 over all epochs: numbers of the set, integers [R], ascending."""
        epoch, place = divmod(number, self.per_epoch)
        total = len(self._part.rows)
        order = np.random.default_rng([self._large.seed, 13, epoch]).permutation(total)
        first, end = (total * each // self.per_epoch for each in (place, place + 1))
        # In the order of the file, which reads them faster; batches are shuffled anyway.
        return self._part.rows[np.sort(order[first:end])]

    def take(self, number: int, then: int | None = None) -> Cut:
        """The rows of a stretch, their token ids, a row of the spool each, and what cutting them met.

        Args:
            number: Of the stretch.
            then: The stretch that is wanted next and cut meanwhile; all others are forgotten.
        """
        wanted = [number] if then is None else [number, then]
        self._cut = {each: self._cut.get(each) or self._cutter.submit(self._made, each) for each in wanted}
        return self._cut[number].result()

    def close(self) -> None:
        """Waits until nothing is cut any more; then the folder may go."""
        self._cutter.shutdown(wait=True, cancel_futures=True)

    def _made(self, number: int) -> Cut:
        rows, path = self.rows(number), self._folder / f"stretch-{number}"
        spool, counts = tokenize_examples(self._part.examples, self._preprocessor, path, rows=rows)
        for each in self._folder.glob(f"{path.name}*"):
            if each.name.split(".")[0] == path.name:
                each.unlink()
        return rows, spool, counts
