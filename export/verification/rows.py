"""The rows for which every exported model must predict as its bundle: labeled rows, its sample, and edge cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.graph import sample_rows
from export.predictors.artifacts import Row
from kmha.bundle.bundle import Bundle, parts_of
from kmha.bundle.manifest import TAG
from kmha.features import MAX_WORDS
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import CONTINUATION
from training.evaluation import evaluator
from training.io.examples import ColumnOverrides, Subset
from training.tasks.protocol import Task

LONG_BYTES = 100_000
# Letters of rare scripts; every vocabulary misses at least one of them.
RARE_LETTERS = "\u13a0\u1400\u16a0\u1401\u2c00\u10a80\ua4d0\U00010280\U00010330\U00012000\U00013000"


@dataclass(frozen=True)
class Rows:
    """Texts, pairs or sentences: labeled rows, then the bundle's sample, then edge cases."""

    # Of a tagger lists of words, then raw texts.
    texts: list[Row]
    # Descriptions of the edge cases.
    edge_case: list[str]
    # The labeled rows, and their task; None without labels.
    part: Subset | None = None
    task: Task | None = None

    @property
    def real(self) -> int:
        """Number of labeled rows."""
        return len(self.part.rows) if self.part else 0

    @property
    def compared(self) -> int:
        """Number of rows before the edge cases."""
        return len(self.texts) - len(self.edge_case)

    def place(self, index: int) -> str:
        """The origin of a row, for messages."""
        if self.part and index < self.real:
            return self.part.examples.place(int(self.part.rows[index]))
        if index < self.compared:
            return f"row {index - self.real + 1} of the run's sample"
        kind = "sentence" if isinstance(self.texts[index], list) else "text"
        return f"edge-case {kind}: {self.edge_case[index - self.compared]}"

    def metric(self, labels: Sequence[str], predictions: Any, decision: dict[str, Any]) -> float | None:
        """The task's main metric of predictions for the labeled rows; None where it is not defined."""
        if self.part is None or self.task is None:
            return None
        scores = self.task.scores(self.part, list(labels), predictions, decision)
        value = scores.get(self.task.metric)  # none of queries without queries
        return None if value is None else float(value)


def read_rows(bundle: Bundle, path: Path, given: ColumnOverrides, most: int, folder: Path) -> Rows:
    """Reads at most so many rows of a file (0: all), evenly spread over it, and adds the rows of `unlabeled_rows`.

    `given` has column names that differ from training. Raises InputError if the file or a row of it cannot be used.
    """
    task, part = evaluator.read_rows(bundle, path, given, folder)
    examples = part.examples
    count = min(most or len(examples), len(examples))
    part = Subset(examples, np.linspace(0, len(examples) - 1, count).round().astype(np.int64))
    others = unlabeled_rows(bundle)
    found = evaluator.read_inputs(bundle, part)
    return Rows([*map(_encoded, found), *others.texts], others.edge_case, part, task)


def unlabeled_rows(bundle: Bundle) -> Rows:
    """The rows that exports are compared on before they are published: the bundle's sample and the edge cases."""
    edge_case = edge_case_rows(bundle)
    return Rows([*map(_encoded, sample_rows(bundle)), *edge_case.values()], list(edge_case))


def _encoded(row: Any) -> Row:
    if isinstance(row, str):
        return row.encode("utf-8", "replace")
    if isinstance(row, list):
        return [word.encode("utf-8", "replace") for word in row]
    first, second = row
    return first.encode("utf-8", "replace"), second.encode("utf-8", "replace")


def edge_case_rows(bundle: Bundle) -> dict[str, Any]:
    """Edge-case texts or pairs by description; of a tagger those of `edge_case_sentences`.

    In pairs each edge-case text is text A with a plain text B, text B with a plain text A, and both texts.
    """
    if bundle.task == TAG:
        return edge_case_sentences(bundle)
    parts = parts_of(bundle.preprocessor)
    if bundle.preprocessor.num_texts == 1:
        return {name: text for part in parts.values() for name, text in edge_case_texts(part).items()}
    rows, seen = {}, set()
    for granularity, part in parts.items():
        plain = f"{_known_word(part)} {_known_word(part)[::-1]}".encode()
        for name, text in {"a plain text": plain, **edge_case_texts(part)}.items():
            if text in seen:
                continue
            seen.add(text)
            name = f"{granularity}, {name}" if len(parts) > 1 else name
            if text != plain:
                rows |= {f"{name} as A": (text, plain), f"{name} as B": (plain, text)}
            rows[f"{name} on both sides"] = (text, text)
    return rows


def edge_case_texts(part: Preprocessor) -> dict[str, bytes]:
    """Edge-case texts by description, for one tokenizer's vocabulary and longest length."""
    word, rare = _known_word(part), _unknown_word(part)
    longest = part.max_length
    # A space is a token of its own where tokens are characters.
    gap = "" if part.tokenization == "char" else " "
    texts = {
        "empty": "",
        "white space": " \t\r\n\u3000",
        "NUL": "\0",
        "NUL between words": f"{word}\0{word}",
        "control characters": f"\x01{word}\x1f{word}\x7f",
        "emoji": "🚢🥖 👩\u200d🍳🏽 🇳🇴",
        "right to left": "\u05de\u05e2\u05d1\u05d5\u05e8\u05ea \u202eabc\u202c \u0645\u0631\u062d\u0628\u0627",
        "marks and wide letters": f"e\u0301\u0301 ＦＵＬＬ　ｗｉｄｔｈ ﬁ² ẞ İ {word}\u200b{word}\ufeff",
        "special tokens": "[CLS] [SEP] [PAD] [MASK] [UNK] ##a",
        "only unknown words": gap.join([rare] * 3),
        "one long word": word * (LONG_BYTES // len(word.encode())),
        "100 kB": f"{word} " * (LONG_BYTES // (len(word.encode()) + 1)),
        "longest length": gap.join([word] * (longest - 2)),
        "one past the longest": gap.join([word] * (longest - 1)),
    }
    invalid = {
        "invalid UTF-8": b"\xff\xfe\xc0\x80",
        "invalid UTF-8 in a word": word.encode() + b"\xff" + word.encode(),
        "half a character": "港".encode()[:-1],
        "half a surrogate pair": b"\xed\xa0\x80",
    }
    return {name: text.encode() for name, text in texts.items()} | invalid


def edge_case_sentences(bundle: Bundle) -> dict[str, list[bytes] | bytes]:
    """Edge-case sentences of a tagger by description: lists of words, then raw texts."""
    texts = bundle.preprocessor
    word = _known_word(texts.part).encode()
    single = {
        f"{name}, as a word": text for name, text in edge_case_texts(texts.part).items() if len(text) < 1000
    }
    sentences: dict[str, list[bytes] | bytes] = {
        "no words": [],
        "words without characters": [b"", word, b""],
        "words without tokens": [b"\x01", "\u200b".encode(), word, b" "],
        "one very long word": [word, word * (LONG_BYTES // len(word)), word],
        "1,500 words": [word, b"a", b"."] * 500,
        f"{MAX_WORDS:,} words": [word] * MAX_WORDS,
        **{name: [text] for name, text in single.items()},
        **{f"{name} among others": [word, text, b".", text] for name, text in single.items()},
    }
    longest = texts.max_length
    for count in (longest - 3, longest - 2, longest - 1, longest, 2 * longest):
        sentences[f"{count} words of one token"] = [word] * count
    raw = edge_case_texts(texts.part)
    raw["many words"] = b"%b. " % word * (MAX_WORDS // 2)
    counts = texts.words([*raw.values()]).words.row_lengths().numpy()
    # The run refuses longer ones too.
    fits = {name: text for (name, text), count in zip(raw.items(), counts, strict=True) if count <= MAX_WORDS}
    return sentences | {f"{name}, raw": text for name, text in fits.items()}


def _known_word(part: Preprocessor) -> str:
    """The longest of the first words in the vocabulary; each repetition of it is one token."""
    tokens = part.vocabulary.tokens
    words = [token for token in tokens if token.isalpha() and not token.startswith(CONTINUATION)]
    return max(words[:2000], key=len, default="a")


def _unknown_word(part: Preprocessor) -> str:
    known = set("".join(part.vocabulary.tokens))
    return next((letter * 3 for letter in RARE_LETTERS if letter not in known), RARE_LETTERS[0])
