import json

import numpy as np
import pytest

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.huggingface import read_huggingface
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.write_huggingface import check_bert, write_huggingface
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.kmha.pretrained.folders import GOLDEN, TINY, features, filled

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *"abcdefg"])
BERT = EncoderConfig.bert(12, 16, 1, num_heads=2, max_length=10)


@pytest.mark.parametrize("name", TINY)
def test_a_written_encoder_has_the_same_states(tmp_path, name):
    """A DistilBERT, which has no segments, is written as a BERT with segment embeddings of zero."""
    checkpoint = find_checkpoint(str(GOLDEN / name))
    encoder = filled(checkpoint)
    write_huggingface(tmp_path / "out", encoder, checkpoint.vocabulary, lower_case=name == "bert")
    again = read_huggingface(tmp_path / "out")
    assert again.vocabulary.tokens == checkpoint.vocabulary.tokens and again.lower_case == (name == "bert")
    with np.load(GOLDEN / name / "states.npz", allow_pickle=False) as golden:
        given = features(golden)
    np.testing.assert_allclose(filled(again)(given), encoder(given), atol=1e-6)
    weights = again.read_weights()
    for path, weight in checkpoint.read_weights().items():
        np.testing.assert_array_equal(weights[path], weight)


def test_the_folder_has_the_files_of_the_reference(tmp_path):
    checkpoint = find_checkpoint(str(GOLDEN / "bert"))
    write_huggingface(tmp_path, filled(checkpoint), checkpoint.vocabulary, lower_case=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    }
    written, published = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, GOLDEN / "bert")
    )
    # The output of the reference for the same encoder.
    assert {key: published[key] for key in published.keys() & written.keys()} == {
        key: written[key] for key in published.keys() & written.keys()
    }
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert (tmp_path / "vocab.txt").read_bytes() == (GOLDEN / "bert" / "vocab.txt").read_bytes()


def test_rows_without_a_token_are_left_out(tmp_path):
    encoder = TransformerEncoder(EncoderConfig.bert(20, 16, 1, num_heads=2, max_length=10))
    encoder.build({"token_ids": (None, None)})
    write_huggingface(tmp_path, encoder, VOCABULARY)
    table = read_huggingface(tmp_path).read_weights()["embedding/tokens/embeddings"]
    np.testing.assert_array_equal(table, encoder.embedding.tokens.embeddings[:12])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre"}, "norm must be post, got pre"),
        ({"positions": "rotary"}, "positions must be learned, got rotary"),
        ({"positions": "none"}, "positions must be learned, got none"),
        ({"ngram_buckets": 11}, "ngram_buckets must be 0, got 11"),
        ({"head_dim": 4}, "head_dim must be hidden_dim / num_heads, got 4"),
    ],
)
def test_an_unsupported_encoder_is_rejected_without_writing_files(tmp_path, changes, message):
    encoder = TransformerEncoder(
        EncoderConfig.bert(12, 16, 1, **{"num_heads": 2, "max_length": 10, **changes})
    )
    encoder.build({"token_ids": (None, None)})
    with pytest.raises(InputError, match=f"^BERT cannot represent this encoder: {message}$"):
        write_huggingface(tmp_path / "out", encoder, VOCABULARY)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tokenization", ["char", "word"])
def test_other_tokens_than_word_pieces_are_rejected(tokenization):
    check_bert(BERT, "wordpiece")
    with pytest.raises(InputError, match=f"tokenization must be wordpiece, got {tokenization}"):
        check_bert(BERT, tokenization)
