"""Tasks: classification, matching, tagging and masked language modeling behind one interface."""
