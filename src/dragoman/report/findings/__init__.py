"""Evidence -> findings: what the numbers say, each with how sure that is."""
