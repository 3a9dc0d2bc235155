"""Simple models that every run is compared with, trained on the same rows."""
