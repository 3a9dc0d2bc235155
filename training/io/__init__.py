"""Readers of data files, on-disk stores and atomic writes."""
