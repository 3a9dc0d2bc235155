"""Batch prediction on Apache Beam."""
