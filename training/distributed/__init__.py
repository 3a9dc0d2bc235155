"""Training with several workers: TF_CONFIG, collectives, coordination and local processes."""
