"""How a bundle leaves the house."""
