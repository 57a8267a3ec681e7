"""The live report: a page on loopback that keeps itself up to date."""
