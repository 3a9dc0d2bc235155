"""Strings to features, inside the TensorFlow graph: the same object trains, predicts and is exported."""
