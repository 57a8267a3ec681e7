"""`dragoman inspect`: what is wrong with a corpus, before hours are spent on it."""
