"""ONNX: convert, check, load as a predictor."""
