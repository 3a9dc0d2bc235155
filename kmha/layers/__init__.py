"""Keras layers of the models, written with `keras.ops` only, so that they run on every Keras backend.

Axes in shape comments, docstrings and einsum strings of the whole project:

    B batch     T target length (queries)    S source length (keys)    N heads    H head size
    D hidden    V vocabulary                 C classes                 K tags     W words
"""

import keras  # noqa: F401  (first, since `kmha` registers all classes when Keras is imported)

from kmha.layers.attention import MultiHeadAttention as MultiHeadAttention
from kmha.layers.comparison import Standardise as Standardise
from kmha.layers.comparison import TokenOverlap as TokenOverlap
from kmha.layers.configurable_layer import ConfigurableLayer as ConfigurableLayer
from kmha.layers.crf import CRF as CRF
from kmha.layers.document_windows import WindowPooling as WindowPooling
from kmha.layers.embedding import NgramEmbedding as NgramEmbedding
from kmha.layers.embedding import TextEmbedding as TextEmbedding
from kmha.layers.embedding import TokenDropout as TokenDropout
from kmha.layers.encoder_block import CrossAttentionBlock as CrossAttentionBlock
from kmha.layers.encoder_block import EncoderBlock as EncoderBlock
from kmha.layers.encoder_block import FeedForward as FeedForward
from kmha.layers.linear_ngrams import LinearNgrams as LinearNgrams
from kmha.layers.linear_pairs import LinearPairs as LinearPairs
from kmha.layers.linear_words import LinearWords as LinearWords
from kmha.layers.overlap_network import OverlapNetwork as OverlapNetwork
from kmha.layers.pooling import Pooling as Pooling
from kmha.layers.positions import PositionEmbedding as PositionEmbedding
from kmha.layers.trigrams import Trigrams as Trigrams
from kmha.layers.words import LocalContext as LocalContext
from kmha.layers.words import SpellingEncoder as SpellingEncoder
