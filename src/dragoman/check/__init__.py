"""`dragoman check`: measure machines and links before a long run."""
