"""Simple models that every run is compared with."""
