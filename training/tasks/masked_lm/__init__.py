"""Pretraining on unlabeled text by predicting masked tokens."""
