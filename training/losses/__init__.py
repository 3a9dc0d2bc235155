"""Loss functions, one value a row."""
