"""The list of tokens: learn it from texts, read it, write it, look up ids."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from kmha.errors import InputError
from kmha.text.special_tokens import SPECIAL_TOKENS, UNKNOWN

Tokenization = Literal["wordpiece", "char", "word"]
TOKENIZATIONS = ("wordpiece", "char", "word")
CONTINUATION = "##"
MOST_CHARACTERS = 20_000


class Vocabulary:
    """An ordered list of distinct tokens, a token's id being its place.

    Args:
        tokens: All tokens, the five special ones among them, at any place.
        origin: Where the tokens come from, for error messages.

    Raises:
        InputError: A token stands twice (both lines are named) or a special token is missing.
    """

    def __init__(self, tokens: Sequence[str], origin: str = "vocabulary"):
        self.tokens = tuple(tokens)
        self.ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            first = self.ids.setdefault(token, index)
            if first != index:
                raise InputError(
                    f"{origin}:{index + 1}: tokens must be distinct, given {token!r} again (first in line {first + 1})"
                )
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise InputError(
                f"{origin}: needs the special tokens {' '.join(SPECIAL_TOKENS)}, missing {missing[0]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def id_of(self, token: str) -> int:
        """The token's id.

        Raises:
            KeyError: It is not in the vocabulary.
        """
        return self.ids[token]

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Reads a vocab.txt: UTF-8, one token a line, in the order of ids.

        Raises:
            InputError: The file is missing, is not UTF-8, has duplicates or lacks a special token.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise InputError(f"{path}: wanted a vocabulary file, {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise InputError(
                f"{path}:{line}: wanted UTF-8, given byte 0x{error.object[error.start]:02x}"
            ) from error
        # Only the line feed separates: other line ends of Unicode may be tokens.
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        return cls([line.rstrip("\r") for line in lines], origin=str(path))

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads."""
        Path(path).write_bytes("".join(f"{token}\n" for token in self.tokens).encode("utf-8"))


def learn_vocabulary(
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    size: int = 16_000,
    min_frequency: int = 2,
    lower_case: bool = True,
) -> Vocabulary:
    """Learns a vocabulary by the rules that the tokenizer of the same name applies in the graph.

    Args:
        texts: A list, or another iterable that can be read twice.
        tokenization: "wordpiece" (BERT's), "char" or "word" (split at white space and punctuation).
        size: Most tokens to keep, special tokens included.
        min_frequency: Tokens seen less often are left out.
        lower_case: Whether texts are lower-cased and stripped of accents first.

    Returns:
        The special tokens, then the learnt ones.

    Raises:
        InputError: The tokenization is not known, or the size leaves no room.

    Source: WordPiece as in Devlin et al. 2019, arXiv:1810.04805, trained by the `tokenizers` library.
    """
    if size <= len(SPECIAL_TOKENS):
        raise InputError(f"vocabulary size must be more than {len(SPECIAL_TOKENS)}, given {size}")
    if tokenization not in TOKENIZATIONS:
        near = difflib.get_close_matches(str(tokenization), TOKENIZATIONS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(
            f"tokenization must be one of {', '.join(TOKENIZATIONS)}, given {tokenization!r}{hint}"
        )
    if tokenization == "wordpiece":
        # The trainer numbers continuation characters in the order of a hash map and breaks ties by number. A
        # first pass without merges finds them; given in sorted order they make the result repeatable.
        alphabet = _train(texts, tokenization, 1, min_frequency, lower_case, SPECIAL_TOKENS)
        continuations = sorted(token for token in alphabet if token.startswith(CONTINUATION))
        first = (*SPECIAL_TOKENS, *continuations)
    else:
        first = SPECIAL_TOKENS
    return Vocabulary(_train(texts, tokenization, size, min_frequency, lower_case, first))


def _train(texts, tokenization, size, min_frequency, lower_case, first_tokens) -> list[str]:
    """The tokens that the `tokenizers` library learns, in the order of its ids."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    split_chinese = tokenization != "char"
    normalizer = normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=lower_case, handle_chinese_chars=split_chinese
    )
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if tokenization == "char":
        one_space = normalizers.Replace(Regex(r"\s+"), " ")
        normalizer = normalizers.Sequence([normalizer, one_space, normalizers.Strip()])
        pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    common = {
        "vocab_size": size,
        "min_frequency": min_frequency,
        "special_tokens": list(first_tokens),
        "show_progress": False,
    }
    if tokenization == "wordpiece":
        model = models.WordPiece(unk_token=UNKNOWN)
        # Every character may enter: Chinese needs thousands, far past the library's default of 1,000.
        trainer = trainers.WordPieceTrainer(
            limit_alphabet=MOST_CHARACTERS, continuing_subword_prefix=CONTINUATION, **common
        )
    else:
        model = models.WordLevel(unk_token=UNKNOWN)
        trainer = trainers.WordLevelTrainer(**common)
    learner = Tokenizer(model)
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizer
    learner.train_from_iterator(texts, trainer)
    return [token for token, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1])]
