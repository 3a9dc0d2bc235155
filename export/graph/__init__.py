"""Functions that every export format carries."""
