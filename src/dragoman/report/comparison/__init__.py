"""Two runs side by side: what changed, what it did."""
