"""Keras layers of the models, written with `keras.ops` only, so that they run on every Keras backend.

Axes in shape comments, docstrings and einsum strings of the whole project:

    B batch     T target length (queries)    S source length (keys)    N heads    H head size
    D hidden    V vocabulary                 C classes                 K tags     W words
"""
