"""Sentences made from small word lists. The preceding word determines the type of each name."""

import random
from pathlib import Path

PEOPLE = ["Anna", "Bodo", "Cara", "Dirk", "Edda", "Falk"]
FAMILIES = ["Acker", "Birke", "Clasen", "Dohm", "Esser"]
PLACES = ["Nordhafen", "Suedtal", "Ostberg", "Westfurt", "Mittelau"]
OTHERS = "the old ferry baker bread river garden slowly sings waits , .".split()


def tagged_sentence(rng: random.Random) -> tuple[list[str], list[str]]:
    """Words and BIO tags of one sentence."""
    words, tags = [], []
    for _ in range(rng.randint(2, 4)):
        others = [rng.choice(OTHERS) for _ in range(rng.randint(1, 3))]
        words += others
        tags += ["O"] * len(others)
        if rng.random() < 0.5:
            words += [rng.choice(PEOPLE), rng.choice(FAMILIES)][: rng.randint(1, 2)]
            tags += ["B-PER", "I-PER"][: len(words) - len(tags)]
        else:
            words += ["in", rng.choice(PLACES)]
            tags += ["O", "B-LOC"]
    return words, tags


def tagged_sentences(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Some sentences with their tags."""
    rng = random.Random(seed)
    return [tagged_sentence(rng) for _ in range(count)]


def write_conll(path: Path, sentences) -> Path:
    """Writes sentences as a CoNLL file, a tab between word and tag."""
    blocks = ("".join(f"{word}\t{tag}\n" for word, tag in zip(*each, strict=True)) for each in sentences)
    path.write_text("\n".join(blocks), "utf-8")
    return path
