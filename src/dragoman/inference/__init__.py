"""From trained weights to text and scores."""
