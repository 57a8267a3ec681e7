"""Many processes, many machines: how they connect and communicate."""
