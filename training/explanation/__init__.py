"""Attention view and token attributions of a prediction."""
