"""Fine-tuning by each of the peers of `benchmarks.fine_tuning`, a program each."""
