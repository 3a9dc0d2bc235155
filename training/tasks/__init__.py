"""What a model is asked to learn: each task is a frozen dataclass that is its own section of the settings."""
