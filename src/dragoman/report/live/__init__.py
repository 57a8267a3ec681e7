"""The report while the run goes on: a page on loopback that keeps itself up to date."""
