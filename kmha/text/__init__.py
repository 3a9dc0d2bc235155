"""Text processing in the TensorFlow graph: the same preprocessor runs in training, prediction and exported models."""
