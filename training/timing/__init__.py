"""How fast models learn: kmha's training step beside those of others, in processes that take turns."""
