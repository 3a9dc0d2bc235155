"""Tokenizers without dependencies, to be copied to a device next to a model file, and the files that they read."""
