"""Tagging the words of a text."""
