"""SavedModel for TensorFlow Serving: write, run as a predictor."""
