"""The training loop, the training step, the optimizer and the callbacks."""
