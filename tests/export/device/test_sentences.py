"""The devices' reader of sentences against the preprocessor in the graph."""

import functools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import export.device.sentences
import export.device.tokenizer
from export.device.files import tokenizer_json, tokenizer_values
from export.device.sentences import SentenceTokenizer
from export.device.tokenizer import PairTokenizer, Tokenizer
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.words import SPACE, Ragged, character_classes, word_bounds
from tests.bundles import EDGE_CASES, TEXTS, make_tagger_bundle, one_label_bundle, tagger_bundle
from tests.export.tagger_bundles import ROWS, every_kind

ODD = st.sampled_from(
    [*" \t\n\u3000\0", *"!-#'’.,_渡轮가ไé́ßİ🚢ﬁ²7", "bread", "Harbour", "##", "[CLS]", "b" * 200, "old" * 9]
)
STRINGS = st.one_of(st.text(), st.lists(st.one_of(ODD, st.characters())).map("".join))
SENTENCES = st.lists(st.one_of(ODD, STRINGS, st.binary()), max_size=60)


@functools.cache
def device_of(kind: str) -> SentenceTokenizer:
    return SentenceTokenizer(json.loads(json.dumps(tokenizer_values(tagger_bundle(kind)))))


def in_graph(texts: SentencePreprocessor, sentence, length=None) -> tuple[dict, list[list[int]]]:
    """Features of the windows of one sentence, and which words they hold."""
    flat = [word if isinstance(word, bytes) else word.encode("utf-8", "replace") for word in sentence]
    encoded = texts.encode(Ragged.from_row_lengths(tf.constant(flat, tf.string), [len(flat)]), length)
    features = texts.pad(encoded)
    return {name: value.numpy() for name, value in features.items()}, encoded.windows.words.to_list()


def check_same(texts: SentencePreprocessor, device: SentenceTokenizer, sentence, length=None) -> int:
    """Whether both give the same arrays; returns the number of windows."""
    expected, numbers = in_graph(texts, sentence, length)
    words = device.words(sentence)
    windows = device.windows(words, length)
    assert [window.words for window in windows] == numbers
    sizes = expected["token_ids"].shape[1], expected["word_starts"].shape[1]
    found = [device.pad(window, words, *sizes) for window in windows]
    for name in device.input_names:
        np.testing.assert_array_equal([each[name] for each in found], expected[name])
    # Unpadded, the longest window is as long as the batch of all.
    alone = [device.pad(window, words) for window in windows]
    assert max(len(each["token_ids"]) for each in alone) == sizes[0]
    assert max(len(each["word_mask"]) for each in alone) == sizes[1]
    return len(windows)


@every_kind
def test_golden_sentences(kind):
    texts, device = tagger_bundle(kind).preprocessor, device_of(kind)
    assert ("character_ids" in device.input_names) == texts.characters == (kind == "spelt")
    windows = [check_same(texts, device, sentence) for sentence in ROWS]
    assert max(windows) > 3 and min(windows) == 1


@every_kind
@settings(max_examples=60, deadline=None)
@given(sentence=SENTENCES)
def test_any_words(kind, sentence):
    check_same(tagger_bundle(kind).preprocessor, device_of(kind), sentence)


@pytest.mark.parametrize("length", [8, 9, 13])
@settings(max_examples=30, deadline=None)
@given(sentence=SENTENCES)
def test_shorter_windows(length, sentence):
    check_same(tagger_bundle("spelt").preprocessor, device_of("spelt"), sentence, length)


@functools.cache
def splitter(split):
    kind = {"words": "spelt", "characters": "characters"}[split]
    return device_of(kind)


@pytest.mark.parametrize("split", ["words", "characters"])
def test_golden_texts_are_split_the_same(split):
    texts = [text.decode("utf-8", "replace") for text in EDGE_CASES if len(text) < 10_000]
    texts += [
        *TEXTS,
        "It's 3.5, isn’t it? l'eau 1,000.5. _a_b 'x' e\u0301\u0301' 7e a.b 한국어 日本 ไทย ²x \u0301a",
    ]
    for text in texts:
        assert splitter(split).split(text) == word_bounds(text, split)


@pytest.mark.parametrize("split", ["words", "characters"])
@settings(max_examples=100, deadline=None)
@given(text=STRINGS)
def test_any_text_is_split_the_same(split, text):
    assert splitter(split).split(text) == word_bounds(text, split)


def test_every_character_has_its_class():
    device, classes = device_of("spelt"), character_classes()
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    found = [device._class_of(chr(code)) for code in codes]
    assert found == classes[np.minimum(codes, len(classes) - 1)].tolist()
    assert 0 < found.count(SPACE) < len(found)


def test_the_words_of_texts_and_of_lists():
    device = device_of("spelt")
    assert device.words("It's here, now") == ["It's", "here", ",", "now"]
    assert device.words("caf\xe9 \xff".encode("latin-1")) == ["caf", "\ufffd", "\ufffd"]
    assert device.words(["a b", b"\xff", "\ud800"]) == ["a b", "\ufffd", "?"]
    assert len(device.words(["a"] * 2048)) == 2048
    with pytest.raises(ValueError, match="expected at most 2048 words a sentence, got 2049"):
        device.words(["a"] * 2049)


@pytest.mark.parametrize("reader", [Tokenizer, PairTokenizer])
def test_other_tokenizers_reject_the_file_of_a_tagger(reader):
    with pytest.raises(ValueError, match="got one to tag"):
        reader(tokenizer_values(tagger_bundle("spelt")))
    with pytest.raises(ValueError, match="expected one of a model to tag, got one to classify"):
        SentenceTokenizer(tokenizer_values(one_label_bundle()))


def test_transitions_are_exact():
    bundle = make_tagger_bundle()
    device = SentenceTokenizer(json.loads(json.dumps(tokenizer_values(bundle))))
    weights = bundle.model.crf.transitions.numpy()
    allowed = np.array(bundle.model.crf.allowed)
    np.testing.assert_array_equal(
        np.array(device.transitions, np.float32)[allowed == 1], weights[allowed == 1]
    )
    assert set(np.array(device.transitions)[allowed == 0]) == {-1e4}
    assert [value == -1e4 for value in device.start] == [each == 0 for each in bundle.model.crf.allowed_start]


def test_the_tokenizer_runs_without_other_packages(tmp_path):
    """Copied to a device that has nothing but Python: no site-packages, none of this project."""
    (tmp_path / "t.json").write_bytes(tokenizer_json(tagger_bundle("spelt")))
    for module in (export.device.tokenizer, export.device.sentences):
        shutil.copy(str(module.__file__), tmp_path)
    program = """
import json, sentences
device = sentences.SentenceTokenizer.read('t.json')
words = device.words(['old', 'bread'])
print(json.dumps([device.pad(window, words, 8, 6) for window in device.windows(words)]))
"""
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert result.returncode == 0, result.stderr
    device = device_of("spelt")
    expected = [device.pad(each, ["old", "bread"], 8, 6) for each in device.windows(["old", "bread"])]
    assert json.loads(result.stdout) == expected
