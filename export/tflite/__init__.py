"""TFLite: convert, check, run as a predictor."""
