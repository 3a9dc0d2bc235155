"""Importance of attention heads and feed-forward rows, and runs without the least important ones."""
