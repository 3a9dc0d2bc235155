"""The run folder, its checkpoints, and the context that the steps of a run share."""
