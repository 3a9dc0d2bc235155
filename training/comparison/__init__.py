"""Comparison of several architectures on the same rows."""
