"""Matching of two texts."""
