"""Vocabulary and settings of a published WordPiece tokenizer: vocab.txt, tokenizer.json, tokenizer_config.json."""

from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.pretrained.json_file import read_json, shown
from kmha.text.vocabulary import CONTINUATION, Vocabulary

VOCABULARY, TOKENIZER, SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
# Classes that cut as BERT does; others may come with a vocab.txt too, and cut in another way.
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "PreTrainedTokenizer", "Tokenizers")


def read_vocabulary(folder: Path) -> Vocabulary:
    """The tokens of a folder, from vocab.txt or where there is none from tokenizer.json.

    Raises:
        InputError: Neither can be read, or the tokenizer is no WordPiece.
    """
    if (folder / VOCABULARY).exists() or not (folder / TOKENIZER).exists():
        return Vocabulary.read(folder / VOCABULARY)
    path = folder / TOKENIZER
    values = read_json(path)
    model = _object(path, values, "model")
    for name, expected in (("type", "WordPiece"), ("continuing_subword_prefix", CONTINUATION)):
        if model.get(name) != expected:
            raise InputError(f"{path}: {name} of the model must be {expected}, got {shown(model.get(name))}")
    ids = dict(_object(path, model, "vocab"))
    added = values.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise InputError(f"{path}: added_tokens must be a list of objects, got {shown(added)}")
    for token in added:
        content, index = token.get("content"), token.get("id")
        if not isinstance(content, str) or ids.setdefault(content, index) != index:
            raise InputError(f"{path}: added token {shown(content)} must have the id {ids.get(content)}")
    places = sorted(ids.values(), key=lambda index: index if type(index) is int else -1)
    if places != list(range(len(ids))) or any(type(index) is not int for index in places):
        raise InputError(f"{path}: ids of the vocabulary must be 0 to {len(ids) - 1}, each once")
    return Vocabulary(sorted(ids, key=ids.__getitem__), origin=str(path))


def read_lower_case(folder: Path) -> bool:
    """Whether the tokenizer lower-cases and strips accents; BERT's does where nothing is said.

    Raises:
        InputError: A file is damaged, or the tokenizer does one of both only, or cuts in another way than BERT's.
    """
    path = folder / SETTINGS
    settings = read_json(path) if path.exists() else {}
    name = settings.get("tokenizer_class")
    if name is not None and not str(name).startswith(_CLASSES):
        raise InputError(f"{path}: tokenizer_class must be BertTokenizer, got {shown(name)}")
    normalizer: dict[str, Any] = {}
    if (folder / TOKENIZER).exists():
        values = read_json(folder / TOKENIZER)
        normalizer = _object(folder / TOKENIZER, values, "normalizer") if values.get("normalizer") else {}
        if normalizer and normalizer.get("type") != "BertNormalizer":
            given = shown(normalizer.get("type"))
            raise InputError(f"{folder / TOKENIZER}: the normalizer must be BertNormalizer, got {given}")
    # What the settings say goes before what the tokenizer says, as by the reference.
    lower = _first(settings.get("do_lower_case"), normalizer.get("lowercase"), True)
    accents = _first(settings.get("strip_accents"), normalizer.get("strip_accents"), lower)
    chinese = _first(settings.get("tokenize_chinese_chars"), normalizer.get("handle_chinese_chars"), True)
    if not isinstance(lower, bool):
        raise InputError(f"{path}: do_lower_case must be true or false, got {shown(lower)}")
    if accents is not lower:
        raise InputError(f"{path}: strip_accents must be as do_lower_case, {lower}, got {shown(accents)}")
    if chinese is not True:
        raise InputError(f"{path}: tokenize_chinese_chars must be true, got {shown(chinese)}")
    return lower


def _object(path: Path, values: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(values.get(name), dict):
        raise InputError(f"{path}: {name} must be an object, got {shown(values.get(name))}")
    return values[name]


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
