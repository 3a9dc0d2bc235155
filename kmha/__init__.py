"""What a model is: Keras layers, models, text processing and the bundle that holds them together."""
