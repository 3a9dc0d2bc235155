"""The report of a run: what was learnt from which rows, how well, where it fails, and what it cost."""
