"""The files that stand beside a model for devices: tokenizer, labels, vocabulary."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from export.device_tokenizer import tokenizer_json
from kmha.bundle import Bundle
from kmha.bundle_files import parts_of
from kmha.manifest import vocabulary_file
from training.beside import written_beside

TOKENIZER, LABELS, VOCABULARY = ".tokenizer.json", ".labels.txt", ".vocab.txt"


@contextlib.contextmanager
def written_for_devices(bundle: Bundle, final: Path, overwrite: bool = False) -> Iterator[Path]:
    """Like `written_beside` for a model file, with all that a device needs beside it.

    news.tflite gets news.tokenizer.json, news.labels.txt and news.vocab.txt; where texts are cut in several ways each
    further one has a vocabulary of its own, such as news.vocab.char.txt. One that stands there with the same
    content is kept: the formats of one run share them.

    Args:
        bundle: A trained bundle.
        final: Where the model file shall stand.
        overwrite: Whether files that stand there are replaced.

    Raises:
        InputError: As `written_beside`; or the tokenizer cannot be carried to a device.
    """
    with contextlib.ExitStack() as files:
        # Renamed in reverse order: where the model stands, the rest does.
        path = files.enter_context(written_beside(final, overwrite))
        for suffix, content in device_files(bundle).items():
            beside = Path(final).with_suffix(suffix)
            if not beside.is_file() or beside.read_bytes() != content:
                files.enter_context(written_beside(beside, overwrite)).write_bytes(content)
        yield path


def device_files(bundle: Bundle) -> dict[str, bytes]:
    """Content by suffix: the tokenizer, the labels and the tokens, one a line, in the order of their numbers.

    tokenizer.json holds the labels too, exactly; in labels.txt a line end inside a label becomes a space.

    Raises:
        InputError: The tokenizer cannot be carried to a device.
    """
    vocabularies = {
        f".{vocabulary_file(index, granularity)}": "".join(f"{token}\n" for token in part.vocabulary.tokens)
        for index, (granularity, part) in enumerate(parts_of(bundle.preprocessor).items())
    }
    return {
        TOKENIZER: tokenizer_json(bundle),
        LABELS: "".join(f"{' '.join(label.splitlines())}\n" for label in bundle.labels).encode(),
        **{suffix: content.encode() for suffix, content in vocabularies.items()},
    }
