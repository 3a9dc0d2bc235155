"""What a model looked at: attention of every head, rollout, gradients, the deletion test, and the page that shows them."""
