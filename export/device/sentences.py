"""A tagger's inputs from sentences, with Python's standard library only: copy this file and tokenizer.py to the device.

It reads the tokenizer.json that an export of a tagger wrote. Long sentences are split into windows that overlap by
half; `tags.py` decodes the tags of such a sentence.
"""

import bisect
import json

try:
    from export.device.tokenizer import Tokenizer, check
except ImportError:  # On a device the files are in one folder.
    from tokenizer import Tokenizer, check

# Classes of characters, by their numbers in tokenizer.json.
SPACE, SINGLE, LETTER, DIGIT, MARK, APOSTROPHE, POINT = range(7)
SPECIAL_TOKENS = 2


class Window:
    """A part of a sentence that a model reads at once.

    Token ids include the special ones. Starts are the positions of each word's first token in the ids; the words to
    tag, `count` of them, come first. Words are their numbers in the sentence. Every word of a sentence is tagged in
    exactly one window.
    """

    def __init__(self, ids, starts, words, count):
        self.ids, self.starts, self.words, self.count = ids, starts, words, count


class SentenceTokenizer:
    """Tokenizes sentences as the tagger's own preprocessor does, from the content of tokenizer.json.

    Raises ValueError if the format is newer than this file, or the file is of another kind of model.
    """

    def __init__(self, values):
        check(values, "tag")
        self.labels = values["labels"]
        self.scheme = values["scheme"]
        self.transitions, self.start, self.end = values["transitions"], values["start"], values["end"]
        self.split_by = values["split"]
        self.most_words = values["most_words"]
        # Size of the character table; 0 where spelling is not read.
        self.characters = values["characters"]
        self.spelling_length = values["spelling_length"]
        shown = {"labels": self.labels, "multi_label": False, "thresholds": None}
        self.part = Tokenizer({"format": values["format"], **shown, **values["text"]})
        self.max_length = self.part.max_length
        bounds = values["character_classes"]
        self._class_begins, self._classes = bounds[::2], bounds[1::2]

    @classmethod
    def read(cls, path):
        """The tokenizer of a tokenizer.json."""
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    @property
    def input_names(self):
        """Names of the model's inputs."""
        names = ["token_ids", "padding_mask", "word_starts", "word_mask"]
        return [*names, "character_ids"] if self.characters else names

    def split(self, text):
        """Splits a raw text, str or bytes of any kind, into words.

        Returns a list of (first character, character after the last), in the text as `as_text` returns it.
        """
        text = as_text(text)
        kinds = [*map(self._class_of, text), SPACE]
        bounds = []
        before = SPACE
        continues = False
        for place, kind in enumerate(kinds[:-1]):
            inside = continues and _is_joined(before, kind, kinds[place + 1]) and self.split_by == "words"
            if kind != SPACE and (inside or (kind == MARK and before != SPACE)):
                bounds[-1][1] = place + 1
            elif kind != SPACE:
                bounds.append([place, place + 1])
            continues = _is_joined(before, kind, kinds[place + 1])
            before = kind
        return [tuple(each) for each in bounds]

    def words(self, sentence):
        """The words, as str, of a raw text or a list of words, str or bytes of any kind.

        Raises ValueError if there are more words than a tagger accepts.
        """
        if isinstance(sentence, (str, bytes)):  # noqa: UP038  (for older Pythons)
            text = as_text(sentence)
            words = [text[first:end] for first, end in self.split(text)]
        else:
            words = [as_text(word) for word in sentence]
        if len(words) > self.most_words:
            raise ValueError(f"expected at most {self.most_words} words a sentence, got {len(words)}")
        return words

    def windows(self, words, length=None):
        """Splits a sentence, as `words` returns it, into at least one `Window` of at most `length` tokens."""
        tokens = min(length or self.max_length, self.max_length) - SPECIAL_TOKENS
        step = tokens // 2
        pieces = [self.part.tokenize(word)[:step] or [self.part.special_ids["unknown"]] for word in words]
        ends, size = [], 0
        for each in pieces:
            size += len(each)
            ends.append(size)
        begins = [0, *ends[:-1]] if ends else []
        count = max(size - tokens + step - 1, 0) // step + 1
        # A word is tagged in the window whose middle is nearest to the word's middle.
        homes = [min(max((b + e - step) // (2 * step), 0), count - 1) for b, e in zip(begins, ends)]  # noqa: B905
        windows = []
        for number in range(count):
            first = bisect.bisect_left(begins, step * number)
            last = max(bisect.bisect_right(ends, step * number + tokens), first)
            core, core_end = bisect.bisect_left(homes, number), bisect.bisect_right(homes, number)
            chosen = [*range(core, core_end), *range(first, core), *range(core_end, last)]
            begin = begins[first] if first < len(begins) else size
            inner = [token for each in pieces[first:last] for token in each]
            ids = [self.part.special_ids["start"], *inner, self.part.special_ids["end"]]
            starts = [begins[word] - begin + 1 for word in chosen]
            windows.append(Window(ids, starts, chosen, core_end - core))
        return windows

    def spelling(self, word):
        """Character ids of a word, padded with 0; of a long word only those of its two ends."""
        half = self.spelling_length // 2
        shown = word if len(word) <= self.spelling_length else word[:half] + word[-half:]
        ids = [1 + ord(character) % (self.characters - 1) for character in shown]
        return [*ids, *[0] * (self.spelling_length - len(ids))]

    def pad(self, window, words, length=None, num_words=None):
        """A model's inputs of one window of a sentence's words: lists of int by the inputs' names.

        Lists of tokens have the length, lists of words num_words numbers; None: not padded, but at least one word.
        """
        most = max(len(window.starts), 1) if num_words is None else num_words
        ids, mask = self.part.pad(window.ids, len(window.ids) if length is None else length)
        inputs = {
            "token_ids": ids,
            "padding_mask": mask,
            "word_starts": [*window.starts, *[0] * (most - len(window.starts))],
            "word_mask": [*[1] * window.count, *[0] * (most - window.count)],
        }
        if self.characters:
            spellings = [self.spelling(words[word]) for word in window.words]
            nothing = [[0] * self.spelling_length for _ in range(most - len(spellings))]
            inputs["character_ids"] = spellings + nothing
        return inputs

    def _class_of(self, character):
        return self._classes[bisect.bisect_right(self._class_begins, ord(character)) - 1]


def as_text(text):
    """A text or a word as the model reads it: invalid UTF-8 is replaced."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


def _is_joined(before, kind, after):
    """Whether a character belongs to a sequence of letters and digits."""
    if kind == APOSTROPHE:
        return before in (LETTER, MARK) and after == LETTER
    if kind == POINT:
        return before == DIGIT and after == DIGIT
    return kind in (LETTER, DIGIT, MARK)
