"""Text matching."""
