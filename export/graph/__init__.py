"""Graph functions that every export format contains."""
