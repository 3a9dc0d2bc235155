"""Training and evaluation of models: command modules and packages, one concept each."""
