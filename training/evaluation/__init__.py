"""Evaluation of models and bundles: scores, calibration, abstention, reliability."""
