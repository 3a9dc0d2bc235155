"""Files that a device needs next to a model: tokenizer, vocabulary, labels."""
