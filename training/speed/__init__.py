"""Training speed compared with other libraries."""
