"""Exports trained runs to SavedModel, TFLite and ONNX, and verifies the exported models."""

import os

# onnxruntime, which only modules of this package import, otherwise sends events to its maker and writes a device id.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
