"""python -m training.predict RUN [TEXT] [--data table.csv --out predictions.csv] < texts.txt > predictions.jsonl

Predicts for texts in the arguments, for the rows of a table, or for the lines of stdin, and prints one JSON object per
line, or writes a table with the columns of the predictions. A matcher reads pairs, on stdin text_a and text_b separated
by a tab; with --rank FILE it ranks the lines of the file for each text on stdin. A tagger splits texts into words; with
--words they are already split by spaces. A masked language model fills in each [MASK].
"""  # noqa: D415

import collections
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import tyro

from kmha.bundle.manifest import MASKED_LM, MATCH, MODEL_NAMES, TAG, read_manifest
from kmha.errors import InputError
from kmha.input_files import bounded_lines, open_input
from kmha.quiet import import_tensorflow
from training.cli.bounds import Range
from training.cli.parser import parse, run
from training.io.examples import Columns, FormatFlags
from training.io.prediction_table import add_prediction, check_output, read_records, write_records
from training.io.tables import TEXT
from training.tasks.match.rows import TEXT_A, TEXT_B

# Names with a delimiter and no blank between them, and no text.
_HEADER = re.compile(r'(?!1[,;\t]2)"?[\w-]+"?([,;\t]"?[\w-]+"?)+')
_TABLE_HINT = "python -m training.predict RUN --data FILE.{suffix} --out PREDICTIONS.{suffix}"


@dataclass(frozen=True, kw_only=True)
class PredictConfig(FormatFlags):
    """Prints one prediction in JSON for each text, or adds predictions to a table."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = ()
    """Texts; for a matcher both texts of a pair. Default: the lines of stdin, or the rows of --data."""
    data: Path | None = None
    """Table: .csv, .tsv, .jsonl, also .gz, or .parquet (extra: tables)."""
    out: Path | None = None
    """Table to write, .csv, .tsv, .jsonl or .parquet: the rows of --data with their predictions. Default: stdout."""
    overwrite: bool = False
    """Replace an existing --out."""
    text_column: str = ""
    """Column of the text, the words, or the first text of a pair; empty: as in training."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: as in training."""
    top: Annotated[int, Range(at_least=0)] = 0
    """Number of labels, candidates or [MASK] tokens to show, best first; 0: all, but five tokens for [MASK], and in
    .csv, .tsv and .parquet tables no probabilities of other labels."""
    rank: Path | None = None
    """File of candidates, one per line, that a matcher ranks for each text on stdin."""
    vectors: Path | None = None
    """Vectors of the candidates, written by training.embed with the same bi-encoder."""
    words: bool = False
    """For a tagger: the texts are already split into words, by spaces or tabs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _predict(parse(PredictConfig, argv, "python -m training.predict")))


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields lines without line ends, as bytes, so that invalid UTF-8 is accepted; InputError if one is too long."""
    name = "stdin" if stream is getattr(sys.stdin, "buffer", None) else getattr(stream, "name", "stdin")
    for line in bounded_lines(stream, name):
        yield line.rstrip(b"\r\n")


def stdin_lines(columns: Sequence[str], hint: str) -> Iterator[bytes]:
    """Yields the lines of stdin; InputError if the first is the header or a row of a table with these columns.

    In the hint, {suffix} is the format of the table.
    """
    found = lines(sys.stdin.buffer)
    for first in found:
        _refuse_row(first, columns, hint)
        yield first
        yield from found


def pairs(found: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yields pairs of lines that have exactly one tab; raises InputError for another line."""
    for place, line in enumerate(found, start=1):
        texts = line.split(b"\t")
        if len(texts) != 2:
            given = f"{len(texts) - 1} tabs" if len(texts) > 1 else "none"
            raise InputError(
                f"stdin:{place}: expected text_a and text_b with one tab between them, got {given}"
            )
        yield texts[0], texts[1]


def sentences(found: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the words of each line, split by spaces or tabs."""
    for line in found:
        yield [word for word in re.split(rb"[ \t]+", line) if word]


def _predict(config: PredictConfig) -> int:
    manifest = read_manifest(config.run)
    task, columns = manifest["task"], _columns(config, manifest)
    _check_sources(config, task, columns)
    if config.rank is not None and task != MATCH:
        raise InputError(f"--rank: expected a run that matches pairs, got {MODEL_NAMES[task]}")
    if config.words and task != TAG:
        raise InputError(f"--words: expected a run that tags words, got {MODEL_NAMES[task]}")
    if config.top and task == TAG:
        raise InputError("--top: expected a run that classifies or matches texts, got a tagger")
    if config.vectors is not None and config.rank is None:
        raise InputError("--vectors: expected --rank with the texts of the vectors, got none")
    candidates = None if config.rank is None else _candidates(config.rank)
    vectors = None if config.vectors is None else _vectors(config.vectors)
    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from kmha.inference.mask_filler import SHOWN_TOKENS

    bundle = Bundle.load(config.run)

    def predict(rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
        if task == MASKED_LM:
            return bundle.filler.predict_stream(rows, config.top or SHOWN_TOKENS)
        return (_shortened(prediction, config.top) for prediction in bundle.predict_stream(rows))

    predictions: Iterator[dict[str, Any]]
    if config.data is not None:
        predictions = _with_records(config, columns, predict)
        if config.out is not None:
            if config.out.suffix != ".jsonl" and not config.top:
                predictions = (_without_probabilities(each) for each in predictions)
            write_records(config.out, predictions, config.overwrite)
            print(config.out)
            return 0
    elif candidates is not None:
        queries = stdin_lines(columns[:1], "give the queries alone")
        predictions = _rankings(bundle, queries, candidates, vectors, config.top)
    else:
        separator = "\t" if task == MATCH else "\n"
        given = separator.join(map(_one_line, config.text)).encode("utf-8")
        found = lines(io.BytesIO(given)) if config.text else stdin_lines(columns, _TABLE_HINT)
        read = pairs if task == MATCH else sentences if config.words else iter
        predictions = predict(read(found))
    for prediction in predictions:
        print(json.dumps(prediction, ensure_ascii=False, allow_nan=False))
    return 0


def _columns(config: PredictConfig, manifest: dict[str, Any]) -> list[str]:
    """The columns that the model reads."""
    given = (config.text_column, config.text_b_column)
    return [name or saved for name, saved in zip_longest(given, saved_columns(manifest)) if name or saved]


def saved_columns(manifest: dict[str, Any]) -> list[str]:
    """The columns of texts in the training data of a run, or their default names."""
    saved = Columns.saved_names(manifest)
    text, text_b = (TEXT_A, TEXT_B) if manifest["task"] == MATCH else (TEXT, "")
    return list(filter(None, (saved.get("text") or text, saved.get("text_b") or text_b)))


def _check_sources(config: PredictConfig, task: str, columns: list[str]) -> None:
    """Checks that there is one source of texts, and reads the first row of a table."""
    if config.data is not None:
        for value, flag in ((config.text, "TEXT"), (config.rank, "--rank")):
            if value:
                raise InputError(f"{flag}: expected none with --data, got one")
        next(read_records(config.data, columns, config.form))
    elif config.out is not None:
        raise InputError("--out: expected --data with it, got none")
    elif config.text and config.rank is not None:
        raise InputError("TEXT: expected texts on stdin with --rank, got an argument")
    elif config.text and task == MATCH and len(config.text) != 2:
        raise InputError(f"TEXT: expected two texts, A and B, got {len(config.text)}")
    if config.out is not None:
        check_output(config.out)


def _one_line(text: str) -> str:
    """The text with blanks in place of the characters that end a line or a text of a pair."""
    return re.sub(r"[\r\n\t]", " ", text)


def _with_records(
    config: PredictConfig, columns: list[str], predict: Callable[[Iterator[Any]], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The rows of the table, each with its prediction."""
    waiting: collections.deque[dict[str, Any]] = collections.deque()

    def rows() -> Iterator[Any]:
        assert config.data is not None
        for record, values in read_records(config.data, columns, config.form):
            waiting.append(record)
            value = values[0]
            if config.words and isinstance(value, str):
                value = value.split()
            yield value if len(values) == 1 else tuple(values)

    return (add_prediction(waiting.popleft(), prediction) for prediction in predict(rows()))


def _without_probabilities(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "probabilities"}


def _refuse_row(first: bytes, columns: Sequence[str], hint: str) -> None:
    line = first[: 1 << 12].decode("utf-8", "replace").strip("\ufeff \r")
    names = [each.strip('"').casefold() for each in re.split("[,;\t]", line)]
    is_header = bool(_HEADER.fullmatch(line)) and all(column.casefold() in names for column in columns)
    is_record = line.startswith("{") and all(f'"{column}":' in line for column in columns)
    if is_header or is_record:
        given, suffix = ("the header of a table", "csv") if is_header else ("a JSON object", "jsonl")
        raise InputError(f"stdin:1: expected one text per line, got {given}; {hint.format(suffix=suffix)}")


def _shortened(prediction: dict[str, Any], top: int) -> dict[str, Any]:
    if top and "probabilities" in prediction:
        ranked = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])
        prediction["probabilities"] = dict(ranked[:top])
    return prediction


def _candidates(path: Path) -> list[bytes]:
    try:
        with open_input(path) as file:
            found = list(lines(file))
    except OSError as error:
        raise InputError(
            f"--rank {path}: expected a file of candidates, {error.strerror or error}"
        ) from error
    if not found:
        raise InputError(f"--rank {path}: expected a candidate or more, one a line, got an empty file")
    return found


def _vectors(path: Path) -> Any:
    from numpy.lib.format import open_memmap

    try:
        open_input(path).close()
        # Mapped: a short file that declares a large array is an error, and nothing is allocated.
        return open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"--vectors {path}: expected a file that training.embed wrote, {reason}") from error


def _rankings(
    bundle: Any, queries: Iterable[bytes], candidates: list[bytes], vectors: Any, top: int
) -> Iterator[dict[str, Any]]:
    """Yields {"query", "ranking": [{"line", "text", "score"}, best first]} for each query; lines from 1."""
    from kmha.inference.retrieval import Ranker

    ranker = Ranker(bundle, candidates, vectors)
    for query in queries:
        ranking = [
            {"line": index + 1, "text": candidates[index].decode("utf-8", "replace"), "score": score}
            for index, score in ranker.rank(query, top)
        ]
        yield {"query": query.decode("utf-8", "replace"), "ranking": ranking}


if __name__ == "__main__":
    sys.exit(main())
