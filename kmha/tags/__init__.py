"""Tag schemes, spans and tagger predictions."""
