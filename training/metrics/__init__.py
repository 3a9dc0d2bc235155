"""Metrics computed from arrays of predictions and labels."""
