"""Text classification with one label or several."""
