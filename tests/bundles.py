"""Bundles without training: tiny models with random weights and a vocabulary trained on a few texts."""

import functools
from typing import Any

import numpy as np

from kmha.text.vocabulary import Tokenization

TEXTS = (
    "The ferry leaves the old harbour at seven, doesn't it?",
    "Seven old ferries left; the harbour was empty.",
    "Bakers bake bread before the harbour wakes",
    "New bread, old bakers: the best cafés open early",
    "渡轮七点离开旧港口。",
    "面包师很早就烤面包，港口还在睡觉",
    "Паром уходит в семь часов",
)
EDGE_CASES = (
    b"",
    b" \t\r\n ",
    b"\0",
    b"bread\0harbour",
    b"\x01\x02\x1f\x7f",
    b"\xff\xfe\xc0\x80",
    b"old\xffbread",
    "渡轮".encode()[:-1],
    b"\xed\xa0\x80",
    "🚢🥖 👩‍🍳".encode(),
    "מעבורת ישנה \u202eabc\u202c".encode(),
    "ＦＵＬＬ　ｗｉｄｔｈ，ﬁ² ẞ İ".encode(),
    "a\u2028b\u2029c\x85d\u00a0e\u3000f\ufeffg\u200bh".encode(),
    ("e\u0301" * 50 + "\u0301" * 3).encode(),
    b"[CLS] [SEP] [PAD] ##bread",
    b"x" * 1_000_000,
    b"bread " * 170_000,
    "港".encode() * 340_000,
    b"\xff" * 1_000_000,
)
ONE = ("harbour", "bread", 'öl, "fat" & 油')
SEVERAL = ("old", "new", "early", "late")


def preprocessor(tokenization: Tokenization = "wordpiece", lower_case=True, max_length=24):
    """With a vocabulary trained on TEXTS."""
    from kmha.text.preprocessor import Preprocessor
    from kmha.text.vocabulary_training import train_vocabulary

    vocabulary = train_vocabulary(TEXTS, tokenization, 400, 1, lower_case)
    return Preprocessor(vocabulary, tokenization, lower_case, max_length)


# 10 tokens, 3 of which overlap with the next window: the longest of TEXTS has four windows.
WINDOWS = {"window": 10, "window_overlap": 3}


def make_bundle(
    labels=ONE,
    multi_label=False,
    thresholds=None,
    tokenization: Tokenization = "wordpiece",
    windows=None,
    **encoder,
):
    """A bundle whose weights are random but the same every time; `windows` has more arguments of the classifier."""
    from kmha.bundle.bundle import Bundle
    from kmha.config import EncoderConfig
    from kmha.models.classifier import TextClassifier

    texts = preprocessor(tokenization)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24, "ngram_buckets": 101}
    config = EncoderConfig(
        len(texts.vocabulary), max_length=texts.max_length, ngram_dim=8, **{**sizes, **encoder}
    )
    model = TextClassifier(config, len(labels), multi_label=multi_label, **(windows or {}))
    model.build()
    generator = np.random.default_rng(7)
    for weights in model.trainable_variables:
        weights.assign(0.5 * generator.normal(size=weights.shape))
    details = {"lengths": {"p50": 9, "p90": 14, "p99": 16, "p100": 18}}
    return Bundle(model, texts, list(labels), thresholds, details, list(TEXTS))


@functools.cache
def one_label_bundle():
    """Do not change what it returns: all tests share it."""
    return make_bundle()


@functools.cache
def several_label_bundle():
    """Do not change what it returns: all tests share it."""
    return make_bundle(SEVERAL, multi_label=True, thresholds=[0.3, 0.5, 0.7, 0.9])


def make_linear_bundle(multi_label=False, with_encoder=True, windows=None, **encoder):
    """A bundle with a linear path, whose n-grams of TEXTS have random weights; the encoder is optional."""
    from training.linear.ngrams import in_small_tables, known_ngrams

    labels, texts = (SEVERAL if multi_label else ONE), preprocessor()
    tokens = [texts([text])["token_ids"][0].numpy() for text in TEXTS]
    lengths = np.array(list(map(len, tokens)))
    flat = np.concatenate(tokens)
    ngrams = known_ngrams(flat, lengths, (1, 2), len(texts.vocabulary), 1000)
    ngrams = in_small_tables(ngrams, -ngrams.idf, 1000)
    linear = {"linear_rows": len(ngrams.keys), "linear_slots": ngrams.slots, "linear_displaced": True}
    none: dict[str, Any] = {
        "hidden_dim": 1,
        "num_layers": 0,
        "num_heads": 1,
        "intermediate_dim": 1,
        "ngram_buckets": 0,
    }
    bundle = make_bundle(
        labels,
        multi_label,
        [0.5] * len(labels) if multi_label else None,
        windows={**(windows or {}), **linear},
        **(encoder if with_encoder else none),
    )
    generator = np.random.default_rng(8)
    kernel, bias = generator.normal(size=(len(ngrams.keys), len(labels))), generator.normal(size=len(labels))
    bundle.model.linear.assign(ngrams.keys, ngrams.idf, kernel, bias, ngrams.displacements)
    if not with_encoder:
        bundle.model.scale_paths(1.0, 0.0)
    return bundle


def make_outlier_bundle():
    """A bundle with a linear path and weights that no text uses, a thousand times as large as the others.

    They are the last row of the token table, a hidden unit that is always 0, and the weights of the last label.
    """
    bundle = make_linear_bundle(True, hidden_dim=32, intermediate_dim=48, ngram_buckets=0)
    model = bundle.model
    block = model.encoder.blocks[0].feed_forward
    for variable, place in (
        (model.encoder.embedding.tokens.embeddings, np.s_[-1]),
        (block.contract.kernel, np.s_[-1]),
        (model.linear.table.embeddings, np.s_[:, -1]),
    ):
        values = variable.numpy()
        values[place] *= 1000
        variable.assign(values)
    for variable in (block.expand.kernel, block.expand.bias):
        values = variable.numpy()
        values[..., -1] = 0
        variable.assign(values)
    return bundle


def widen_inputs(bundle, factor=1000.0):
    """Multiplies a column of the inputs of attention and of a feed-forward network, and divides its weights.

    The predictions stay the same.
    """
    block = bundle.model.encoder.blocks[0]
    for norm, kernel in (
        (block.attention_norm, block.attention.query_key_value_kernel),
        (block.feed_forward_norm, block.feed_forward.expand.kernel),
    ):
        for variable, times in ((norm.gamma, factor), (norm.beta, factor), (kernel, 1 / factor)):
            values = variable.numpy()
            values[3] *= times
            variable.assign(values)


@functools.cache
def masked_bundle():
    """A masked language model with random weights. Do not change what it returns: all tests share it."""
    from kmha.bundle.bundle import Bundle
    from kmha.config import EncoderConfig
    from kmha.models.masked_lm import MaskedLanguageModel

    texts = preprocessor()
    # Wider than the vocabulary, like a table that was padded for speed.
    config = EncoderConfig(
        len(texts.vocabulary) + 3, 16, 1, 2, intermediate_dim=24, max_length=texts.max_length
    )
    model = MaskedLanguageModel(config)
    model.build()
    generator = np.random.default_rng(7)
    for weights in model.trainable_variables:
        weights.assign(0.5 * generator.normal(size=weights.shape))
    return Bundle(model, texts, [], None, {}, list(TEXTS))


PAIRS = tuple(zip(TEXTS, (*TEXTS[1:], TEXTS[0]), strict=True))


def make_pair_bundle(
    granularities: tuple[Tokenization, ...] = ("wordpiece",),
    labels=None,
    encoder=None,
    linear=False,
    **model,
):
    """A matcher's bundle whose weights are random but the same every time; more arguments of `TextMatcher`.

    `encoder` has more arguments of `EncoderConfig`; `linear`: with a linear path that reads trigrams of characters.
    """
    from kmha.bundle.bundle import Bundle
    from kmha.config import EncoderConfig
    from kmha.layers.trigrams import TokenTrigrams
    from kmha.models.matcher import TextMatcher
    from kmha.text.preprocessor import PairPreprocessor
    from kmha.text.vocabulary import CONTINUATION

    parts = {name: preprocessor(name) for name in granularities}
    joint = model.get("form") == "joint"
    encoders = {
        name: EncoderConfig(
            len(part.vocabulary),
            max_length=2 * part.max_length if joint else part.max_length,
            num_segments=2 if joint else 0,
            **(encoder or {}),
            hidden_dim=16,
            num_layers=1,
            num_heads=2,
            intermediate_dim=24,
            ngram_buckets=101,
            ngram_dim=8,
        )
        for name, part in parts.items()
    }
    labels = ["score"] if labels is None else list(labels)
    tokens = parts[granularities[0]].vocabulary.tokens
    if linear:
        tables = TokenTrigrams.of([token.removeprefix(CONTINUATION) or token for token in tokens])
        model |= {"linear_rows": 2, "linear_slots": 31, "linear_trigrams": tables.inside.shape[1]}
        model |= {"overlap_units": 5}
    matcher = TextMatcher(encoders, len(labels), overlap=model.get("form") != "bi", **model)
    matcher.build()
    generator = np.random.default_rng(7)
    for weights in matcher.trainable_variables:
        weights.assign(0.5 * generator.normal(size=weights.shape))
    if linear:
        assert matcher.linear is not None and matcher.linear.spelling is not None
        for weights in matcher.linear.weights:
            if weights.dtype == "float32":
                # Those of labels, and positive ones such as inverse document frequencies.
                of_labels = weights.shape[-1:] == (len(labels),) or weights.path.endswith("embeddings")
                weights.assign(generator.uniform(-0.3 if of_labels else 0.1, 0.3, weights.shape))
        # Row 0, of unknown pairs, is zero.
        pairs = np.asarray(matcher.linear.pairs.embeddings).copy()
        pairs[0] = 0.0
        matcher.linear.pairs.embeddings.assign(pairs)
        matcher.linear.continues.assign([token.startswith(CONTINUATION) for token in tokens])
        matcher.linear.spelling.assign(tables)
        assert matcher.network is not None
        for weights in matcher.network.weights:
            weights.assign(generator.uniform(-0.3 if "kernel" in weights.path else 0.1, 0.3, weights.shape))
    details = {"lengths": {"p50": 9, "p90": 14, "p99": 16, "p100": 18}}
    return Bundle(matcher, PairPreprocessor(parts), labels, None, details, list(PAIRS))


@functools.cache
def pair_bundle():
    """Do not change what it returns: all tests share it."""
    return make_pair_bundle()


# Words of each sentence, a space between two.
SENTENCES = (
    "the old ferry left Seven Harbour at seven , did n't it ?",
    "bakers of New Bread Street open early",
    "渡轮 七点 离开 旧 港口 。",
    "Ferry",
    "bread " * 40 + "at the harbour",
)
BIO = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
TAGGERS: dict[str, dict] = {
    "spelt": {"characters": True, "context_width": 3, "linear": True},
    "no scheme": {
        "labels": ("ADJ", "NOUN", "VERB"),
        "scheme": "none",
        "head": "softmax",
        "word_pooling": "mean",
    },
    "characters": {
        "labels": ("B-X", "E-X", "M-X", "O", "S-X"),
        "scheme": "bmes",
        "tokenization": "char",
        "split": "characters",
        "num_layers": 2,
        "linear": True,
    },
}


LINEAR_ROWS, LINEAR_SLOTS = 60, 1_021


def linear_weights(sentences: Any, labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, random kernel and bias of some features of SENTENCES."""
    import tensorflow as tf

    from kmha.features import CHARACTER_IDS, TOKEN_IDS, WORD_STARTS
    from kmha.layers.linear_words import word_keys

    features = sentences.pad(sentences.encode(tf.ragged.constant([each.split() for each in SENTENCES])))
    hashes, fingerprints = (
        np.asarray(each)
        for each in word_keys(features[TOKEN_IDS], features[WORD_STARTS], features.get(CHARACTER_IDS))
    )
    found = fingerprints >= 0
    slots, places = np.unique(hashes[found] % LINEAR_SLOTS, return_index=True)
    keys = np.stack([slots, fingerprints[found][places]], axis=1)
    generator = np.random.default_rng(9)
    keys = keys[generator.permutation(len(keys))[:LINEAR_ROWS]]
    return keys, generator.normal(size=(LINEAR_ROWS, labels)), generator.normal(size=labels)


def make_tagger_bundle(
    labels=BIO,
    scheme: Any = "bio",
    tokenization: Tokenization = "wordpiece",
    split: Any = "words",
    characters=False,
    head: Any = "crf",
    word_pooling: Any = "first",
    context_width=0,
    linear=False,
    **encoder,
):
    """A tagger's bundle whose weights are random but the same every time; more arguments of `EncoderConfig`."""
    from kmha.bundle.bundle import Bundle
    from kmha.config import EncoderConfig
    from kmha.features import NUM_CHARACTERS
    from kmha.models.tagger import SequenceTagger
    from kmha.tags import allowed_transitions
    from kmha.text.sentence_preprocessor import SentencePreprocessor

    part = preprocessor(tokenization)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24, "ngram_buckets": 101}
    config = EncoderConfig(
        len(part.vocabulary), max_length=part.max_length, ngram_dim=8, **{**sizes, **encoder}
    )
    allowed = allowed_transitions(labels, scheme)
    model = SequenceTagger(
        config,
        len(labels),
        scheme,
        allowed.pairs.astype(int).tolist(),
        allowed.start.astype(int).tolist(),
        allowed.end.astype(int).tolist(),
        head,
        word_pooling,
        NUM_CHARACTERS if characters else 0,
        character_dim=8,
        context_width=context_width,
        linear_rows=LINEAR_ROWS if linear else 0,
        linear_slots=LINEAR_SLOTS if linear else 0,
    )
    model.build()
    generator = np.random.default_rng(7)
    for weights in model.trainable_variables:
        # Eight vectors of affixes are added for each word.
        scale = 0.1 if "affixes" in weights.path else 0.5
        weights.assign(scale * generator.normal(size=weights.shape))
    sentences = SentencePreprocessor(part, split, characters)
    if model.linear is not None:
        model.linear.assign(*linear_weights(sentences, len(labels)))
    details = {
        "lengths": {"p50": 9, "p90": 14, "p99": 16, "p100": 18},
        "metric": "token_accuracy" if scheme == "none" else "span_f1",
        "given_scheme": scheme,
        "columns": {"text": "1", "label": "2"},
    }
    sample = ["\n".join(sentence.split()) for sentence in SENTENCES]
    return Bundle(model, sentences, list(labels), None, details, sample)


@functools.cache
def tagger_bundle(kind: str = "spelt"):
    """One of TAGGERS. Do not change what it returns: all tests share it."""
    return make_tagger_bundle(**TAGGERS[kind])
