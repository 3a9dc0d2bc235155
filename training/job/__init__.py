"""One training run, from configuration to run folder."""
