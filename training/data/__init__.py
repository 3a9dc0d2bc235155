"""Loading, splitting, tokenizing and batching of training data."""
