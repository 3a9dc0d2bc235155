"""Text pairs made from a small word list: matching texts share most of their words, in any order."""

import numpy as np

WORDS = (
    "the a of in under near old new red green small wide quiet sudden early late "
    "ferry harbour baker bread bridge river garden lamp window winter summer market "
    "teacher doctor sailor child dog horse train ticket letter song story clock "
    "leaves opens bakes carries finds loses paints repairs sells buys writes reads "
    "waits sings crosses borrows often never again today slowly"
).split()
_SHORTEST, _LONGEST = 5, 12
_SHARED_IF_RIGHT = (0.65, 1.0)
_SHARED_IF_WRONG = (0.1, 0.7)


def paraphrase_rows(count: int, seed: int) -> list[tuple[str, str, int]]:
    """Makes rows (text_a, text_b, label), about half of each label.

    With label 1 the second text has .65 to 1 of the first text's words, with label 0 .1 to .7. The order is random, and
    a few other words are added. The share of common words decides nine rows in ten.
    """
    generator = np.random.default_rng(seed)
    return [_row(generator, int(label)) for label in generator.integers(2, size=count)]


def ranking_rows(queries: int, candidates: int, seed: int) -> list[tuple[str, str, int, str]]:
    """Makes rows (text_a, text_b, label, query_id): each query `candidates` rows, one or two of them right."""
    generator = np.random.default_rng(seed)
    rows = []
    for query in range(queries):
        words = _words(generator)
        right = min(int(generator.integers(1, 3)), max(1, candidates - 1))
        labels = generator.permutation([1] * right + [0] * (candidates - right))
        for label in labels:
            rows.append((" ".join(words), _other(generator, words, int(label)), int(label), f"q{query}"))
    return rows


def _row(generator: np.random.Generator, label: int) -> tuple[str, str, int]:
    words = _words(generator)
    return " ".join(words), _other(generator, words, label), label


def _words(generator: np.random.Generator) -> list[str]:
    return generator.choice(WORDS, generator.integers(_SHORTEST, _LONGEST + 1), replace=False).tolist()


def _other(generator: np.random.Generator, words: list[str], label: int) -> str:
    share = generator.uniform(*(_SHARED_IF_RIGHT if label else _SHARED_IF_WRONG))
    shared = generator.permutation(words)[: max(1, round(share * len(words)))].tolist()
    others = [word for word in WORDS if word not in words]
    length = max(len(shared), len(words) + int(generator.integers(-1, 2)))
    added = generator.choice(others, length - len(shared), replace=False).tolist()
    return " ".join(generator.permutation([*shared, *added]).tolist())
