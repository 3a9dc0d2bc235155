"""Prediction from raw text: batching, ranking, text vectors, mask filling."""
