"""Many processes, many machines; the only place that knows ranks."""
