"""Comparison of attention with other architectures and a linear model on the same rows."""
