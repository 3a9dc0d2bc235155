"""Keras models from features to one float32 tensor, written with `keras.ops` only, for every Keras backend."""

from kmha.models.classifier import TextClassifier as TextClassifier
from kmha.models.encoder import TransformerEncoder as TransformerEncoder
from kmha.models.masked_lm import MaskedLanguageModel as MaskedLanguageModel
from kmha.models.matcher import TextMatcher as TextMatcher
from kmha.models.tagger import SequenceTagger as SequenceTagger
