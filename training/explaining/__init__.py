"""What a model looked at: heads, rollout, gradients, the deletion test, and the page that shows them."""
