"""ONNX: convert, check, run as a predictor."""
