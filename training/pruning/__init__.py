"""Measuring and removing attention heads and feed-forward units."""
