"""Runs exported models in third-party programs and compares their predictions with those of the run."""
