"""Training rows by the million: begun with within a minute, in memory that does not grow, on little disk."""
