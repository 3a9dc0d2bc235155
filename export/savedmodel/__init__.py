"""SavedModel for TensorFlow Serving: write, check, load as a predictor."""
