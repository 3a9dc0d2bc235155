import functools

import numpy as np
import pytest
import tensorflow as tf

from export.savedmodel.endpoints import concrete_function
from export.savedmodel.input_checks import check_sentences
from export.savedmodel.tagger_endpoints import TaggerEndpoints
from export.savedmodel.write import endpoints
from kmha.features import MAX_WORDS
from kmha.text.vocabulary import PADDING, START
from kmha.text.words import Ragged
from tests.bundles import EDGE_CASES, SENTENCES, TEXTS, make_tagger_bundle, tagger_bundle
from tests.stages import with_stages

SHORT = [text for text in EDGE_CASES if len(text) < 1000]
RAW = [*(text.encode() for text in (*SENTENCES, *TEXTS)), *SHORT, b"", b"old harbour. " * 150]
WORDS = [
    *(sentence.encode().split() for sentence in SENTENCES),
    [],
    SHORT,
    [b"bread", b"harbour" * 5000, b"", b"new york", b"[CLS]", b"\0"],
    [b"the", b"ferry"] * 150,
]


@functools.cache
def signature(name: str, kind: str = "spelt"):
    """Traces a single signature, since tracing all of them takes much longer."""
    served, words = (
        TaggerEndpoints(tagger_bundle(kind)),
        (strings("words", 2), tf.TensorSpec([None], tf.int32)),
    )
    if name.startswith("predict_ids"):
        return concrete_function(
            getattr(served, name), **dict(zip(served._names, served._specs, strict=True))
        )
    return concrete_function(
        getattr(served, name), *(words if name.endswith("words") else [strings("text", 1)])
    )


def strings(name: str, rank: int) -> tf.TensorSpec:
    return tf.TensorSpec([None] * rank, tf.string, name)


def query_text(texts, name: str = "predict_text", kind: str = "spelt") -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in signature(name, kind)(tf.constant(texts, tf.string)).items()}


def query_words(sentences, name: str = "predict_words", kind: str = "spelt", filling: bytes = b"") -> dict:
    outputs = signature(name, kind)(*padded_words(sentences, filling))
    return {key: value.numpy() for key, value in outputs.items()}


def padded_words(sentences, filling: bytes = b""):
    width = max(map(len, sentences), default=0)
    padded = [[*words, *[filling] * (width - len(words))] for words in sentences]
    words = tf.reshape(tf.constant(padded, tf.string), [len(sentences), width])
    return words, tf.constant([len(words) for words in sentences], tf.int32)


def ids_of(bundle, sentences) -> tuple[dict, np.ndarray]:
    """Ids of the windows of sentences, and how many words of each window are tagged."""
    lengths = np.array([len(words) for words in sentences], np.int64)
    flat = tf.constant([word for words in sentences for word in words], tf.string)
    encoded = bundle.preprocessor.encode(Ragged.from_row_lengths(flat, lengths))
    features = bundle.preprocessor.pad(encoded)
    features.pop("segment_ids")
    return {name: value.numpy() for name, value in features.items()}, encoded.windows.counts.numpy()


def query_ids(features: dict, name: str = "predict_ids", kind: str = "spelt") -> dict[str, np.ndarray]:
    given = {key: tf.constant(value, tf.int32) for key, value in features.items()}
    return {key: value.numpy() for key, value in signature(name, kind)(**given).items()}


def check(bundle, outputs: dict[str, np.ndarray], sentences) -> None:
    """The tags of sentences are those of the bundle, and empty past their ends."""
    tagged = bundle.tagger.tag([[word.decode("utf-8", "replace") for word in words] for words in sentences])
    assert [len(row) for row in outputs["tags"]] == [outputs["tags"].shape[1]] * len(sentences)
    for row, expected in enumerate(tagged.sentences()):
        count = len(expected.tag_ids)
        assert outputs["tag_ids"][row, :count].tolist() == expected.tag_ids.tolist()
        assert outputs["tags"][row, :count].tolist() == [
            bundle.labels[index].encode() for index in expected.tag_ids
        ]
        np.testing.assert_allclose(outputs["probabilities"][row, :count], expected.probabilities, atol=1e-5)
        found = outputs["path_probabilities"][row, :count]
        np.testing.assert_allclose(found, expected.path_probabilities, atol=1e-5)
        assert (outputs["tags"][row, count:] == b"").all()
        for name in ("tag_ids", "probabilities", "path_probabilities"):
            assert not outputs[name][row, count:].any()
    assert (outputs["labels"] == np.array([label.encode() for label in bundle.labels])).all()
    assert outputs["labels"].shape == (len(sentences), len(bundle.labels))


@pytest.mark.parametrize("kind", with_stages(["spelt", "characters"], ["spelt"]))
def test_texts_are_split_and_tagged_as_by_the_bundle(kind):
    bundle, outputs = tagger_bundle(kind), query_text(RAW, kind=kind)
    split = bundle.tagger.split(RAW)
    assert outputs["num_words"].tolist() == [len(words) for words in split.words]
    for row, (words, bounds) in enumerate(zip(split.words, split.bounds, strict=True)):
        count = len(words)
        assert [word.decode() for word in outputs["words"][row, :count]] == words
        found = zip(outputs["starts"][row, :count], outputs["ends"][row, :count], strict=True)
        assert [*found] == bounds
        assert (outputs["words"][row, count:] == b"").all()
        assert not outputs["starts"][row, count:].any() and not outputs["ends"][row, count:].any()
    check(bundle, outputs, [[word.encode() for word in words] for words in split.words])
    assert len(set(outputs["tags"].ravel())) > 2


@pytest.mark.parametrize("kind", with_stages(["spelt", "no scheme"], ["spelt"]))
def test_words_are_tagged_as_by_the_bundle(kind):
    check(tagger_bundle(kind), query_words(WORDS, kind=kind), WORDS)


def test_batch_composition_and_padding_change_no_prediction():
    together = query_words(WORDS)
    for row, words in enumerate(WORDS[:6]):
        alone = query_words([words])
        for name in ("probabilities", "path_probabilities", "tag_ids"):
            np.testing.assert_allclose(alone[name][0], together[name][row, : len(words)], atol=1e-6)
    filled = query_words(WORDS, filling=b"harbour")
    for name, values in together.items():
        np.testing.assert_array_equal(filled[name], values)


@pytest.mark.second
def test_chunks_of_windows_and_sentences_change_no_prediction(monkeypatch):
    monkeypatch.setattr("export.savedmodel.tagger_endpoints.BATCH_TOKENS", 50)
    monkeypatch.setattr("export.savedmodel.tagger_endpoints.BATCH_WORDS", 50)
    served = TaggerEndpoints(tagger_bundle())
    check(
        tagger_bundle(),
        {k: v.numpy() for k, v in served.predict_text(tf.constant(SENTENCES)).items()},
        [[word.encode() for word in words] for words in tagger_bundle().tagger.split(SENTENCES).words],
    )


def test_the_number_of_words_is_limited():
    message = r"a sentence must have at most 2,048 words, got\] \[2049\]"
    words = [b"old"] * MAX_WORDS
    assert (query_text([b" ".join(words)])["tags"] != b"").sum() == MAX_WORDS
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        query_text([b"bread", b" ".join([*words, b"old"])])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        query_words([[b"bread"], [*words, b"old"]])


@pytest.mark.parametrize(
    ("num_words", "message"),
    [
        ([1, 3], r"num_words must be from 0 to the width of words,\] \[2\] \[got\] \[3\]"),
        ([-1, 2], r"num_words must be from 0 to the width of words,\] \[2\] \[got\] \[-1\]"),
        ([1], r"num_words must have as many rows as words,\] \[2\] \[got\] \[1\]"),
    ],
)
def test_wrong_numbers_of_words_are_rejected(num_words, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature("predict_words")(tf.constant([["a", "b"], ["c", "d"]]), tf.constant(num_words))


@pytest.mark.second
def test_no_texts_and_texts_without_words_are_predicted():
    assert {value.shape[:2] for name, value in query_text([]).items() if value.ndim > 1} == {(0, 1), (0, 5)}
    assert query_text([b"", b" \n"])["num_words"].tolist() == [0, 0]
    assert query_words([])["tags"].shape == (0, 0)
    assert query_words([[], []])["probabilities"].shape == (2, 0, 5)
    for name in ("explain", "explain_words"):
        request = query_words if name == "explain_words" else query_text
        assert len(request([], name)["tokens"]) == 0


def test_the_best_path_is_valid_in_its_scheme():
    bundle = make_tagger_bundle(characters=True)
    bias = bundle.model.head.bias
    # Names of several words, wherever the scheme allows them.
    bias.assign(bias + np.array([3.0 * label.startswith("I-") for label in bundle.labels], np.float32))
    specs = strings("words", 2), tf.TensorSpec([None], tf.int32)
    outputs = concrete_function(TaggerEndpoints(bundle).predict_words, *specs)(*padded_words(WORDS))
    tags = outputs["tags"].numpy()
    for row in tags:
        for before, after in zip([b"O", *row], row, strict=False):
            if after.startswith(b"I-"):
                assert before[2:] == after[2:]
    assert bundle.model.scheme == "bio" and any(tag.startswith(b"I-") for tag in tags.ravel())


@pytest.mark.parametrize("kind", with_stages(["spelt", "no scheme"], ["spelt"]))
def test_ids_are_scored_as_their_words_and_stitch_to_whole_sentences(kind):
    bundle = tagger_bundle(kind)
    features, counts = ids_of(bundle, WORDS)
    outputs = query_ids(features, kind=kind)
    assert set(outputs) == {"probabilities", "tag_ids", "path_probabilities", "scores"}
    scores = np.concatenate([row[:count] for row, count in zip(outputs["scores"], counts, strict=True)])
    texts = [[word.decode("utf-8", "replace") for word in words] for words in WORDS]
    np.testing.assert_allclose(scores, bundle.tagger.scores(texts), atol=1e-4)
    # Each window by itself is a sentence to the decoder.
    alone = bundle.tagger._decoder(scores, counts)
    for row, expected in enumerate(alone.sentences()):
        count = counts[row]
        assert outputs["tag_ids"][row, :count].tolist() == expected.tag_ids.tolist()
        np.testing.assert_allclose(outputs["probabilities"][row, :count], expected.probabilities, atol=1e-5)


@pytest.mark.second
def test_the_compiled_signature_gives_the_same_predictions():
    features, _ = ids_of(tagger_bundle(), WORDS[:3])
    compiled = query_ids(features, "predict_ids_xla")
    for name, values in query_ids(features).items():
        assert compiled[name].shape == values.shape
        np.testing.assert_allclose(compiled[name], values, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0)])
def test_empty_ids_are_accepted(shape):
    nothing = np.zeros(shape)
    features = dict.fromkeys(("token_ids", "padding_mask", "word_starts", "word_mask"), nothing)
    outputs = query_ids({**features, "character_ids": np.zeros((*shape, 20))})
    assert outputs["probabilities"].shape == (*shape, 5) and outputs["tag_ids"].shape == shape


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("token_ids", lambda ids: ids - 9, r"(?s)token_ids must be in \[0, \d+\), got\W+-\d"),
        ("token_ids", lambda ids: ids + 9999, r"token_ids must be in \[0, "),
        (
            "token_ids",
            lambda ids: np.full((len(ids), 25), 5),
            "token_ids must be at most 24 long, got length",
        ),
        ("padding_mask", lambda mask: mask[:, 1:], "padding_mask must have the shape of token_ids"),
        (
            "word_starts",
            lambda starts: starts - 2,
            r"(?s)word_starts must be from 0 to below.*19.*got.*-1",
        ),
        (
            "word_starts",
            lambda starts: starts + 22,
            r"(?s)word_starts must be from 0 to below.*19.*got.*23",
        ),
        ("word_starts", lambda starts: starts[1:], "word_starts must have as many rows as token_ids"),
        ("word_mask", lambda mask: mask[:, 1:], "word_mask must have the shape of word_starts"),
        ("character_ids", lambda ids: ids[..., 1:], "character_ids must have the shape"),
        ("character_ids", lambda ids: ids + 4096, r"(?s)character_ids must be from 0 to below\W+4096"),
    ],
)
def test_wrong_ids_are_rejected_by_name(name, change, message):
    features, _ = ids_of(tagger_bundle(), [SENTENCES[0].encode().split(), [b"ferry"]])
    assert features["token_ids"].shape[1] == 19
    features[name] = change(features[name])
    # Of any shape, as a server sends them.
    specs = {key: tf.TensorSpec([None] * values.ndim, tf.int32) for key, values in features.items()}
    texts = tagger_bundle().preprocessor
    checked = tf.function(lambda given: check_sentences(texts, given), input_signature=[specs])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        checked({name: tf.constant(values, tf.int32) for name, values in features.items()})


def test_a_signature_rejects_wrong_ids_too():
    features, _ = ids_of(tagger_bundle(), [[b"ferry"]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="word_starts must be from 0 to below"):
        query_ids({**features, "word_starts": features["word_starts"] - 2})


@pytest.mark.parametrize("kind", with_stages(["spelt", "no scheme"], ["spelt"]))
def test_batching_requests_changes_no_prediction(kind):
    """Padding repeats the first value of a tensor; see `tests.export.savedmodel.test_endpoints.as_a_server_joins`."""
    bundle = tagger_bundle(kind)
    requests = [ids_of(bundle, part)[0] for part in (WORDS[3:4], [WORDS[4], WORDS[3]], [[]], WORDS[:2])]
    joined = {}
    for name in requests[0]:
        width = max(features[name].shape[1] for features in requests)
        rest = [(0, 0)] * (requests[0][name].ndim - 2)
        joined[name] = np.concatenate(
            [
                np.pad(
                    features[name],
                    [(0, 0), (0, width - features[name].shape[1]), *rest],
                    constant_values=features[name].flat[0],
                )
                for features in requests
            ]
        )
    together, begin = query_ids(joined, kind=kind), 0
    for features in requests:
        alone = query_ids(features, kind=kind)
        rows, width = alone["tag_ids"].shape
        for name, values in alone.items():
            found = together[name][begin : begin + rows]
            np.testing.assert_allclose(found[:, :width], values, atol=1e-5)
            assert not found[:, width:].any() or name == "scores"
        begin += rows


def test_the_explanation_has_every_window():
    bundle, texts = tagger_bundle(), [SENTENCES[4], "", SENTENCES[0]]
    outputs = query_text(texts, "explain")
    windows = outputs["windows"].tolist()
    assert windows == sorted(windows) and set(windows) == {0, 1, 2} and windows.count(1) == 1
    tokens, config = outputs["tokens"], bundle.model.encoder_config
    rows, length = tokens.shape
    assert rows == len(windows) > 3 and (tokens[:, 0] == START.encode()).all()
    assert outputs["attention"].shape == (rows, config.num_layers, config.num_heads, length, length)
    seen = outputs["attention"] * (tokens != PADDING.encode())[:, None, None, None, :]
    np.testing.assert_allclose(seen.sum(-1), 1, atol=1e-5)
    expected = query_text(texts)["probabilities"]
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_words_are_explained_as_their_text():
    sentences = [SENTENCES[1].encode().split(), []]
    text, words = query_text([SENTENCES[1], ""], "explain"), query_words(sentences, "explain_words")
    for name, values in text.items():
        np.testing.assert_array_equal(words[name], values)


def test_a_tagger_gets_tagger_endpoints():
    assert isinstance(endpoints(tagger_bundle()), TaggerEndpoints)
