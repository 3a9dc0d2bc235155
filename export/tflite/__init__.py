"""TFLite: convert, check, load as a predictor."""
