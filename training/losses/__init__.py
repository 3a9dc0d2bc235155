"""Loss functions: one value per row."""
