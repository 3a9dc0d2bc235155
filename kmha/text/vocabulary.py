"""The vocabulary: an ordered list of tokens, read from and written to vocab.txt."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kmha.errors import InputError
from kmha.input_files import read_input

# Every vocabulary has these tokens; a trained one starts with them, in this order.
PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PADDING, UNKNOWN, START, END, MASK)

Tokenization = Literal["wordpiece", "char", "word"]
TOKENIZATIONS = ("wordpiece", "char", "word")
CONTINUATION = "##"
# A longer word is one unknown token, as in BERT; no token is longer either.
LONGEST_WORD_BYTES = 200
CHUNK_ROWS = 1024


class Vocabulary:
    """An ordered list of distinct tokens; a token's id is its index.

    Args:
        tokens: All tokens, with the five special tokens at any place.
        origin: Source of the tokens, for error messages.

    Raises:
        InputError: A token occurs twice or contains a line end, or a special token is missing.
    """

    def __init__(self, tokens: Sequence[str], origin: str = "vocabulary"):
        self.tokens = tuple(tokens)
        self.ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            first = self.ids.setdefault(token, index)
            if first != index:
                raise InputError(
                    f"{origin}:{index + 1}: tokens must be distinct, got {token!r} again (first in line {first + 1})"
                )
            if "\n" in token or token.endswith("\r"):
                raise InputError(f"{origin}:{index + 1}: tokens must not contain a line end, got {token!r}")
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise InputError(
                f"{origin}: expected the special tokens {' '.join(SPECIAL_TOKENS)}, missing {missing[0]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def id_of(self, token: str) -> int:
        """The token's id; raises KeyError for an unknown token."""
        return self.ids[token]

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Reads a vocab.txt: UTF-8, one token a line, in the order of ids.

        Raises:
            InputError: The file is missing or not UTF-8, has duplicates or lacks a special token.
        """
        try:
            return cls.parse(read_input(path), str(path))
        except OSError as error:
            raise InputError(f"{path}: expected a vocabulary file, {error.strerror or error}") from error

    @classmethod
    def parse(cls, content: bytes, origin: str) -> "Vocabulary":
        """Like `read`, from the content of a file; `origin` is its path, for error messages."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise InputError(
                f"{origin}:{line}: expected UTF-8, got byte 0x{error.object[error.start]:02x}"
            ) from error
        # Only the line feed separates: other line ends of Unicode may be tokens.
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        return cls([line.rstrip("\r") for line in lines], origin)

    def write(self, path: Path) -> None:
        """Writes a file for `read`."""
        Path(path).write_bytes("".join(f"{token}\n" for token in self.tokens).encode("utf-8"))
