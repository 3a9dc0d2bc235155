"""Training a small model on the predictions of a large one."""
