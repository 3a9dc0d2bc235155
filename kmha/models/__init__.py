"""Keras models from features to one float32 tensor, written with `keras.ops` only, for every Keras backend."""
