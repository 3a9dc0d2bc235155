"""Prediction from raw text: batching, predictions, tagging, ranking, text vectors, mask filling."""
