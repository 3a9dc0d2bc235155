"""Tokenizers without dependencies, to be copied to a device next to a model file."""
