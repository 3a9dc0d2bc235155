"""Heads and feed-forward rows: what each is worth, and models without the weakest of them."""
