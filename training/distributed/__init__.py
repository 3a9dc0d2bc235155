"""Training with several workers: TF_CONFIG, collectives, coordinator, local launcher."""
