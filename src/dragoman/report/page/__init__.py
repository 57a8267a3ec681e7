"""Answers -> report.html, report.md, report.json, and tables for a terminal."""
