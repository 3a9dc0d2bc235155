"""python benchmarks/ranking.py [--documents 10000] [--queries 100]

Measures the time of one ranking query: bi-encoder with stored document vectors (width 256), and cross-encoder
with 1,000 candidates, with the query encoded once or as 1,000 separate pairs. Weights are random.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from kmha.quiet import import_tensorflow

import_tensorflow()

from kmha.bundle.bundle import Bundle  # noqa: E402
from kmha.config import EncoderConfig  # noqa: E402
from kmha.inference.retrieval import Ranker  # noqa: E402
from kmha.models.matcher import TextMatcher  # noqa: E402
from kmha.text.preprocessor import PairPreprocessor, Preprocessor  # noqa: E402
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary  # noqa: E402

WORDS = [f"w{index}" for index in range(8000)]
CANDIDATES = 1000


def main() -> None:
    """Measures and prints milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    documents = [" ".join(random.choice(WORDS, size)) for size in random.integers(5, 40, options.documents)]
    queries = [" ".join(random.choice(WORDS, size)) for size in random.integers(4, 12, options.queries)]

    bi = bundle("bi", hidden_dim=256)
    started = time.perf_counter()
    ranker = Ranker(bi, documents)
    print(f"vectors of {len(documents):,} documents, d 256: {time.perf_counter() - started:.1f} s, once")
    show(
        f"bi form, best 10 of {len(documents):,} stored vectors",
        lambda query: ranker.rank(query, 10),
        queries,
    )

    cross = bundle("cross", hidden_dim=128)
    candidates = documents[:CANDIDATES]
    once = Ranker(cross, candidates)
    few = queries[: max(2, options.queries // 10)]
    show(f"cross form, {CANDIDATES:,} candidates, query encoded once", once.scores, few)
    show(
        f"cross form, {CANDIDATES:,} separate pairs",
        lambda query: cross.probabilities([(query, candidate) for candidate in candidates]),
        few,
    )


def bundle(form: str, hidden_dim: int) -> Bundle:
    """A matcher with random weights: 2 layers, 4 heads, 8,000 words."""
    preprocessor = Preprocessor(Vocabulary([*SPECIAL_TOKENS, *WORDS]), "word", max_length=64)
    config = EncoderConfig(
        len(preprocessor.vocabulary),
        hidden_dim,
        intermediate_dim=4 * hidden_dim,
        max_length=64,
        ngram_buckets=131_071,
    )
    model = TextMatcher({"word": config}, form=form, overlap=form != "bi")  # pyright: ignore
    model.build()
    return Bundle(model, PairPreprocessor({"word": preprocessor}), ["score"])


def show(what: str, rank: Callable[[str], object], queries: list[str]) -> None:
    """Prints the median and the 95th percentile of single-query times."""
    for query in queries:  # warm-up: traces every length
        rank(query)
    times = []
    for query in queries:
        started = time.perf_counter()
        rank(query)
        times.append(1000 * (time.perf_counter() - started))
    print(f"{what}: median {statistics.median(times):.2f} ms, 95 % within {np.percentile(times, 95):.2f} ms")


if __name__ == "__main__":
    main()
