"""Layers that know nothing of text, files or training. Only `keras.ops`, so every Keras backend runs them.

Axes, in comments and einsum strings, everywhere in the project:

    B batch     T target length (queries)    S source length (keys)    N heads    H head size
    D hidden    V vocabulary                 C classes                 K tags     W words
"""
