"""Token ids of texts with Python's standard library only: copy this one file to the device.

It reads the tokenizer.json that an export wrote and returns the token ids of training, for any bytes and any version of
Unicode on the device. `Tokenizer` is for models of single texts, `PairTokenizer` for pairs; `sentences.py` is for
sentences.
"""

import json
import re

FORMAT = 1


class Tokenizer:
    """Tokenizes texts as the model's own tokenizer does, from the content of tokenizer.json.

    Raises ValueError if the format is newer than this file, or the file is of a model of pairs.
    """

    def __init__(self, values):
        check(values, "classify")
        self.labels = values["labels"]
        self.multi_label = values["multi_label"]
        self.thresholds = values["thresholds"]
        self.max_length = values["max_length"]
        self.tokens = values["vocabulary"]
        self.special_ids = values["special_ids"]
        self._max_bytes = values["max_bytes"]
        self._most_word_bytes = values["max_word_bytes"]
        self._continuation = values["continuation"]
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self._unknown = self.special_ids["unknown"]
        self._longest = max(len(token) for token in self.tokens)
        self._normalized = _normalization(values["normalization"])
        self._split = {"wordpiece": self._pieces, "word": self._words, "char": self._characters}[
            values["tokenization"]
        ]
        white, alone = in_brackets(values["white_space"]), in_brackets(values["isolated"])
        self._white = re.compile(f"[{white}]+")
        self._word = re.compile(f"[{alone}]|[^{white}{alone}]+" if alone else f"[^{white}]+")

    @classmethod
    def read(cls, path):
        """The tokenizer of a tokenizer.json."""
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    def tokenize(self, text, most=None):
        """Token ids of a text, without special tokens: at most `most`, by default all that the model reads.

        A text is str, or bytes of any kind; invalid UTF-8 is read as replacement characters.
        """
        first = text[: self._max_bytes]
        raw = first if isinstance(first, bytes) else first.encode("utf-8", "replace")
        whole = raw[: self._max_bytes].decode("utf-8", "replace").translate(self._normalized)
        ids = []
        for token in self._split(whole):
            if most is not None and len(ids) >= most:
                break
            ids.append(token)
        return ids

    def encode(self, text, length=None):
        """Token ids of a text between the special ones: at most `length`, by default the model's longest."""
        most = min(length or self.max_length, self.max_length)
        return [self.special_ids["start"], *self.tokenize(text, most - 2), self.special_ids["end"]]

    def pad(self, ids, length):
        """Token ids and padding mask of exactly this length, two lists of int; the mask is 1 at real tokens."""
        rest = length - len(ids)
        return [*ids, *[self.special_ids["padding"]] * rest], [*[1] * len(ids), *[0] * rest]

    def answer(self, probabilities):
        """The best label from probabilities; with several labels the list of predicted ones, best first."""
        order = sorted(range(len(self.labels)), key=lambda index: -probabilities[index])
        if not self.multi_label:
            return self.labels[order[0]]
        return [self.labels[index] for index in order if probabilities[index] >= self.thresholds[index]]

    def _pieces(self, text):
        for word in self._word.findall(text):
            yield from self._pieces_of(word)

    def _pieces_of(self, word):
        """The longest pieces from left to right; one unknown token if the rest of the word has no piece."""
        if len(word.encode()) > self._most_word_bytes:
            return [self._unknown]
        pieces, start = [], 0
        while start < len(word):
            mark = self._continuation if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                index = self._ids.get(mark + word[start:end])
                if index is not None:
                    break
            else:
                return [self._unknown]
            pieces.append(index)
            start = end
        return pieces

    def _words(self, text):
        for word in self._word.findall(text):
            fits = len(word.encode()) <= self._most_word_bytes
            yield self._ids.get(word, self._unknown) if fits else self._unknown

    def _characters(self, text):
        for character in self._white.sub(" ", text).strip(" "):
            yield self._ids.get(character, self._unknown)


class PairTokenizer:
    """Tokenizes pairs of texts as the matcher's own tokenizers do, from the content of tokenizer.json.

    Raises ValueError if the format is newer than this file, or the file is of a model of single texts.
    """

    def __init__(self, values):
        check(values, "match")
        self.target = values["target"]
        self.labels = values["labels"]
        self.threshold = values["threshold"]
        shared = {"format": values["format"], "labels": self.labels, "multi_label": False, "thresholds": None}
        parts = {name: Tokenizer({**shared, **part}) for name, part in values["granularities"].items()}
        self.max_length = max(part.max_length for part in parts.values())
        # For each pair of inputs, in the model's order: names of ids and mask, number of the text from 0, tokenizer.
        self.sides = [
            (f"{prefix}token_ids_{side}", f"{prefix}padding_mask_{side}", text, part)
            for name, part in parts.items()
            for prefix in (f"{name}_" if len(parts) > 1 else "",)
            for text, side in enumerate("ab")
        ]

    @classmethod
    def read(cls, path):
        """The tokenizer of a tokenizer.json."""
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    def encode(self, text_a, text_b, length=None):
        """Token ids of a pair between special ones, a list for each of `sides`, each of at most `length` tokens."""
        return [part.encode((text_a, text_b)[text], length) for _, _, text, part in self.sides]

    def pad(self, ids, length=None):
        """Pads what `encode` returned to a model's inputs: lists of int by name; a mask is 1 at real tokens.

        The length of every list is at most what the model reads of the text; None pads nothing.
        """
        inputs = {}
        for (ids_name, mask_name, _, part), row in zip(self.sides, ids):  # noqa: B905
            most = len(row) if length is None else min(length, part.max_length)
            inputs[ids_name], inputs[mask_name] = part.pad(row, most)
        return inputs

    def inputs(self, text_a, text_b, length=None):
        """A model's inputs of a pair: lists of int by name, truncated and padded to a length; None does neither."""
        return self.pad(self.encode(text_a, text_b, length), length)

    def answer(self, outputs):
        """The prediction from a model's output for one pair, a list of numbers.

        This is {"score": …}, with a threshold {"score": …, "match": whether it reaches it}; of classes {"label": the
        best}.
        """
        if self.target == "classes":
            return {"label": self.labels[max(range(len(self.labels)), key=lambda index: outputs[index])]}
        prediction = {"score": float(outputs[0])}
        if self.threshold is not None:
            prediction["match"] = prediction["score"] >= self.threshold
        return prediction


def check(values, expected):
    """Raises ValueError if tokenizer.json is newer than this file, or of a model for another task."""
    if values["format"] > FORMAT:
        raise ValueError(f"tokenizer.json: expected format {FORMAT} or older, got {values['format']}")
    task = values.get("task", "classify")
    if task != expected:
        raise ValueError(f"tokenizer.json: expected one of a model to {expected}, got one to {task}")


def _normalization(tables):
    """The table for str.translate."""
    changed = {}
    for first, last, step, shift in tables["shifted"]:
        for code in range(first, last + 1, step):
            changed[code] = code + shift
    for after, bounds in tables["replaced"].items():
        for first, last in zip(bounds[::2], bounds[1::2]):  # noqa: B905  (strict= is too new for some devices)
            for code in range(first, last + 1):
                changed[code] = after
    if tables["hangul"]:
        # Unicode's arithmetic of syllables: 21 vowels, 28 endings (one of them none).
        for code in range(11172):
            rest, tail = divmod(code, 28)
            letters = chr(0x1100 + rest // 21) + chr(0x1161 + rest % 21)
            changed[0xAC00 + code] = letters + (chr(0x11A7 + tail) if tail else "")
    return changed


def in_brackets(bounds):
    """Ranges of code points as a character class of a regular expression, without brackets."""
    pairs = zip(bounds[::2], bounds[1::2])  # noqa: B905
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in pairs)
