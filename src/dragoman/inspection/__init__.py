"""`dragoman inspect`: find problems in a corpus before training on it."""
