"""How fast a model answers, measured in a process of its own."""
