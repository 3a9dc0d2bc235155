"""Published encoders: where they are found, what their weights are called, and how they become ours."""
