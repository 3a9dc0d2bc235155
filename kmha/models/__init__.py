"""Models: features in, one float32 tensor out. Only `keras.ops`, so every Keras backend can run them."""
