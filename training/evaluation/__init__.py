"""Evaluation of trained models: scores, calibration, abstention, reliability."""
