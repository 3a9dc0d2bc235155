"""Exports trained runs to SavedModel, TFLite and ONNX, and verifies the exported models."""
