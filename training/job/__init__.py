"""The pipeline of one training run, from settings to run folder."""
