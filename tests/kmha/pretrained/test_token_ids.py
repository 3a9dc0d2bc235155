"""Ordinary sentences have the same MiniLM token ids as with the reference tokenizer."""

import itertools

import pytest
import tensorflow as tf
from tokenizers import BertWordPieceTokenizer

from kmha.text.preprocessor import Preprocessor

WHO = (
    "The ferryman",
    "My neighbour's eldest daughter",
    "Dr. O'Connor",
    "NASA",
    "A café in Zürich",
    "Señor Núñez",
    "The co-founders (all three)",
    "Nobody here",
)
DOES = (
    "sold 1,250 tickets in 2019",
    "doesn't remember the unputdownable book",
    "re-opened at 6:30 a.m.",
    'said: "Come back tomorrow!"',
    "paid $3.50 — or was it €4?",
    "wrote to info@example.org about https://example.org/a_b?c=1",
    "climbed Kilimanjaro, K2 & Mont Blanc",
)
AFTER = (".", " because the weather had changed...", "; still, who knows?", " #morning @home 100%")
WHOLE = (
    "渡轮七点离开旧港口。",
    "Паром уходит в семь часов",
    "今日は parking 無料 です",
    "πάντα ῥεῖ, said Heraclitus",
    "\tTabs\tand  spaces \n and lines",
    "snake_case and CamelCase and kebab-case",
    "antidisestablishmentarianism floccinaucinihilipilification",
    "x" * 90,
    "3.14159 2^10 = 1024, 5/7, 1e-5, [a] {b} <c> ~d` |e| \\f",
    "naïve façade, crème brûlée, Ångström, Łódź, smørrebrød",
    "I can't, won't, shouldn't've; y'all'd",
    "",
    " ",
)
SENTENCES = [*(f"{who} {does}{after}" for who, does, after in itertools.product(WHO, DOES, AFTER)), *WHOLE]


@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_those_of_the_reference(minilm, lower_case):
    assert len(SENTENCES) > 200
    reference = BertWordPieceTokenizer(
        vocab=dict(minilm.vocabulary.ids), lowercase=lower_case, strip_accents=lower_case
    )
    ours = Preprocessor(minilm.vocabulary, "wordpiece", lower_case, 512)
    found = ours.encode(tf.constant(SENTENCES))[0].to_list()
    expected = [encoding.ids for encoding in reference.encode_batch(SENTENCES)]
    different = [text for text, a, b in zip(SENTENCES, found, expected, strict=True) if a != b]
    assert not different
    assert max(map(len, expected)) > 20 and minilm.vocabulary.id_of("[UNK]") in itertools.chain(*expected)
