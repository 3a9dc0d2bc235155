"""Measures latency, throughput and memory of exported models, next to other libraries."""
