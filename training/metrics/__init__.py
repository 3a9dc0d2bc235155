"""Scores of predictions, computed from arrays."""
