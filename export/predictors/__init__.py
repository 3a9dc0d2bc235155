"""Exported models behind one predictor protocol."""
