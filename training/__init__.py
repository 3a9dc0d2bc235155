"""How a model is learnt and judged."""
