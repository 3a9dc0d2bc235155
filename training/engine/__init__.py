"""The training loop, its step, optimizer and callbacks."""
