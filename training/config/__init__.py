"""Training configuration: dataclasses, defaults and validation."""
