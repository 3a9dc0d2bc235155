"""Runs exported models in programs that other people wrote, and compares their answers with the run's."""
