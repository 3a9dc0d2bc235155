"""Attention and gradient explanations of predictions, the deletion test that evaluates them, and their page."""
