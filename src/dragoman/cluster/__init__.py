"""Many processes, many machines: where they meet, and what they say to each other."""
