"""The run folder as a model that takes raw text: save, load, predict."""
