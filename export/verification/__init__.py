"""Verifies that an exported model gives the predictions of its run."""
