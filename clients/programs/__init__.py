"""Programs that run in their own environment or process."""
